"""All registered structures, and random scores for them, for programs that measure each."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points

import torch
from torch import Tensor

from spacy_latent.structures.base import Structure

TAGS, SEGMENT = 8, 6


def structures() -> list[Structure]:
    """Return all registered structures that are linear in their scores and have exact MAP.

    They have default settings.
    """
    made = []
    for point in sorted(entry_points(group="spacy_misc"), key=lambda point: point.name):
        if point.value.startswith("spacy_latent.structures."):
            kind = point.load()
            if inspect.isclass(kind) and issubclass(kind, Structure):
                structure = kind()
                if structure.linear and structure.has_map:
                    made.append(structure)
    return made


def scores_for(
    structure: Structure, n: int, batch: int, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return standard normal float32 scores of ``batch`` items of n words, and their lengths."""
    shapes = {
        "arcs": (n + 1, n + 1),
        "items": (n,),
        "cells": (n, n),
        "spans": (n, n),
        "transitions": (n, TAGS, TAGS),
        "tags": (n, getattr(structure, "num_tags", TAGS)),
        "segments": (n, min(n, SEGMENT), 4),
    }
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(batch, *shapes[structure.parts], generator=generator).to(device)
    shape = (batch, 2) if structure.parts == "cells" else (batch,)
    return scores, torch.full(shape, n, device=device)
