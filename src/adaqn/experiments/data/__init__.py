"""Texts and digits: where they come from, and that they are what they should be."""
