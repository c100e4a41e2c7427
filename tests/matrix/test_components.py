"""Every pair of a structure and an estimator trains in spaCy pipelines, or is refused.

A trained pipeline is stored, and predicts the same after loading. A refusal comes when the config
is loaded, and names the pair.
"""

from __future__ import annotations

import itertools
import re
from functools import cache, partial
from typing import Any

import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import IncompatiblePair, LatentError
from tests.matrix import registered
from tests.pipeline import small_pipelines

WIDTH = 8
TOK2VEC = {
    **small_pipelines.TOK2VEC,
    "width": WIDTH,
    "embed_size": 50,
    "maxout_pieces": 1,
    "subword_features": False,
}
REDUCE = {
    **small_pipelines.REDUCE,
    "tok2vec": {
        "@architectures": "spacy-latent.LatentListener.v1",
        "width": WIDTH,
        "upstream": "latent_encoder",
    },
}
# All texts have more words than the default k of KOfN.
TEXTS = ["a good film of it all", "it is a very bad bad one", "so and so on for ever"]
# Settings that enumerate all structures need short texts. Tag sequences need the shortest ones.
SHORT = ["a good film", "a bad film", "so so so"]
SHORTEST = ["good film", "bad film", "so so"]

PAIRS = {"@misc": "spacy-latent.PairSpans.v1"}
# spaCy's tokenizer reads hundreds of exceptions for each pipeline, and there are many pipelines.
TOKENIZER = {"nlp": {"tokenizer": {"@tokenizers": "spacy-latent.WhitespaceTokenizer.v1"}}}

STRUCTURES, ESTIMATORS = registered.structures(), registered.estimators()


@cache
def parts_for(structure: str) -> tuple[str, str] | None:
    """Return a scorer and a composer for a structure, or None if the package has none."""
    chosen = STRUCTURES[structure]()
    scorers = [
        name
        for name, build in registered.scorers().items()
        if (made := build()(WIDTH)).parts == chosen.parts and made.decides != chosen.linear
    ]
    composers = sorted(
        (made.requires_hard, name)
        for name, build in registered.composers().items()
        if (made := build()(WIDTH)).parts == chosen.parts
    )
    if not scorers or not composers:
        return None
    return scorers[0], composers[0][1]


def config_of(structure: str, estimator: str) -> dict[str, Any]:
    parts = parts_for(structure)
    assert parts is not None
    scorer, composer = parts
    return {
        "tok2vec": TOK2VEC,
        "structure": {"@misc": structure},
        "estimator": {"@misc": estimator, **registered.ARGUMENTS.get(estimator, {})},
        # With sharp scores, SparseMAP would return a single structure, whose gradient is 0.
        "temperature": 10.0,
        "scorer": {"@misc": scorer},
        "composer": {"@misc": composer},
        **({"span_getter": PAIRS} if STRUCTURES[structure]().parts == "cells" else {}),
    }


def with_its_reverse(nlp: Language, text: str) -> Doc:
    """Return a pair of texts: the given one, and its words in reverse order."""
    words = text.split()
    return make_pair_doc(nlp, words, words[::-1])


def encoder(structure: str, estimator: str) -> Language:
    nlp = spacy.blank("xx", config=TOKENIZER)
    model = {**config_of(structure, estimator), "residual": False}
    nlp.add_pipe("latent_encoder", config={"model": model})
    nlp.add_pipe("textcat", config={"model": REDUCE})
    return nlp


def owner(structure: str, estimator: str) -> Language:
    nlp = spacy.blank("xx", config=TOKENIZER)
    model = {**config_of(structure, estimator), "exclusive_classes": True}
    nlp.add_pipe("latent_textcat", config={"model": model})
    return nlp


def of_pairs(structure: str, estimator: str) -> Language:
    nlp = spacy.blank("xx", config=TOKENIZER)
    model = {
        "@architectures": "spacy-latent.ComposedPairTextCat.v1",
        **config_of(structure, estimator),
        "exclusive_classes": True,
        "use_reduce_root": False,
        "use_reduce_mean": True,
    }
    nlp.add_pipe("latent_textcat", config={"model": model})
    return nlp


