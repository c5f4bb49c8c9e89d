"""The search for step sizes, and for what else the paper tunes."""
