"""Lower bound on the log-probability of a text's words, as an additional or only objective.

The scorer and the estimator are the approximate posterior q(z). The prior p(z) and the decoder p(x
| z) are trained with it: log p(x) ≥ E_q[log p(x | z)] − KL(q ‖ p). It needs no label. See Kingma et
al. 2014, section 3, and with marginalization Correia et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from spacy.attrs import IDS
from spacy.tokens import Doc
from thinc.api import Model
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError, NotTractable, check_not_negative
from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.compatibility import check_kind
from spacy_latent.layers.generative import (
    ArcDecoder,
    ArcDecoderBuilder,
    CellDecoderBuilder,
    Decoder,
    DecoderBuilder,
    Prior,
    PriorBuilder,
    WordDecoder,
)
from spacy_latent.models.scheduled_value import ScheduledValue
from spacy_latent.stages import periods
from spacy_latent.structures.base import Structure

NAME = "EvidenceBound"


class WordObjective:
    """Settings to learn from the words of texts, with labels and without.

    Args:
        unlabelled_weight, labelled_weight: weights of this objective for texts without and with
            labels, numbers or schedules.
        learn_rate: learning rate of its own weights, as a multiple of the optimizer's.

    Attributes:
        name: name in messages.
        loss: name of its sum among the losses, after the name of the component.
    """

    name: ClassVar[str] = ""
    loss: ClassVar[str] = "evidence"

    def __init__(
        self,
        decoder: DecoderBuilder | ArcDecoderBuilder | CellDecoderBuilder,
        unlabelled_weight: float | Iterable[float],
        labelled_weight: float | Iterable[float],
        learn_rate: float,
    ) -> None:
        check_not_negative(self.name, learn_rate=learn_rate)
        attr = self._check_decoder(decoder, WordDecoder).attr
        if not attr or attr not in IDS:
            raise LatentError(
                f"{self.name}: the decoder's attr is {attr!r}, which is no attribute of tokens. "
                "Use NORM, LOWER or ORTH."
            )
        self.decoder: Any = decoder
        self.unlabelled_weight = ScheduledValue(unlabelled_weight, "unlabelled_weight")
        self.labelled_weight = ScheduledValue(labelled_weight, "labelled_weight")
        self.learn_rate = learn_rate

    def check_trees(self, structure: Structure) -> None:
        """Raise an error if the objective cannot be computed for trees of ``structure``."""
        self._check_decoder(self.decoder, ArcDecoder, "spacy-latent.WordsByHeads.v1")

    def _check_decoder(self, decoder: Any, kind: type[WordDecoder], instead: str = "") -> Any:
        # Building the decoder must not change the weights that are drawn later.
        with torch.random.fork_rng(devices=[]):
            made: Any = decoder(1)
        check_kind("decoder", made, kind, instead)
        return made


class EvidenceBound(WordObjective):
    """Lower bound on the log-probability of words as an objective.

    A text without labels has the loss −bound · unlabelled_weight. A text with labels has the loss
    of the task − bound · labelled_weight.

    Args:
        kl_weight: weight of the KL in the bound. Values other than 1 may serve to warm up, but do
            not give a bound.
    """

    name = NAME
    loss = "bound"

    def __init__(
        self,
        decoder: DecoderBuilder | ArcDecoderBuilder,
        prior: PriorBuilder,
        unlabelled_weight: float | Iterable[float],
        labelled_weight: float | Iterable[float],
        kl_weight: float | Iterable[float],
        learn_rate: float,
    ) -> None:
        super().__init__(decoder, unlabelled_weight, labelled_weight, learn_rate)
        self.prior = prior
        self.kl_weight = ScheduledValue(kl_weight, "kl_weight")

    def check(self, structure: Structure, estimator: Estimator) -> None:
        """Raise an error if a structure or estimator of some stage does not allow the bound."""
        self._check_decoder(self.decoder, Decoder, "spacy-latent.BagOfWords.v1")
        for first, _ in periods(structure, estimator):
            check_bound(structure.at(first), estimator.at(first))
        check_prior(self.prior, structure)

    def check_trees(self, structure: Structure) -> None:
        super().check_trees(structure)
        check_prior(self.prior, structure)


def build_evidence_bound_v1(
    decoder: DecoderBuilder | ArcDecoderBuilder | None = None,
    prior: PriorBuilder | None = None,
    unlabelled_weight: float | Iterable[float] = 1.0,
    labelled_weight: float | Iterable[float] = 1.0,
    kl_weight: float | Iterable[float] = 1.0,
    learn_rate: float = 1.0,
) -> EvidenceBound:
    """Build the bound as an objective.

    Experimental: may change in any version.

    The bound is in nats for a whole text, tens of times the loss of a label. Weights of 0.01 make
    them similar.

    Args:
        decoder: decoder of the words given the structure; None for BagOfWords. The decoder of a
            parser must predict words from their heads, as WordsByHeads does.
        prior: prior of structures; None for UniformPrior.
        unlabelled_weight, labelled_weight: weights of the bound for texts without and with labels
            in ``cats``, and in a parser for sentences without and with heads.
        kl_weight: weight of the KL in the bound. The result is a bound only with 1; a schedule from
            0 to 1 warms it up.
        learn_rate: learning rate of decoder and prior, as a multiple of the optimizer's.
    """
    from spacy_latent.layers.bag_of_words import build_bag_of_words_v1
    from spacy_latent.layers.uniform_prior import build_uniform_prior_v1

    decoder, prior = decoder or build_bag_of_words_v1(), prior or build_uniform_prior_v1()
    return EvidenceBound(decoder, prior, unlabelled_weight, labelled_weight, kl_weight, learn_rate)


def check_prior(prior: PriorBuilder, structure: Structure) -> None:
    """Raise an error if the setting does not build a prior for the parts of ``structure``."""
    try:
        made: Any = prior(structure)
    except TypeError:
        # The setting cannot be called with a structure.
        made = prior
    check_kind("prior", made, Prior)


def check_bound(structure: Structure, estimator: Estimator) -> None:
    """Raise an error if the bound cannot be computed for this structure or estimator."""
    if estimator.criterion != "expected_loss":
        raise IncompatiblePair(
            NAME,
            f"{estimator.name} with criterion = {estimator.criterion!r}",
            "the bound needs the expectation of log-probabilities",
            f"{estimator.name} with criterion = 'expected_loss'",
        )
    if not estimator.posterior:
        raise IncompatiblePair(
            NAME,
            estimator.name,
            "the bound needs a distribution over structures, and this estimator neither trains "
            "probabilities of single structures nor draws exact samples",
            "DenseMarginalization, SparseMAP with marginalize=true, TopKSparsemax, SumAndSample, "
            "ScoreFunction or SampledStraightThrough with average=false",
        )
    if estimator.inner_steps > 1:
        raise IncompatiblePair(
            NAME,
            f"{estimator.name} with inner_steps = {estimator.inner_steps}",
            "further steps on the same samples would leave out the KL divergence",
            f"{estimator.name} with inner_steps = 1",
        )
    if not structure.linear:
        raise IncompatiblePair(
            NAME,
            structure.name,
            "it has scores of decisions, and a prior scores parts",
            "a structure with scores of parts, such as OneOfN, KOfN, Bits or LinearChain",
        )
    if "log_partition" not in structure.tractable:
        raise NotTractable(
            structure.name, "log_partition", "evidence = null, since a prior must be normalised"
        )


def is_exact(structure: Structure, estimator: Estimator) -> bool:
    """Return whether the KL is computed exactly rather than estimated from drawn structures."""
    return estimator.posterior == "weights" or "marginals" in structure.tractable


@dataclass
class BoundTerms:
    """Terms of the bound for D texts with K structures each, in nats.

    Attributes:
        fit: ``(K, D)``, log p(x | z).
        divergence: KL(q ‖ p), ``(1, D)``. If the KL is estimated, log q(z) − log p(z) of each
            structure, ``(K, D)``, without a gradient for q.
    """

    fit: Tensor
    divergence: Tensor

    def bound(self, weights: Tensor, kl_weight: float = 1.0) -> Tensor:
        """Return the bound of each text, ``(D,)``.

        Args:
            weights: ``(K, D)``.
        """
        divergence = self.divergence[0]
        if len(self.divergence) > 1:
            divergence = (weights * self.divergence).sum(0)
        return (weights * self.fit).sum(0) - kl_weight * divergence


class TextWordObjective(nn.Module):
    """Weights of an :class:`EvidenceBound`."""

    def __init__(self, settings: EvidenceBound, structure: Structure, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.decoder: Decoder = settings.decoder(width)
        self.prior: Prior = settings.prior(structure)


def divergence_of_weights(weights: Tensor, log_priors: Tensor) -> Tensor:
    """Return the KL ``(1, D)`` of a q with weights ``(K, D)`` of its structures."""
    used = weights > 0
    safe = torch.where(used, weights, 1.0)
    each = torch.where(used, weights * (safe.log() - log_priors), 0.0)
    return each.sum(0, keepdim=True)


def masked_prior(prior: Prior, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the scores of a prior, with −inf at the −inf of the posterior."""
    own = prior(scores.detach(), lengths)
    return own.masked_fill(scores.detach().isneginf(), -torch.inf)


