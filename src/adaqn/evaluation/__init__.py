"""Evaluating a user's model without leaving a trace: its loss per example, its modes, buffers and random numbers."""
