"""What each worker needs, imported once: workers are forks of a process that has imported this."""

from __future__ import annotations

import spacy

import spacy_latent.distributed.annotate  # noqa: F401

# Has spaCy import the factories of all installed packages, as it does for any pipeline.
spacy.blank("xx")
