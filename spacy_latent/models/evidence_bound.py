"""A lower bound on the logarithm of the probability of a text's words, as an objective beside the
task's or in its place (Kingma et al. 2014, section 3; with marginalization, Correia et al. 2020).

The scorer and the estimator are the approximate posterior q(z), the prior p(z) and the decoder p(x
| z) are trained with it: log p(x) ≥ E_q[log p(x | z)] − KL(q ‖ p). It needs no label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from spacy.attrs import IDS
from spacy.tokens import Doc
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError, NotTractable
from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.fitting import check_kind
from spacy_latent.layers.generative import (
    ArcDecoder,
    ArcDecoderBuilder,
    Decoder,
    DecoderBuilder,
    Prior,
    PriorBuilder,
    WordDecoder,
)
from spacy_latent.models.scheduled import Scheduled
from spacy_latent.stages import periods
from spacy_latent.structures.base import Structure

NAME = "EvidenceBound"


class Evidence:
    """What a model is given to learn from the words of texts, with labels and without.

    decoder: of the words. unlabelled_weight, labelled_weight: of what is learned from the words of
    texts without and with labels, each a number or a schedule. learn_rate: of the weights that only
    this has, a multiple of the optimizer's.

    name: what messages call it. loss: what its sum is called among the losses, after the
    component's name.
    """

    name: ClassVar[str] = ""
    loss: ClassVar[str] = "evidence"

    def __init__(
        self,
        decoder: DecoderBuilder | ArcDecoderBuilder,
        unlabelled_weight: float | Iterable[float],
        labelled_weight: float | Iterable[float],
        learn_rate: float,
    ) -> None:
        if not 0 <= learn_rate < float("inf"):
            raise LatentError(f"{self.name}: learn_rate is {learn_rate}; expected a number >= 0.")
        check_attr(self.name, self._check_decoder(decoder, WordDecoder).attr)
        self.decoder: Any = decoder
        self.unlabelled_weight = Scheduled(unlabelled_weight, "unlabelled_weight")
        self.labelled_weight = Scheduled(labelled_weight, "labelled_weight")
        self.learn_rate = learn_rate

    def check_trees(self, structure: Structure) -> None:
        """Refuse decoders that do not tell words along arcs, and what does not fit the set of
        trees."""
        self._check_decoder(self.decoder, ArcDecoder, "spacy-latent.WordsByHeads.v1")

    def _check_decoder(self, decoder: Any, kind: type[WordDecoder], instead: str = "") -> Any:
        # Weights that come after are drawn as if nothing had been tried.
        with torch.random.fork_rng(devices=[]):
            made: Any = decoder(1)
        check_kind("decoder", made, kind, instead)
        return made


class EvidenceBound(Evidence):
    """A text without labels has the loss −bound · unlabelled_weight, one with labels the task's
    loss − bound · labelled_weight.

    prior: of the structures.
    kl_weight: of the KL in the bound; at other values than 1 it is no bound, as in warming up.
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
        self.kl_weight = Scheduled(kl_weight, "kl_weight")

    def check(self, structure: Structure, estimator: Estimator) -> None:
        """Refuse structures and estimators, in any stage of training, that have no bound."""
        self._check_decoder(self.decoder, Decoder, "spacy-latent.BagOfWords.v1")
        for first, _ in periods(structure, estimator):
            check_bound(structure.at(first), estimator.at(first))
        self._check_prior(structure)

    def check_trees(self, structure: Structure) -> None:
        super().check_trees(structure)
        self._check_prior(structure)

    def _check_prior(self, structure: Structure) -> None:
        try:
            made: Any = self.prior(structure)
        except TypeError:
            # Made of something else than a structure.
            made = self.prior
        check_kind("prior", made, Prior)


def build_evidence_bound_v1(
    decoder: DecoderBuilder | ArcDecoderBuilder | None = None,
    prior: PriorBuilder | None = None,
    unlabelled_weight: float | Iterable[float] = 1.0,
    labelled_weight: float | Iterable[float] = 1.0,
    kl_weight: float | Iterable[float] = 1.0,
    learn_rate: float = 1.0,
) -> EvidenceBound:
    """The bound is in nats for a whole text, tens of times what a label's loss is: weights of 0.01
    make them alike.

    decoder: of the words where the structure is known; None for BagOfWords. Of a parser it has to
        tell words by their heads, as WordsByHeads does.
    prior: of structures; None for UniformPrior.
    unlabelled_weight, labelled_weight: of the bound for texts without and with labels, in ``cats``;
        of a parser for sentences without and with heads.
    kl_weight: of the KL in the bound. It is a bound with 1; a schedule from 0 warms it up.
    learn_rate: of decoder and prior, as a multiple of the optimizer's.
    """
    from spacy_latent.layers.bag_of_words import build_bag_of_words_v1
    from spacy_latent.layers.uniform_prior import build_uniform_prior_v1

    return EvidenceBound(
        decoder or build_bag_of_words_v1(),
        prior or build_uniform_prior_v1(),
        unlabelled_weight,
        labelled_weight,
        kl_weight,
        learn_rate,
    )


