"""Gumbel Tree-LSTM (Choi et al. 2018): merge the best adjacent pair until one span is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator, Given
from spacy_latent.estimators.noise import draw_noise
from spacy_latent.estimators.straight_through import StraightThrough, with_gradient_of
from spacy_latent.layers.base import ComposerBuilder, check_output_width
from spacy_latent.layers.binary_tree_lstm import (
    BinaryTreeComposer,
    BinaryTreeLstm,
    Output,
    State,
    add_constituents,
    build_binary_tree_lstm_v1,
    check_output,
)
from spacy_latent.layers.encoded_scorer import EncoderBuilder
from spacy_latent.layers.given_structures import encode_given
from spacy_latent.layers.latent_module import LatentModule, LatentOutput
from spacy_latent.structures.base import Structure
from spacy_latent.structures.parser_tree import ParserTree

if TYPE_CHECKING:
    from spacy.tokens import Doc

ParserBuilder = Callable[[int], LatentModule]


class GumbelTreeLstm(nn.Module):
    """Parser that merges one adjacent pair in each of n − 1 steps (their equations 8 to 14).

    In each step every pair is composed by a binary Tree-LSTM and scored by a query vector. The best
    pair is replaced by its composition. The forward pass makes hard choices, in training with noise
    on the scores. In the backward pass the choice is the softmax of these scores at
    ``temperature``, and each place of the next row is a mixture weighted by it.

    It is a :class:`LatentModule`, like :class:`LatentLayer`, for vectors ``(B, n, width)``. Each
    step is computed for all docs at once. In training it composes O(n²) pairs for a sentence, and
    keeps their states, since the gradient needs every pair of every step. At prediction it composes
    only the two new pairs of each step.

    Args:
        composer: builder of the cell for a width of the leaves' vectors, which also defines the
            vector of a token; see :class:`BinaryTreeComposer`.
        noise: whether the scores get Gumbel noise in training; without it, straight-through
            softmax.
    """

    def __init__(
        self,
        width: int,
        encoder: EncoderBuilder | None,
        noise: bool,
        composer: Callable[[int], BinaryTreeComposer],
    ) -> None:
        super().__init__()
        self.encoder = None if encoder is None else encoder(width)
        inner = width if self.encoder is None else int(self.encoder.output_width)  # type: ignore[arg-type]
        self.composer = composer(inner)
        self.scorer = nn.Linear(self.composer.output_width, 1, bias=False)
        self.noise = noise
        self.output: Output = self.composer.output
        self.temperature = 1.0
        self.update: int | None = None
        self.structure: Structure = ParserTree()
        self.estimator: Estimator = StraightThrough()

    @property
    def present_structure(self) -> Structure:
        """Structure of every update, since there are no stages."""
        return self.structure

    @property
    def present_estimator(self) -> Estimator:
        """Estimator of every update, since there are no stages."""
        return self.estimator

    def given(self, docs: Sequence[Doc], spans: list[list[tuple[int, ...]]]) -> Given | None:
        """Return the given structures, as for :class:`LatentLayer`."""
        return self.estimator.given(self.structure, docs, spans)

    def forward(
        self, vectors: Tensor, lengths: Tensor, given: Sequence[np.ndarray | None] | None = None
    ) -> LatentOutput:
        batch, longest, _ = vectors.shape
        wanted = known = None
        if given is not None and any(one is not None for one in given):
            wanted, known = encode_given(self.structure, given, vectors, lengths)
        if self.encoder is not None:
            vectors = self.encoder(vectors, lengths)
        token = torch.arange(longest, device=vectors.device)
        inside = token < lengths[:, None]
        state = self.composer.leaves(vectors)
        leaves = state[0]
        first = last = token.expand(batch, longest)
        z = torch.diag_embed(inside.to(vectors.dtype))
        merged, contains = [], []
        pairs = scores = chosen = None
        for step in range(longest - 1):
            if pairs is None or scores is None or chosen is None or torch.is_grad_enabled():
                pairs = self.composer.merge(_slice(state, 0, -1), _slice(state, 1, None))
                scores = self.scorer(pairs[0]).squeeze(-1)
            else:
                pairs, scores = self._renew(pairs, scores, state, chosen)
            active = step < lengths - 1
            allowed = token[: longest - 1 - step] < (lengths - 1 - step)[:, None]
            preferred = scores
            if wanted is not None and known is not None:
                # Choose the first pair whose composition is a span of the given tree.
                item = torch.arange(batch, device=wanted.device)[:, None]
                spans = wanted[item, first[:, :-1], last[:, 1:]]
                order = spans * (longest - token[: longest - 1 - step])
                preferred = torch.where(known[:, None], order.to(scores), scores)
            choice = self.choose(preferred, allowed)
            chosen = choice.detach().argmax(1)
            begin = first.gather(1, chosen[:, None]).squeeze(1)
            end = last.gather(1, chosen[:, None] + 1).squeeze(1)
            z[active, begin[active], end[active]] = 1.0
            merged.append((choice.unsqueeze(-1) * pairs[0]).sum(1))
            within = (begin[:, None] <= token) & (token <= end[:, None])
            contains.append(within & active[:, None] & inside)
            # A doc that is finished chooses nothing, so that its first place stays unchanged.
            upto = choice.cumsum(1)
            state = tuple(
                choice.unsqueeze(-1) * pair
                + (1 - upto).unsqueeze(-1) * old[:, :-1]
                + (upto - choice).unsqueeze(-1) * old[:, 1:]
                for pair, old in zip(pairs, state)
            )  # type: ignore[assignment]
            behind = (token[: longest - 1 - step] > chosen[:, None]) & active[:, None]
            first = torch.where(behind, first[:, 1:], first[:, :-1])
            ends = torch.where(behind, last[:, 1:], last[:, :-1])
            at = (token[: longest - 1 - step] == chosen[:, None]) & active[:, None]
            last = torch.where(at, end[:, None], ends)
        if self.output == "root" and longest:
            rows = state[0].expand(batch, longest, -1)
        else:
            above = torch.stack(merged, 1) if merged else leaves[:, :0]
            around = torch.stack(contains, 1) if contains else z[:, :0]
            rows = add_constituents(leaves, above, around.to(leaves.dtype))
        return LatentOutput(rows, Draw(z[None], vectors.new_ones((1, batch))), z)

    def choose(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Choose one allowed pair in each row, if there is one, with the gradient of a softmax.

        Arguments and result are ``(B, pairs)``. The result is 0/1 in the dtype of ``scores``.
        """
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        if self.training and self.noise:
            scores = scores + draw_noise("gumbel", scores, 1.0)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        best = torch.zeros_like(scores).scatter(1, scores.argmax(1, keepdim=True), 1.0) * allowed
        if not scores.requires_grad:
            return best
        return with_gradient_of((scores / self.temperature).softmax(1) * allowed, best)

    def _renew(
        self, pairs: State, scores: Tensor, state: State, chosen: Tensor
    ) -> tuple[State, Tensor]:
        """Return the last step's pairs and scores, with the two new pairs of the merged span."""
        size = state[0].shape[1] - 1
        place = torch.arange(size, device=scores.device)
        kept = place + (place >= chosen[:, None])
        scores = scores.gather(1, kept)
        row = torch.arange(len(chosen), device=scores.device)
        pairs = (pairs[0][row[:, None], kept], pairs[1][row[:, None], kept])
        for new in ((chosen - 1).clamp(0, size - 1), chosen.clamp(0, size - 1)):
            left, right = (
                (state[0][row, new], state[1][row, new]),
                (state[0][row, new + 1], state[1][row, new + 1]),
            )
            made = self.composer.merge(left, right)
            for array, value in zip(pairs, made):
                array[row, new] = value
            scores[row, new] = self.scorer(made[0]).squeeze(-1)
        return pairs, scores