def odd(nlp: Language, examples: list[Example]) -> list[Example]:
    """Return the examples with odd docs among them: empty, of one token, and of a space.

    Empty docs are at the start, in the middle and at the end.
    """
    cats = {"cats": {"A": True, "B": False}}
    texts: tuple[list[str], ...] = ([], ["so"], [], [" "], [])
    first, *others = (
        Example.from_dict(make_pair_doc(nlp, words, words[:0]), cats) for words in texts
    )
    return [first, *examples[:1], *others[:-1], *examples[1:], others[-1]]


def check_component(
    nlp: Language, structure: str, estimator: str, of_two_texts: bool = False
) -> None:
    fix_random_seed(0)
    parts, texts = STRUCTURES[structure]().parts, TEXTS
    if "DenseMarginalization" in estimator and parts != "items":
        texts = SHORTEST if parts in ("tags", "transitions", "segments") else SHORT
    of_two_texts = of_two_texts or parts == "cells"
    make_doc = partial(with_its_reverse, nlp) if of_two_texts else nlp.make_doc
    examples = [
        Example.from_dict(make_doc(text), {"cats": {"A": i == 0, "B": i > 0}})
        for i, text in enumerate(texts)
    ]
    nlp.initialize(lambda: examples)
    first = nlp.pipe_names[0]
    shim = nlp.get_pipe(first).model.get_ref("latent").shims[0]
    embedder = nlp.get_pipe(first).model.layers[0]
    output = nlp.get_pipe(nlp.pipe_names[-1]).model.get_ref("output_layer")
    seen: dict[str, bool] = {}

    def optimizer(key: tuple[int, str], weights: Any, gradient: Any, **_: Any) -> tuple[Any, Any]:
        gradient = gradient * 1.0
        assert not (gradient != gradient).any()
        seen[key] = seen.get(key, False) or bool(abs(gradient).sum() > 0)
        return weights - 0.5 * gradient, 0.0 * gradient

    # Three updates are needed, because a listener's gradients reach the structure one update late.
    for number in range(3):
        for example, text in zip(examples, texts):
            example.predicted = make_doc(text)
        nlp.update(odd(nlp, examples) if number == 1 else examples, sgd=optimizer)
    scorer = [
        name for name, _ in shim.module.named_parameters() if name.startswith("latent.scorer")
    ]
    uses_scores = ESTIMATORS[estimator].uses_scores
    assert any(seen.get((shim.id, name)) for name in scorer) == uses_scores
    for model in (embedder, output):
        ids = {node.id for node in model.walk()}
        assert any(found for (owner_id, _), found in seen.items() if owner_id in ids)
    asked = ["", *texts, "so", ""]
    expected = [doc.cats for doc in nlp.pipe(map(make_doc, asked))]
    again = type(nlp).from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert [doc.cats for doc in again.pipe(map(make_doc, asked))] == expected
    assert all(torch.isfinite(torch.tensor(list(cats.values()))).all() for cats in expected)


@pytest.mark.parametrize("structure, estimator", itertools.product(STRUCTURES, ESTIMATORS))
def test_components_train_or_refuse(structure: str, estimator: str) -> None:
    if parts_for(structure) is None:
        pytest.skip("no scorer and composer for it yet")
    chosen, gradient = STRUCTURES[structure](), registered.make_estimator(estimator)
    invalid = not registered.fits(gradient, chosen)
    for build, needs in ((encoder, gradient.needs_loss), (owner, False)):
        if invalid or needs:
            other = chosen.name if invalid else "LatentTok2Vec"
            pair = ".*".join(map(re.escape, (gradient.name, other)))
            with pytest.raises(IncompatiblePair, match=pair):
                build(structure, estimator)
        else:
            check_component(build(structure, estimator), structure, estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_two_texts_are_composed_with_every_estimator(estimator: str) -> None:
    gradient = registered.make_estimator(estimator)
    names = [f"spacy-latent.{name}.v1" for name in ("SpanningTree", "Bits", "OneOfN")]
    fitting = [name for name in names if registered.fits(gradient, STRUCTURES[name]())]
    if not fitting:
        pytest.skip("it works on no structure over one text")
    if gradient.name == "SumAndSample":
        # SumAndSample gives each text its own weights of samples, so that pairs are refused.
        with pytest.raises(LatentError):
            of_pairs(fitting[0], estimator)
        return
    check_component(of_pairs(fitting[0], estimator), fitting[0], estimator, of_two_texts=True)
