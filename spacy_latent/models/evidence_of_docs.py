"""How well a trained model with a bound on the evidence of words tells those of docs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from thinc.api import Model, set_dropout_rate

from spacy_latent.errors import LatentError
from spacy_latent.models.latent_text_classifier import evidence_of, run_and_keep


def evidence_bounds(model: Model, docs: Iterable[Doc]) -> np.ndarray:
    """The bound on log p(words) of each doc, in nats, ``(D,)`` float32, 0 for an empty one, by the
    structures of training without dropout; a sample's where the estimator draws.

    model: with a bound on evidence, and an embedder of its own, not a listener.
    """
    if evidence_of(model) is None:
        raise LatentError(
            f"The model {model.name!r} has no bound on the evidence of words. Set its evidence to "
            "spacy-latent.EvidenceBound.v1 and train it."
        )
    if any(isinstance(node, Tok2VecListener) for node in model.walk()):
        raise LatentError(
            f"The model {model.name!r} listens to another component, whose vectors are not at hand "
            "here. Give it a tok2vec of its own to tell its bounds."
        )
    docs = list(docs)
    if not any(len(doc) for doc in docs):
        return np.zeros(len(docs), dtype="float32")
    set_dropout_rate(model, 0.0)
    made = run_and_keep(model, docs, is_train=True)[0].made
    assert made.evidence is not None
    return made.evidence.bound(made.weights).cpu().numpy()
