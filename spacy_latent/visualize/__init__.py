"""Drawings of structures, by displaCy's conventions."""

from spacy_latent.visualize.drawing import make_drawings, render

__all__ = ["make_drawings", "render"]
