"""spaCy components of this package."""
