"""Modules of torch.nn that score parts and compose vectors with a structure, without spaCy."""
