"""Notes of ``spacy latent debug`` on settings that scored worse than others in benchmarks.

Tests of the configs that get the notes, and of their figures, which agree with the results.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from spacy.language import Language
from spacy.util import load_config, load_model_from_config

from benchmarks.pages import FOLDER
from benchmarks.raw_results import RAW, read
from spacy_latent.evaluation.measured_settings import EVIDENCE
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.inspection import latent_components
from tests.repository.recipes import RECIPES
from tests.repository.test_recipes import OVER_A_PARSER, example, small

# All other configs get no note: they have the better setting, or were not compared.
EXPECTED = {
    "listops_perturb_and_map": {"single-trees-first"},
    "listops_straight_through": {"single-trees-first"},
    "sentiment_perturb_and_parse": {"single-trees-first"},
    "sentiment_perturb_and_map": {"single-trees-first"},
    "sentiment_straight_through": {"single-trees-first"},
    "demo_spigot": {"spigot-of-trees"},
    "listops_spigot": {"spigot-of-trees"},
    "sentiment_spigot": {"spigot-of-trees"},
    "sentiment_spigot_relaxed": {"spigot-of-trees"},
    "rationale_moving_average": {"sampled-word"},
    "rationale_learned_constant": {"sampled-word"},
    "rationale_network_baseline": {"sampled-word"},
}
# The figures of each note: the section of the results, the beginning of the row, and texts in it.
FIGURES: dict[str, list[tuple[str, str, list[str]]]] = {
    "fast-scorer": [
        ("the scorer's learning rate", "| 3.0 |", ["12.2"]),
        ("the scorer's learning rate", "| 0.3 |", ["100.0"]),
        ("the scorer's learning rate", "| 1.0 |", ["100.0"]),
    ],
    "single-trees-first": [
        ("Learning: ListOps", "| `listops_straight_through`", ["mean 44.8"]),
        ("Learning: ListOps", "| `listops_perturb_and_map`", ["mean 34.7"]),
        ("Learning: ListOps", "| `listops_score_function`", ["mean 100.0"]),
        ("Learning: the demo", "| `demo_straight_through`", ["mean 99.1"]),
        ("Learning: the demo", "| `demo_perturb_and_map`", ["mean 100.0"]),
    ],
    "spigot-of-trees": [
        ("Learning: the demo", "| `demo_spigot`", ["33.6"]),
        ("Learning: ListOps", "| `listops_spigot`", ["3.7"]),
        ("Learning: ListOps", "| `listops_score_function`", ["mean 100.0"]),
        ("Learning: the demo", "| `demo`: score function |", ["mean 100.0"]),
    ],
    "sampled-word": [
        ("Learning: rationales", "| `rationale_moving_average`", ["mean 62.7", "1.1"]),
        ("Learning: rationales", "| `rationale_learned_constant`", ["mean 61.4", "1.0"]),
        ("Learning: rationales", "| `rationale_network_baseline`", ["mean 63.9", "1.1"]),
        ("Learning: rationales", "| `rationale_one_word`", ["mean 65.6"]),
        ("Learning: rationales", "| `rationale_gumbel_rao`", ["mean 67.6"]),
        ("Learning: rationales", "| `rationale_dense_marginalization`", ["mean 68.3", "2.5"]),
    ],
    "small-target-step": [
        ("I-MLE's λ", "| 0.1 |", ["70.5"]),
        ("I-MLE's λ", "| 1.0 |", ["72.0 to 74.3"]),
    ],
}


def made(stem: str, **settings: Any) -> Language:
    """Return the initialized pipeline of a config, with small tables of embeddings.

    Args:
        settings: Changed settings of the classifier's model.
    """
    (path,) = (path for path in RECIPES if path.stem == stem)
    place = "components.latent_textcat.model."
    overrides = {**small(path), **{place + key: value for key, value in settings.items()}}
    nlp = load_model_from_config(load_config(path, overrides=overrides), auto_fill=True)
    examples = [
        example(nlp, "good", "Ada likes it", "Bob likes a film"),
        example(nlp, "bad", "Eve hates a film so", "Ada hates it"),
    ]
    nlp.initialize(lambda: examples)
    return nlp


def noted(nlp: Language) -> dict[str, str]:
    found = [finding for finding in find_traps(nlp) if finding.code in EVIDENCE]
    assert all(finding.level == "note" for finding in found)
    return {finding.code: finding.text for finding in found}


@pytest.mark.parametrize(
    "stem",
    [
        path.stem
        for path in RECIPES
        if not re.search("_transformer|_encoder$", path.stem) and path not in OVER_A_PARSER
    ],
)
def test_what_is_noted_of_each_config(stem: str) -> None:
    nlp = made(stem)
    assert set(noted(nlp)) == EXPECTED.get(stem, set())
    if latent_components(nlp):
        assert not [finding for finding in find_traps(nlp) if finding.level != "note"]


def test_a_scorer_that_is_too_fast() -> None:
    rate = "scorer_learn_rate"
    assert "scorer_learn_rate is 3" in noted(made("demo", **{rate: 3.0}))["fast-scorer"]
    assert noted(made("demo", **{rate: 2.0})) == {}
    # This config begins with given trees, and scores well at this rate.
    assert noted(made("listops_score_function", **{rate: 3.0})) == {}
    # These settings were not measured.
    assert noted(made("demo_marginals", **{rate: 3.0})) == {}
    assert noted(made("demo_gold_reward", **{rate: 3.0})) == {}


def test_single_trees_that_marginals_did_not_precede() -> None:
    hard = {"@misc": "spacy-latent.StraightThrough.v1", "backward": "marginals"}
    first = noted(made("demo", estimator=hard))
    assert first.keys() == {"single-trees-first"}
    assert first["single-trees-first"].startswith("latent_textcat: StraightThrough learns the tree")
    assert noted(made("demo_straight_through")) == {}


def test_spigot_of_trees_that_have_gold_heads_is_not_noted() -> None:
    (path,) = (path for path in RECIPES if path.stem == "tree_ewt_spigot_parser")
    unsupervised = {**small(path), "components.latent_encoder.supervision": 0.0}
    nlp = load_model_from_config(load_config(path, overrides=unsupervised), auto_fill=True)
    nlp.initialize(lambda: [example(nlp, "good", "Ada likes it", "Bob likes a film")])
    assert noted(nlp).keys() == {"spigot-of-trees"}
    supervised = load_model_from_config(load_config(path, overrides=small(path)), auto_fill=True)
    supervised.initialize(lambda: [example(supervised, "good", "Ada likes it", "Bob likes a film")])
    assert noted(supervised) == {}


def test_a_small_step_of_implicit_mle() -> None:
    step = "estimator.target_step"
    config = "rationale_learning_to_explain"
    assert (
        "target_step of ImplicitMLE is 0.1"
        in noted(made(config, **{step: 0.1}))["small-target-step"]
    )
    assert noted(made(config, **{step: 0.3})) == {}


def test_one_word_that_was_sampled() -> None:
    baseline = {"@misc": "spacy-latent.LeaveOneOut.v1"}
    other = {"estimator.control_variate": baseline, "estimator.num_samples": 2}
    assert noted(made("rationale_moving_average", **other)) == {}
    text = noted(made("rationale_moving_average"))["sampled-word"]
    assert "ScoreFunction with MovingAverage" in text


@pytest.mark.parametrize("code", sorted(EVIDENCE))
def test_figures_are_those_of_the_results(code: str) -> None:
    pages = sorted(FOLDER.glob("*.md"))
    results = "\n".join(page.read_text(encoding="utf8") for page in pages)
    looked_up = set()
    for section, row, figures in FIGURES[code]:
        start = re.search(rf"^##+ {section}", results, re.MULTILINE)
        assert start is not None, section
        own = re.split(r"^##", results[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
        (line,) = (line for line in own.splitlines() if line.startswith(row))
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", line), (figure, line)
            looked_up |= set(re.findall(r"\d+\.\d", figure))
    if code == "fast-scorer":
        looked_up |= earlier_rates()
    # The figures 0.3 and 0.1 are values of settings.
    assert set(re.findall(r"\d+\.\d", EVIDENCE[code])) - {"0.3", "0.1"} <= looked_up


def earlier_rates() -> set[str]:
    """Return scores of the demo's earlier config at depth 6, for two rates of the scorer.

    Raw results keep such rows after newer ones replace them in the tables.
    """
    settings = "components.latent_textcat.model.scorer_learn_rate"
    digests = {3.0: "c4d62ad74a31ad4d", 0.3: "defb8482f88f5fa9"}
    return {
        f"{100 * row['scores']['whole depth6']:.1f}"
        for row in read(RAW / "demo.jsonl")
        for rate, digest in digests.items()
        if row["digest"] == digest and row["settings"][settings] == rate
    }
