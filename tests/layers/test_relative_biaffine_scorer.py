"""Terms for relative positions that depend on the words."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.relative_biaffine_scorer import RelativeBiaffineScorer

LENGTHS = torch.tensor([5, 3, 1])


def make(**options: object) -> RelativeBiaffineScorer:
    torch.manual_seed(0)
    build = registry.get("misc", "spacy-latent.RelativeBiaffineScorer.v1")
    scorer = build(hidden_width=7, **options)(6)
    assert isinstance(scorer, RelativeBiaffineScorer)
    return scorer


@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4)])
def test_padding_is_not_read(encoder: object) -> None:
    scorer, vectors = make(encoder=encoder), torch.randn(3, 5, 6)
    scores = scorer(vectors, LENGTHS)
    assert scores.shape == (3, 6, 6)
    alone = scorer(vectors[1:2, :3], LENGTHS[1:2])
    torch.testing.assert_close(scores[1:2, :4, :4], alone, atol=1e-6, rtol=1e-5)
    if encoder is None:
        assert scorer(vectors[:0], LENGTHS[:0]).shape == (0, 6, 6)
        assert scorer(vectors[:, :0], 0 * LENGTHS).shape == (3, 1, 1)


def test_one_arc_at_a_time() -> None:
    scorer = make().double()
    vectors = torch.randn(1, 5, 6, dtype=torch.float64)
    scores = scorer(vectors, LENGTHS[:1])[0]
    nodes = [scorer.root, *vectors[0]]
    # Distances 1, 2, 3–4 and 5–8, then the same for heads to the right.
    bucket = {1: 0, 2: 1, 3: 2, 4: 2, 5: 3, -1: 11, -2: 12, -3: 13, -4: 13}
    for h in range(6):
        for m in range(1, 6):
            if h == m:
                continue
            head = torch.relu(scorer.head(nodes[h]))
            modifier = torch.relu(scorer.modifier(nodes[m]))
            both = torch.cat([modifier, torch.ones(1, dtype=torch.float64)])
            expected = head @ (both @ scorer.weight)
            if h:
                place = bucket[m - h]
                expected = expected + scorer.position_of_head(head)[place]
                expected = expected + scorer.position_of_modifier(modifier)[place]
            torch.testing.assert_close(scores[h, m], expected)


def test_articles_find_the_next_noun_and_nouns_the_one_before() -> None:
    """No product of vectors can express this: all nouns are equal, and so are all articles."""
    torch.manual_seed(1)
    scorer = make()
    article, noun = torch.randn(2, 6)
    vectors = torch.stack([article, noun, article, noun, article, noun])[None]
    heads = torch.tensor([2, 0, 4, 2, 6, 4])
    optimizer = torch.optim.Adam(scorer.parameters(), lr=0.05)
    for _ in range(60):
        scores = scorer(vectors, torch.tensor([6]))[0]
        loss = torch.nn.functional.cross_entropy(scores.T[1:], heads)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert scorer(vectors, torch.tensor([6]))[0].argmax(0)[1:].tolist() == heads.tolist()


def test_impossible_widths_are_refused() -> None:
    with pytest.raises(LatentError, match=r"RelativeBiaffineScorer.*hidden_width"):
        registry.get("misc", "spacy-latent.RelativeBiaffineScorer.v1")(hidden_width=0)
