"""Runs: one described, trained, saved and resumed; many side by side."""
