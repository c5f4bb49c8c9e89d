"""Optimizers: parameters of a model on one side, the vectors of ``adaqn.core`` on the other."""
