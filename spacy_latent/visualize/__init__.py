"""Drawings of structures, by displaCy's conventions."""

from spacy_latent.visualize.displacy_drawing import make_drawings
from spacy_latent.visualize.drawing import render, render_svg, serve

__all__ = ["make_drawings", "render", "render_svg", "serve"]
