"""Arcs scored by continuous stacks, against the paper's loop over words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.continuous_stack_scorer import (
    ContinuousStackScorer,
    build_continuous_stack_scorer_v1,
)
from tests.layers.scored_arcs import LENGTHS, check_gradients, check_padding


def make(**options: object) -> ContinuousStackScorer:
    torch.manual_seed(0)
    build = build_continuous_stack_scorer_v1(**{"stacks": 2, "hidden_width": 7, **options})
    scorer = build(6)
    assert isinstance(scorer, ContinuousStackScorer)
    return scorer


def by_words(pushes: list[float], pops: list[float]) -> tuple[Tensor, list[float]]:
    """Run one stack word by word.

    Returns:
        The strengths that each word reads before it pops and pushes, ``[pushed, reader]``, and the
            height after each word.
    """
    words = len(pushes)
    lying: list[float] = []
    read = torch.zeros(words, words, dtype=torch.float64)
    heights = []
    for reader in range(words):
        room = 1.0
        for word in reversed(range(reader)):
            read[word, reader] = min(lying[word], max(0.0, room))
            room -= lying[word]
        to_take = pops[reader]
        for word in reversed(range(reader)):
            taken = min(lying[word], to_take)
            lying[word] -= taken
            to_take -= taken
        lying.append(pushes[reader])
        heights.append(sum(lying))
    return read, heights


@pytest.mark.parametrize("words", [1, 2, 9, 40])
def test_reads_and_heights_are_those_of_a_loop_over_words(words: int) -> None:
    scorer = make().double()
    # Strengths are near 0, near 1, and in between. Some words pop from an empty stack.
    vectors = 4 * torch.randn(3, words, 6, dtype=torch.float64)
    lengths = torch.full((3,), words)
    reads, heights = scorer.reads(vectors, lengths), scorer.counters(vectors, lengths)
    assert reads.shape == (3, words, words, 2) and heights.shape == (3, words, 2)
    pushes, pops = scorer.push(vectors).sigmoid(), scorer.pop(vectors).sigmoid()
    for item in range(3):
        for stack in range(2):
            read, height = by_words(pushes[item, :, stack].tolist(), pops[item, :, stack].tolist())
            torch.testing.assert_close(reads[item, ..., stack], read)
            assert heights[item, :, stack].tolist() == pytest.approx(height)


@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4)])
def test_padding_changes_nothing(encoder: object) -> None:
    check_padding(make(encoder=encoder).double())


def test_gradients() -> None:
    check_gradients(make().double())


@pytest.mark.parametrize("depth", [1, 3, 40])
def test_it_can_match_brackets_of_any_depth(depth: int) -> None:
    """Weights set by hand match brackets: opening brackets push, and closing brackets pop.

    The head of a word is the bracket that it reads. The only feature of a word is 1 for an opening
    bracket, and −1 for a closing one.
    """
    scorer = build_continuous_stack_scorer_v1(stacks=1, hidden_width=1)(1)
    assert isinstance(scorer, ContinuousStackScorer)
    with torch.no_grad():
        for weight in scorer.parameters():
            weight.zero_()
        scorer.push.weight.fill_(100.0)
        scorer.pop.weight.fill_(-100.0)
        scorer.arc.weight[0, 0] = 1.0
        scorer.hidden.weight.fill_(1.0)
        scorer.output.weight.fill_(1.0)
        scorer.root[2].bias.fill_(0.5)
    # ( ( ) ( ... ) ): each level has a pair of brackets before the deeper level.
    steps, heads, opened = [], [], []
    for step in [1, *([1, -1, 1] * (depth - 1)), *([-1] * depth)]:
        heads.append(opened[-1] if opened else 0)
        steps.append(float(step))
        if step > 0:
            opened.append(len(steps))
        else:
            opened.pop()
    vectors = torch.tensor(steps)[None, :, None]
    found = scorer(vectors, torch.tensor([len(steps)]))[0, :, 1:].argmax(0)
    assert found.tolist() == heads


def test_noise_is_of_training_alone_and_whole_steps_of_prediction() -> None:
    vectors, lengths = torch.randn(8, 20, 6), torch.full((8,), 20)
    scorer = make(input_noise=0.5, whole_steps=True)
    assert not torch.equal(scorer(vectors, lengths), scorer(vectors, lengths))
    scorer.eval()
    assert torch.equal(scorer(vectors, lengths), scorer(vectors, lengths))
    heights = scorer.counters(vectors, lengths)
    assert torch.equal(heights, heights.round()) and heights.max() > 0
    assert set(scorer.reads(vectors, lengths).unique().tolist()) == {0.0, 1.0}
    scorer.train()
    assert not torch.equal(scorer.counters(vectors, lengths), heights)


def test_long_sentences_stay_finite() -> None:
    scorer = make()
    vectors = (10 * torch.randn(1, 300, 6)).requires_grad_()
    scores = scorer(vectors, torch.tensor([300]))
    scores.sum().backward()
    assert scores.isfinite().all() and vectors.grad is not None and vectors.grad.isfinite().all()


def test_no_tokens_and_no_items() -> None:
    scorer, vectors = make(), torch.randn(3, 5, 6)
    assert scorer(vectors[:0], LENGTHS[:0]).shape == (0, 6, 6)
    assert scorer(vectors[:, :0], 0 * LENGTHS).shape == (3, 1, 1)
    mixed = scorer(vectors, torch.tensor([5, 0, 1]))
    assert mixed.isfinite().all()
    torch.testing.assert_close(mixed[0], scorer(vectors[:1], LENGTHS[:1])[0])


def test_refuses_wrong_settings() -> None:
    with pytest.raises(LatentError, match="stacks"):
        build_continuous_stack_scorer_v1(stacks=0)
    with pytest.raises(LatentError, match="hidden_width"):
        build_continuous_stack_scorer_v1(hidden_width=0)
    with pytest.raises(LatentError, match="input_noise"):
        build_continuous_stack_scorer_v1(input_noise=-0.1)
