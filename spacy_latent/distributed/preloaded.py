"""Imports that each worker needs, made once: workers are forks of a process with this module."""

from __future__ import annotations

import spacy

import spacy_latent.distributed.annotate  # noqa: F401

# Makes spaCy import the factories of all installed packages, as for any pipeline.
spacy.blank("xx")
