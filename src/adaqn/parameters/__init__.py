"""Many parameters as one vector, whole or in parts, in one process or several."""