def objective(
    estimator: Estimator,
    losses: Tensor,
    terms: BoundTerms,
    exact: bool,
    share: Tensor,
    kl_weight: float,
    *others: Tensor,
) -> Tensor:
    """Return the objective to minimise for each text, ``(D,)``.

    Args:
        losses: losses of the task, ``(K, D)``.
        exact: see :func:`is_exact`.
        share: weight of the bound in the loss of each text, ``(D,)``.
        kl_weight: weight of the KL in the bound.
        others: further arguments of :meth:`Estimator.objective`, after the losses.
    """
    each = losses - share * terms.fit
    if not exact:
        each = each + share * kl_weight * terms.divergence
    made = estimator.objective(each, *others)
    return made + share * kl_weight * terms.divergence[0] if exact else made


def begin_word_objective(model: Model, docs: Iterable[Doc]) -> None:
    """Pass the words of docs to the decoder of a model, which initializes its weights from them.

    Docs are read only if the model has a decoder, and has been built.

    Args:
        model: model whose second layer has the torch module.
    """
    shim: Any = model.layers[1].shims[0]
    evidence = getattr(shim.module, "evidence", None) if shim.is_built else None
    if evidence is not None:
        decoder = evidence.decoder
        decoder.begin(torch.as_tensor(words_of([doc], decoder.attr)) for doc in docs)


def words_of(docs: Sequence[Doc], attr: str) -> np.ndarray:
    """Return hashes of the attribute of all tokens, ``(N,)`` int64.

    Raises:
        LatentError: if no token has the attribute, since all would be the same word.
    """
    arrays: list[Any] = [doc.to_array([attr]).reshape(-1) for doc in docs]
    words = np.concatenate([*arrays, np.zeros(0, "uint64")]).view("int64")
    if len(words) and not words.any():
        raise LatentError(
            f"evidence: no token of these docs has a {attr}. Use NORM, LOWER or ORTH. Or train a "
            "component before this one that writes it, and name it in "
            "training.annotating_components."
        )
    return words
