"""Differential equations for physics-informed networks: what is asked for, solutions to compare with, residuals."""
