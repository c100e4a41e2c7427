"""Drawings of structures with the conventions of displaCy."""

from spacy_latent.visualize.displacy_drawing import make_drawings
from spacy_latent.visualize.drawing import render, render_svg, serve
from spacy_latent.visualize.widget import explore

__all__ = ["explore", "make_drawings", "render", "render_svg", "serve"]
