"""spaCy's classifier over pooled vectors, with a correct treatment of empty texts."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from benchmarks.config_digest import digest_of
from tests.pipeline.small_pipelines import TOK2VEC, learn

TEXTS = ["a good film", "bad", "a very bad film indeed"]
CONFIG = Path(__file__).parents[2] / "configs" / "sentiment_marginals.cfg"
POOLINGS = [flags for flags in product((True, False), repeat=4) if any(flags)]


def made(architecture: str, pooled: tuple[bool, ...], factory: str = "textcat") -> Language:
    nlp = spacy.blank("en")
    flags = zip(("first", "last", "max", "mean"), pooled)
    model = {
        "@architectures": f"{architecture}.TextCatReduce.v1",
        "exclusive_classes": factory == "textcat",
        **{f"use_reduce_{which}": flag for which, flag in flags},
        "tok2vec": copy.deepcopy(TOK2VEC),
    }
    textcat: Any = nlp.add_pipe(factory, name="textcat", config={"model": model})
    for label in ("good", "bad"):
        textcat.add_label(label)
    return nlp


def examples(nlp: Language, texts: list[str]) -> list[Example]:
    cats = [{"good": float("good" in text), "bad": float("good" not in text)} for text in texts]
    return [Example.from_dict(nlp.make_doc(text), {"cats": c}) for text, c in zip(texts, cats)]


def trained(nlp: Language, texts: list[str]) -> Language:
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples(nlp, TEXTS))
    learn(nlp, examples(nlp, texts), 3, optimizer)
    return nlp


def weights(nlp: Language) -> list[np.ndarray]:
    model = nlp.get_pipe("textcat").model  # type: ignore[attr-defined]
    return [node.get_param(name) for node in model.walk() for name in node.param_names]


@pytest.mark.parametrize("factory", ["textcat", "textcat_multilabel"])
@pytest.mark.parametrize("pooled", POOLINGS)
def test_it_is_spacys_own_where_texts_have_words(pooled: tuple[bool, ...], factory: str) -> None:
    own, stock = (trained(made(by, pooled, factory), TEXTS) for by in ("spacy-latent", "spacy"))
    assert all(map(np.array_equal, weights(own), weights(stock)))
    for one, other in zip(own.pipe(TEXTS), stock.pipe(TEXTS)):
        assert one.cats == other.cats


@pytest.mark.parametrize("pooled", POOLINGS)
def test_an_empty_text_changes_nothing_for_the_others(
    pooled: tuple[bool, ...], tmp_path: Path
) -> None:
    nlp = trained(made("spacy-latent", pooled), TEXTS)
    alone = [doc.cats for doc in nlp.pipe(TEXTS)]
    mixed = [doc.cats for doc in nlp.pipe(["", TEXTS[0], "", *TEXTS[1:], ""])]
    assert [mixed[1], *mixed[3:5]] == alone
    assert mixed[0] == mixed[2] == mixed[5]
    assert sum(mixed[0].values()) == pytest.approx(1)
    nlp.to_disk(tmp_path)
    assert [doc.cats for doc in spacy.load(tmp_path).pipe(["", *TEXTS])] == [mixed[0], *alone]


def test_the_gradient_of_an_empty_text_reaches_the_head_alone() -> None:
    """Empty texts change no gradient of a batch, except the gradient of the output's bias."""
    texts = ["", *TEXTS, ""]
    pooled = (True, True, True, False)
    nlp = made("spacy-latent", pooled)
    nlp.initialize(lambda: examples(nlp, TEXTS))
    textcat: Any = nlp.get_pipe("textcat")

    def gradients(texts: list[str]) -> dict[str, np.ndarray]:
        docs = [nlp.make_doc(text) for text in texts]
        _, backpropagate = textcat.model.begin_update(docs)
        gradient = np.array([[len(doc), 1.0] for doc in docs], dtype="float32")
        backpropagate(gradient)
        found = {}
        for index, node in enumerate(textcat.model.walk()):
            for name in node.param_names:
                if node.has_grad(name):
                    found[f"{index} {node.name} {name}"] = node.get_grad(name).copy()
                    node.set_grad(name, 0 * node.get_grad(name))
        return found

    alone, mixed = gradients(TEXTS), gradients(texts)
    assert alone.keys() == mixed.keys()
    differ = {key for key in alone if not np.allclose(alone[key], mixed[key], atol=1e-6)}
    assert len(differ) == 1 and differ.pop().endswith(" b")


def test_labels_may_be_added() -> None:
    nlp = trained(made("spacy-latent", (True, True, True, True)), TEXTS)
    nlp.get_pipe("textcat").add_label("new")  # type: ignore[attr-defined]
    assert nlp("").cats.keys() == nlp(TEXTS[0]).cats.keys() == {"good", "bad", "new"}


def test_raw_results_are_of_both(tmp_path: Path) -> None:
    stock = tmp_path / "stock.cfg"
    text = CONFIG.read_text(encoding="utf8")
    assert "spacy-latent.TextCatReduce.v1" in text
    stock.write_text(
        text.replace("spacy-latent.TextCatReduce", "spacy.TextCatReduce"), encoding="utf8"
    )
    assert digest_of(stock) == digest_of(CONFIG)
