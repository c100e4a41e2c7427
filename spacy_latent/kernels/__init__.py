"""Numerical kernels: compiled loops over single items. They import neither torch.nn nor spaCy."""
