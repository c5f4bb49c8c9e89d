"""The paper's figures, and what its text claims without one, each by one command."""
