"""What users of whole gradients take today, in the form of ``torch.optim``: recipes, and minimisers of vectors."""