def _slice(state: State, begin: int, end: int | None) -> State:
    return state[0][:, begin:end], state[1][:, begin:end]


def build_gumbel_tree_lstm_v1(
    output_width: int | None = None,
    encoder: EncoderBuilder | None = None,
    noise: bool = True,
    output: Output = "constituents",
) -> ParserBuilder:
    """Return a builder of a binary tree that merges adjacent pairs, straight-through.

    See Choi et al. 2018.

    Args:
        output_width: width of the result; None for the input's width.
        encoder: module that gives leaves the context of each token, such as BiLSTM; None for no
            encoder.
        noise: whether the scores get Gumbel noise in training; without it, straight-through
            softmax.
        output: vector of a token, as in BinaryTreeLstm.
    """
    check_output_width("GumbelTreeLstm", output_width)
    check_output("GumbelTreeLstm", output)
    return partial(
        _gumbel_tree_lstm, output_width=output_width, encoder=encoder, noise=noise, output=output
    )


def _gumbel_tree_lstm(
    width: int,
    output_width: int | None,
    encoder: EncoderBuilder | None,
    noise: bool,
    output: Output,
) -> GumbelTreeLstm:
    # The width of the encoder differs from the width of the result.
    cell = partial(BinaryTreeLstm, output_width=output_width or width, output=output)
    return GumbelTreeLstm(width, encoder, noise, cell)


def build_gumbel_tree_v1(
    composer: ComposerBuilder | None = None,
    encoder: EncoderBuilder | None = None,
    noise: bool = True,
) -> ParserBuilder:
    """Return a builder of GumbelTreeLstm with another composer.

    Args:
        composer: composes binary trees from the leaves up, such as GatedRecursiveTree; None for
            BinaryTreeLstm.
        encoder, noise: as in GumbelTreeLstm.
    """
    build: Any = composer or build_binary_tree_lstm_v1()
    kind = getattr(build, "func", None)
    if not (isinstance(kind, type) and issubclass(kind, BinaryTreeComposer)) or (
        kind.parts != "spans"
    ):
        raise LatentError(
            f"GumbelTree: the composer is {getattr(kind, '__name__', composer)!r}; expected one "
            "that composes the spans of binary trees from two halves: "
            "spacy-latent.GatedRecursiveTree.v1 or spacy-latent.BinaryTreeLstm.v1."
        )
    return partial(GumbelTreeLstm, encoder=encoder, noise=noise, composer=build)
