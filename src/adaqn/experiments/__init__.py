"""The laboratory: the paper's experiments, each by one command. Needs the extra ``experiments``."""
