"""torch.nn modules that score the parts of a structure and compose vectors with it. No spaCy here."""
