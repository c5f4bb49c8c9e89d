"""Several methods on the same tasks: planned, run, summed up and drawn."""
