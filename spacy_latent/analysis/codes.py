"""Agreement of binary codes of docs with their categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spacy_latent.errors import LatentError


def neighbour_agreement(codes: np.ndarray, labels: Sequence[str], neighbours: int = 10) -> float:
    """Return the share of the nearest docs by Hamming distance that have the label of the doc.

    The value is a mean over docs. If only some of the docs at one distance can be among the
    nearest, each of them counts as a fraction. Codes without information give the share of pairs of
    docs with the same label.

    Args:
        codes: ``(D, size)``, 0 and 1.
        neighbours: number of nearest docs.
    """
    if len(codes) != len(labels) or not 1 <= neighbours < len(labels):
        raise LatentError(
            f"{len(codes)} codes and {len(labels)} labels are given, and neighbours is "
            f"{neighbours}; expected a label for each code, and at least 1 and fewer neighbours "
            "than codes."
        )
    if not np.isin(codes, (0, 1)).all():
        raise LatentError(
            "Some codes have values other than 0 and 1. Leave out empty docs, and use an "
            "estimator that predicts one code, such as ScoreFunction."
        )
    bits = np.asarray(codes, dtype="float32")
    kinds = np.unique(np.asarray(labels), return_inverse=True)[1]
    own = bits.sum(1)
    found = []
    for d, code in enumerate(bits):
        distance = own + code.sum() - 2 * bits @ code
        distance[d] = np.inf
        furthest = np.partition(distance, neighbours - 1)[neighbours - 1]
        nearer, tied = distance < furthest, distance == furthest
        weight = nearer + tied * ((neighbours - nearer.sum()) / tied.sum())
        found.append(weight[kinds == kinds[d]].sum() / neighbours)
    return float(np.mean(found))
