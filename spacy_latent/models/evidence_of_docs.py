"""Evidence of the words of docs under a trained model that learns from words."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from thinc.api import Model, set_dropout_rate

from spacy_latent.errors import LatentError
from spacy_latent.models import labelled_parser
from spacy_latent.models.gold_trees import nothing_known
from spacy_latent.models.latent_text_classifier import run_and_keep, word_objective_of
from spacy_latent.models.tree_evidence import Shares
from spacy_latent.models.tree_losses import batch_loss


def evidence_bounds(model: Model, docs: Iterable[Doc]) -> np.ndarray:
    """Return the bound on log p(words) of each doc, in nats, ``(D,)`` float32.

    It is computed with structures as in training, but without dropout. With an estimator that draws
    samples, the value is random. An empty doc has 0. With a parser, the bound is over all trees of
    the sentences that are set on the doc, or of the whole doc without sentences. With
    CrfAutoencoder it is the training objective, which is no bound.

    Args:
        model: model with a bound on evidence, and with its own embedder rather than a listener.
    """
    parses = model.name == labelled_parser.NAME
    known = labelled_parser.word_objective_of(model) if parses else word_objective_of(model)
    if known is None:
        raise LatentError(
            f"The model {model.name!r} has no bound on the evidence of words. Set its evidence to "
            "spacy-latent.EvidenceBound.v1 and train it."
        )
    if any(isinstance(node, Tok2VecListener) for node in model.walk()):
        raise LatentError(
            f"The model {model.name!r} listens to another component, whose vectors are not "
            "available here. Train it with a tok2vec of its own, or call nlp.replace_listeners."
        )
    docs = list(docs)
    if not any(len(doc) for doc in docs):
        return np.zeros(len(docs), dtype="float32")
    set_dropout_rate(model, 0.0)
    if parses:
        return _of_trees(model, docs)
    made = run_and_keep(model, docs, is_train=True)[0].made
    assert made.evidence is not None
    return made.evidence.bound(made.weights).cpu().numpy()


def _of_trees(model: Model, docs: list[Doc]) -> np.ndarray:
    filled = [i for i, doc in enumerate(docs) if len(doc)]
    own = [docs[i] for i in filled]
    gold = [nothing_known(doc, model.attrs["max_length"]) for doc in own]
    compute = partial(batch_loss, docs=own, gold=gold, shares=Shares(0.0, 0.0))
    _, _, parts = labelled_parser.run_on_rows(model, own, compute, is_train=False)[0]
    found = np.zeros(len(docs), dtype="float32")
    found[filled] = -parts.words
    return found
