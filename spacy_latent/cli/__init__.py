"""Commands of ``spacy latent``."""
