"""How it is fast: loops over one sentence. No torch.nn and no spaCy here."""
