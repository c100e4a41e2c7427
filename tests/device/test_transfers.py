"""What a GPU copies and waits for in a step of training. Each number here is one that somebody
waits for at every step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, LatentError, LatentWarning
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.mixed_dirichlet import MixedDirichlet
from spacy_latent.estimators.noise import NOISES, draw_noise
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.kernels import blocks
from spacy_latent.kernels.transfers import (
    bring,
    derived,
    fetch,
    known_of,
    places_of,
    remember,
    send,
    send_together,
)
from spacy_latent.layers.base import Composer, ComposerBuilder
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.child_sum_tree_lstm import build_child_sum_tree_lstm_v1
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.head_attention import build_head_attention_v1
from spacy_latent.layers.recursive_message_passing import build_recursive_message_passing_v1
from spacy_latent.models.latent_layer_model import build_module, group_spans
from spacy_latent.models.text_layer_model import build_text_module
from spacy_latent.structures.base import Structure
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.answering_kernels import answering_kernels
from tests.device.pretended_gpu import CUDA, Log, pretended_gpu

SIZES = [5 + i % 4 for i in range(32)]
WIDTH = 6


def moved(log: Log) -> tuple[int, int, int]:
    """Transfers up and down, and waits beside those for what comes down."""
    blocking = sum(event.kind == "up" and event.blocking for event in log)
    return log.count("up"), log.count("down"), log.count("wait") + blocking


def token_vectors(structure: Structure, estimator: Estimator, composer: ComposerBuilder) -> Any:
    """A step of an encoder, as a tagger above it asks for."""
    torch.manual_seed(0)
    module = build_module(
        WIDTH,
        width=None,
        residual=True,
        structure=structure,
        estimator=estimator,
        scorer=build_biaffine_scorer_v1(4),
        composer=composer,
        entropy_weight=0.0,
    )
    groups = group_spans(SIZES, [[(0, size)] for size in SIZES])

    def step(rows: Tensor) -> Tensor:
        return module(rows, groups)[0]

    return module, step


def text_vectors(structure: Structure, estimator: Estimator, composer: ComposerBuilder) -> Any:
    """A step of a text classifier with a loss of its own."""
    torch.manual_seed(0)
    module = build_text_module(
        WIDTH,
        pooling=("mean", "root"),
        texts=1,
        structure=structure,
        estimator=estimator.for_width(WIDTH),
        scorer=build_biaffine_scorer_v1(4),
        composer=composer,
        entropy_weight=0.0,
    )
    groups = group_spans(SIZES, [[(0, size)] for size in SIZES])
    ends = torch.tensor([0, *SIZES]).cumsum(0).tolist()
    docs = list(zip(ends, ends[1:]))

    def step(rows: Tensor) -> Tensor:
        return module(rows, groups, docs, docs)[0]

    return module, step


def counted(made: Any) -> tuple[int, int, int]:
    """Of the second step: the first one is when kernels are compared with the CPU's."""
    module, step = made
    with pretended_gpu() as log:
        module.to(CUDA).train()
        for _ in range(2):
            rows = torch.randn(sum(SIZES), WIDTH).to(CUDA).requires_grad_()
            log.clear()
            step(rows).sum().backward()
        print(log.lines("up"), log.lines("down"), log.lines("wait"), sep="\n")
        return moved(log)


attention, convolution = build_head_attention_v1(), build_graph_convolution_v1()
tree_lstm = build_child_sum_tree_lstm_v1()
# Up, down and other waits, where the CPU finds the structures and where kernels do.
BUDGETS: dict[str, tuple[Callable[[], Any], tuple[int, int, int], tuple[int, int, int]]] = {
    "marginals of spanning trees": (
        lambda: token_vectors(SpanningTree(), Marginals(), attention),
        # Up: places of the batch, marginals, the product with the Hessian.
        (3, 2, 0),
        # Down: the statuses.
        (1, 1, 0),
    ),
    "marginals of projective trees": (
        lambda: token_vectors(ProjectiveTree(), Marginals(), attention),
        (3, 2, 0),
        (1, 1, 0),
    ),
    "SparseMAP": (
        lambda: token_vectors(SpanningTree(), SparseMAP(), attention),
        (3, 2, 0),
        (3, 2, 0),
    ),
    "SparseMAP marginalized over Tree-LSTMs": (
        lambda: token_vectors(SpanningTree(), SparseMAP(marginalize=True), tree_lstm),
        # Up as well: the trees, which of them are none, and the order of the tokens. Down as well:
        # the heads.
        (6, 3, 0),
        (6, 3, 0),
    ),
    "projective trees by the score function": (
        lambda: text_vectors(ProjectiveTree(), ScoreFunction(num_samples=2), convolution),
        (3, 1, 0),
        (3, 3, 0),
    ),
}


@pytest.mark.parametrize("kernels", [False, True], ids=["by the CPU", "by kernels"])
@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_moves_no_more_than_it_must(name: str, kernels: bool) -> None:
    make, by_cpu, by_kernels = BUDGETS[name]
    with answering_kernels() if kernels else nullcontext():
        assert counted(make()) == (by_kernels if kernels else by_cpu)
