"""Scores of tags as ``crf_ner`` passes them to a loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spacy_latent.structures.tag_sequence import TagSequence


@dataclass
class Scored:
    chain: TagSequence
    scores: Tensor
    lengths: Tensor
