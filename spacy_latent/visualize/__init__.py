"""Drawings of structures, by displaCy's conventions."""
