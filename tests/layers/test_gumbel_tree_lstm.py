"""The Gumbel Tree-LSTM, against its definition for one sentence at a time."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.layers import gumbel_tree_lstm
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.gumbel_tree_lstm import build_gumbel_tree_lstm_v1
from spacy_latent.layers.latent_module import LatentModule
from tests.layers.plain_tree_lstm import leaf, merge

LENGTHS = torch.tensor([6, 1, 2, 4, 0])
TEMPERATURE = 0.7


def make(**options):
    torch.manual_seed(0)
    layer = registry.get("misc", "spacy-latent.GumbelTreeLstm.v1")(output_width=5, **options)(4)
    torch.nn.init.normal_(layer.scorer.weight)
    layer.temperature = TEMPERATURE
    return layer.double()


def sentences():
    torch.manual_seed(1)
    return torch.randn(5, 6, 4, dtype=torch.float64, requires_grad=True)


def definition(layer, vectors, noise):
    """Run Choi et al. 2018, section 3, on one sentence.

    Args:
        noise: The noise of the pairs at each step.

    Returns:
        The vectors of the tokens, and the set of spans that were merged.
    """
    row = [leaf(layer.composer, x) for x in vectors]
    leaves = [state for state, _ in row]
    spans, made = [(t, t) for t in range(len(row))], []
    step = 0
    while len(row) > 1:
        pairs = [merge(layer.composer, *two) for two in zip(row, row[1:])]
        scores = torch.cat([layer.scorer(h) for h, _ in pairs]) + noise[step][: len(pairs)]
        soft = torch.softmax(scores / TEMPERATURE, 0)
        best = int(soft.argmax())
        hard = torch.zeros_like(soft)
        hard[best] = 1.0
        y = hard + (soft - soft.detach())
        # Equation 12: vectors before the chosen pair stay, and vectors after it shift by one.
        row = [
            tuple(
                y[j] * pairs[j][part]
                + y[j + 1 :].sum() * row[j][part]
                + y[:j].sum() * row[j + 1][part]
                for part in (0, 1)
            )
            for j in range(len(pairs))
        ]
        made.append(
            (spans[best][0], spans[best + 1][1], sum(y[j] * p[0] for j, p in enumerate(pairs)))
        )
        spans[best : best + 2] = [(spans[best][0], spans[best + 1][1])]
        step += 1
    rows = []
    for t, own in enumerate(leaves):
        around = [h for i, j, h in made if i <= t <= j]
        rows.append(own + sum(around) / len(around) if around else own)
    if layer.output == "root":
        rows = [row[0][0]] * len(leaves)
    return torch.stack(rows), {(i, j) for i, j, _ in made}


@pytest.mark.parametrize("output", ["constituents", "root"])
@pytest.mark.parametrize("noisy", [True, False])
def test_training_is_the_definition(output, noisy, monkeypatch):
    layer, vectors = make(output=output, noise=noisy), sentences()
    drawn = []

    def draw(noise, like, scale):
        drawn.append(torch.randn_like(like))
        return drawn[-1]

    monkeypatch.setattr(gumbel_tree_lstm, "draw_noise", draw)
    result = layer(vectors, LENGTHS)
    assert len(drawn) == (5 if noisy else 0)
    weights = [vectors, *layer.parameters()]
    ours, reference = [], []
    for b, n in enumerate(LENGTHS.tolist()):
        if not n:
            continue
        noise = [step[b] for step in drawn] or [torch.zeros(6)] * 5
        rows, spans = definition(layer, vectors[b, :n], noise)
        torch.testing.assert_close(result.vectors[b, :n], rows)
        inner = torch.triu(result.draw.z[0, b], 1).nonzero().tolist()
        assert {tuple(span) for span in inner} == spans
        ours.append(result.vectors[b, :n])
        reference.append(rows)
    readout = torch.randn(5, dtype=torch.float64)
    found, wanted = (
        torch.autograd.grad(torch.tanh(torch.cat(each) @ readout).sum(), weights)
        for each in (ours, reference)
    )
    assert layer.scorer.weight.grad is None and wanted[-1].any()
    for gradient, other in zip(found, wanted):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("output", ["constituents", "root"])
@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=3)])
def test_prediction_is_a_tree_lstm_over_the_greedy_tree(encoder, output):
    layer, vectors = make(encoder=encoder, output=output).eval(), sentences()
    kept = layer(vectors, LENGTHS)
    with torch.no_grad():
        result = layer(vectors, LENGTHS)
        leaves = vectors if encoder is None else layer.encoder(vectors, LENGTHS)
        again = layer.composer(leaves, result.draw.z[0], LENGTHS)
        for b, n in enumerate(LENGTHS.tolist()):
            torch.testing.assert_close(result.vectors[b, :n], again[b, :n])
            torch.testing.assert_close(result.vectors[b, :n], kept.vectors[b, :n])
            if n:
                _, spans = definition(layer, leaves[b, :n], [torch.zeros(6)] * 5)
                inner = torch.triu(result.draw.z[0, b], 1).nonzero().tolist()
                assert {tuple(span) for span in inner} == spans
    torch.testing.assert_close(result.draw.z, kept.draw.z)


def test_padding_and_order_change_nothing():
    layer, vectors = make().eval(), sentences().detach()
    rows = layer(vectors, LENGTHS).vectors
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(vectors[order], LENGTHS[order]).vectors, rows[order])
    other = torch.where(torch.arange(6)[:, None] < LENGTHS[:, None, None], vectors, 7.0)
    torch.testing.assert_close(layer(other, LENGTHS).vectors[0], rows[0])
    torch.testing.assert_close(layer(other, LENGTHS).vectors[3, :4], rows[3, :4])
    assert layer(vectors[:0], LENGTHS[:0]).vectors.shape == (0, 6, 5)
    assert layer(vectors[:, :0], LENGTHS * 0).vectors.shape == (5, 0, 5)


def test_the_first_merge_is_drawn_from_the_softmax():
    """The argmax of scores with Gumbel noise has the probabilities of the softmax, at any
    temperature.

    The test allows four standard errors of 4,000 draws.
    """
    layer = make()
    vectors = torch.randn(1, 3, 4, dtype=torch.float64).expand(4000, 3, 4)
    with torch.no_grad():
        z = layer(vectors, torch.full((4000,), 3)).draw.z[0]
        leaves = layer.composer.leaves(vectors[0])
        pairs = [
            layer.composer.merge((leaves[0][j], leaves[1][j]), (leaves[0][j + 1], leaves[1][j + 1]))
            for j in range(2)
        ]
        p = torch.softmax(torch.cat([layer.scorer(h) for h, _ in pairs]), 0)[0].item()
    error = 4 * (p * (1 - p) / 4000) ** 0.5
    assert 0.1 < p < 0.9 and abs(z[:, 0, 1].mean().item() - p) < error


def test_a_long_sentence_keeps_the_precision_of_hard_choices():
    layer = make().float().eval()
    vectors = torch.randn(1, 60, 4)
    with torch.no_grad():
        result = layer(vectors, torch.tensor([60]))
        again = layer.composer(vectors, result.draw.z[0], torch.tensor([60]))
    torch.testing.assert_close(result.vectors, again)


def test_bad_options_are_refused():
    with pytest.raises(LatentError, match="output"):
        build_gumbel_tree_lstm_v1(output="leaf")
    with pytest.raises(LatentError, match="output_width"):
        build_gumbel_tree_lstm_v1(output_width=0)


def gated(**options):
    torch.manual_seed(0)
    composer = registry.get("misc", "spacy-latent.GatedRecursiveTree.v1")(
        output_width=5, hidden_width=7, output="root"
    )
    layer = registry.get("misc", "spacy-latent.GumbelTree.v1")(composer, **options)(4)
    torch.nn.init.normal_(layer.scorer.weight)
    return layer.double()


@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=3)])
def test_other_cells_compose_the_greedy_tree(encoder):
    layer, vectors = gated(encoder=encoder).eval(), sentences()
    kept = layer(vectors, LENGTHS)
    with torch.no_grad():
        result = layer(vectors, LENGTHS)
        leaves = vectors if encoder is None else layer.encoder(vectors, LENGTHS)
        again = layer.composer(leaves, result.draw.z[0], LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(result.vectors[b, :n], again[b, :n])
        torch.testing.assert_close(kept.vectors[b, :n], again[b, :n])
    kept.vectors[:, 0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert layer.scorer.weight.grad.any()


@pytest.mark.parametrize("name", ["MergeGatedRecursiveTree", "SpanAttention"])
def test_a_composer_of_other_parts_is_refused(name):
    composer = registry.get("misc", f"spacy-latent.{name}.v1")()
    with pytest.raises(LatentError, match=f"'{name}'"):
        registry.get("misc", "spacy-latent.GumbelTree.v1")(composer)


def test_it_offers_what_every_latent_module_does():
    """Code that inspects a model reads only these attributes. mypy checks their types."""
    wanted = set(LatentModule.__annotations__)
    wanted |= {name for name in vars(LatentModule) if not name.startswith("_")} | {"__call__"}
    assert {"structure", "present_estimator", "scorer", "given"} <= wanted
    layer = build_gumbel_tree_lstm_v1()(4)
    assert not [name for name in wanted if not hasattr(layer, name)]
