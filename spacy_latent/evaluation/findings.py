"""Diagnostics by their level, each of a code and a text."""

from functools import partial

from spacy_latent.pipeline.diagnostic import Diagnostic

error = partial(Diagnostic, "error")
warning = partial(Diagnostic, "warning")
note = partial(Diagnostic, "note")
