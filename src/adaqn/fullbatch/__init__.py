"""Methods for whole gradients: every evaluation of loss and gradient is of the same function."""