def check_bound(structure: Structure, estimator: Estimator) -> None:
    if not estimator.posterior:
        raise IncompatiblePair(
            NAME,
            estimator.name,
            "the bound is of a distribution of structures, and this estimator judges no single "
            "structures by a probability that it trains",
            "DenseMarginalization, SparseMAP with marginalize=true, TopKSparsemax, SumAndSample or "
            "ScoreFunction",
        )
    if estimator.inner_steps > 1:
        raise IncompatiblePair(
            NAME,
            f"{estimator.name} with inner_steps = {estimator.inner_steps}",
            "further steps on the same samples would leave the KL out",
            f"{estimator.name} with inner_steps = 1",
        )
    if not structure.linear:
        raise IncompatiblePair(
            NAME,
            structure.name,
            "its scores are those of decisions, and a prior scores parts",
            "a structure with scores of parts, such as OneOfN, KOfN, Bits or LinearChain",
        )
    if "log_partition" not in structure.tractable:
        raise NotTractable(
            structure.name, "log_partition", "evidence = null, since a prior must be normalised"
        )


def is_exact(structure: Structure, estimator: Estimator) -> bool:
    """Whether the KL is summed, and not estimated from the structures that were drawn."""
    return estimator.posterior == "weights" or "marginals" in structure.tractable


@dataclass
class EvidenceTerms:
    """Of D texts with K structures each, in nats.

    fit: ``(K, D)``, log p(x | z). divergence: KL(q ‖ p), ``(1, D)``; or where that is not summed
    log q(z) − log p(z) of each structure, ``(K, D)``, of which q has no gradient.
    """

    fit: Tensor
    divergence: Tensor

    def bound(self, weights: Tensor, kl_weight: float = 1.0) -> Tensor:
        """``(D,)``. weights: ``(K, D)``."""
        divergence = self.divergence[0]
        if len(self.divergence) > 1:
            divergence = (weights * self.divergence).sum(0)
        return (weights * self.fit).sum(0) - kl_weight * divergence


class EvidenceModule(nn.Module):
    """The weights of an :class:`EvidenceBound`."""

    def __init__(self, settings: EvidenceBound, structure: Structure, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.decoder: Decoder = settings.decoder(width)
        self.prior: Prior = settings.prior(structure)

    def prior_scores(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return masked_prior(self.prior, scores, lengths)

    def of_weights(self, weights: Tensor, log_priors: Tensor) -> Tensor:
        """KL ``(1, D)`` of q that gives its structures these weights, ``(K, D)``."""
        used = weights > 0
        safe = torch.where(used, weights, 1.0)
        each = torch.where(used, weights * (safe.log() - log_priors), 0.0)
        return each.sum(0, keepdim=True)


def masked_prior(prior: Prior, scores: Tensor, lengths: Tensor) -> Tensor:
    """The scores of a prior, with −inf where those of the posterior are."""
    own = prior(scores.detach(), lengths)
    return own.masked_fill(scores.detach().isneginf(), -torch.inf)


def objective(
    estimator: Estimator,
    losses: Tensor,
    terms: EvidenceTerms,
    exact: bool,
    share: Tensor,
    kl_weight: float,
    *others: Tensor,
) -> Tensor:
    """What to minimise for each text, ``(D,)``.

    losses: of the task, ``(K, D)``. exact: see :func:`is_exact`. share: of the bound in each text's
    loss, ``(D,)``. others: what :meth:`Estimator.objective` gets beside the losses.
    """
    each = losses - share * terms.fit
    if not exact:
        each = each + share * kl_weight * terms.divergence
    made = estimator.objective(each, *others)
    return made + share * kl_weight * terms.divergence[0] if exact else made


def begin(decoder: WordDecoder, docs: Iterable[Doc]) -> None:
    """Show a decoder the words of docs before training, of which no more are read otherwise."""
    decoder.begin(torch.as_tensor(words_of([doc], decoder.attr)) for doc in docs)


def words_of(docs: Sequence[Doc], attr: str) -> np.ndarray:
    """Hashes of the attribute of all tokens, ``(N,)`` int64. Raises LatentError where none of them
    has it: all would be one word."""
    arrays: list[Any] = [doc.to_array([attr]).reshape(-1) for doc in docs]
    words = np.concatenate([*arrays, np.zeros(0, "uint64")]).view("int64")
    if len(words) and not words.any():
        raise LatentError(
            f"evidence: no token of these docs has a {attr}. Use NORM, LOWER or ORTH, or have a "
            "component before this one write it: name it in training.annotating_components, and "
            "train it first."
        )
    return words


def check_attr(name: str, attr: str) -> None:
    if not attr or attr not in IDS:
        raise LatentError(
            f"{name}: the decoder's attr is {attr!r}, which is no attribute of tokens. Use NORM, "
            "LOWER or ORTH."
        )
