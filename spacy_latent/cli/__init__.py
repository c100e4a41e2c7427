"""The 'spacy latent' commands."""
