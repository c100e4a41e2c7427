"""torch.nn modules that score parts and compose vectors with a structure. No spaCy here."""
