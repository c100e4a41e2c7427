"""Numerical kernels: compiled loops over single items, without torch.nn and spaCy."""
