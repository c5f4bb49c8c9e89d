"""The study: every optimizer on every cell with the same budget, kept as small files that can be added to anywhere."""
