"""Pages and tables made from finished runs."""
