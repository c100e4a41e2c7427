"""Settings that must be whole numbers or flags refuse all other values, in every registered class.

Other tests are of the wording of messages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.util import registry

from spacy_latent.analysis import (
    build_attachment_scorer_v1,
    build_attachment_scorer_v2,
    build_tree_scorer_v1,
)
from spacy_latent.corpora.parsed_once import read_parsed_once_v1
from spacy_latent.errors import InvalidScores, LatentError, check_whole, number_of
from spacy_latent.estimators.given_trees import GivenTrees
from spacy_latent.estimators.sinkhorn import Sinkhorn
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.models.category_constraints import CategoryConstraints
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.training.structure_logger import build_structure_logger_v1
from tests.matrix import registered

WHOLE = {
    "beam_size",
    "budget",
    "counters",
    "hidden_width",
    "inner_steps",
    "k",
    "layers",
    "max_arc_length",
    "max_length",
    "max_structures",
    "num_redrawn",
    "num_samples",
    "num_tags",
    "output_width",
    "places",
    "rounds",
    "runs",
    "stacks",
    "window",
}
MADE: dict[str, Callable[..., Any]] = {
    **registered.structures(),
    **registered.estimators(),
    **registered.scorers(),
    **registered.composers(),
    **registered.priors(),
}
SETTINGS = [
    (name, setting)
    for name, make in MADE.items()
    for setting in inspect.signature(make).parameters
    if setting in WHOLE
]


@pytest.mark.parametrize("name, setting", SETTINGS)
def test_what_is_no_whole_number_is_refused_where_it_is_given(name: str, setting: str) -> None:
    for value in (0, 1.5, True, float("nan"), 10**30):
        with pytest.raises(LatentError, match=re.escape(f"{setting} is {value}")):
            MADE[name](**{setting: value})


# Settings with memory for each of them. Those of KOfN and Runs are bounded by the words.
COUNTS = [
    (name, setting)
    for name, setting in SETTINGS
    if setting in {"beam_size", "num_samples", "num_redrawn"}
    or (setting == "k" and name in registered.estimators())
]


@pytest.mark.parametrize("name, setting", [*COUNTS, ("spacy-latent.CellScorer.v1", "neighbours")])
def test_more_than_memory_holds_is_refused_where_it_is_given(name: str, setting: str) -> None:
    with pytest.raises(LatentError, match=re.escape(f"{setting} is 1000000000")):
        MADE[name](**{setting: 10**9})


def test_all_names_occur() -> None:
    assert {setting for _, setting in SETTINGS} == WHOLE


NUMBERS = [
    (name, setting)
    for name, make in {**MADE, **registered.control_variates()}.items()
    for setting, given in inspect.signature(make).parameters.items()
    if isinstance(given.default, float)
]


@pytest.mark.parametrize("name, setting", NUMBERS)
def test_what_is_no_finite_number_is_refused_where_it_is_given(name: str, setting: str) -> None:
    """A config checks no types of settings of classes, and takes NaN and infinity for any."""
    make = {**MADE, **registered.control_variates()}[name]
    parameters = inspect.signature(make).parameters
    # Some are the scale of noise that is there only by another setting.
    others = {"noise": "gumbel"} if setting == "scale" and "noise" in parameters else {}
    for value in (float("nan"), float("inf"), -float("inf"), "1", "", [0.5], True):
        if setting == "clip" and value == float("inf"):
            continue  # clips nothing
        with pytest.raises(LatentError, match=re.escape(f"{setting} is {value!r}")):
            make(**others, **{setting: value})


def test_numbers_of_numpy_are_numbers() -> None:
    assert {"clip", "decay", "margin", "rate", "step_size"} <= {one for _, one in NUMBERS}
    for number in (np.float32(0.5), np.float64(0.5), np.int64(1), 1):
        assert Sinkhorn(temperature=number).temperature == number  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda texts: build_attachment_scorer_v1(ignore=texts),
        lambda texts: build_attachment_scorer_v2(ignore_labels=texts),
        lambda texts: build_tree_scorer_v1(ignore_labels=texts),
        lambda texts: build_tree_scorer_v1(ignore=texts),
        lambda texts: CategoryConstraints(exclusive=texts),
        lambda texts: CategoryConstraints(implied=[texts]),
        lambda texts: GivenTrees("nearest", words=texts),
        lambda texts: build_structure_logger_v1(sentences=texts),
        lambda texts: build_structure_logger_v1(components=texts),
        lambda texts: build_structure_logger_v1(columns=texts),
        lambda texts: read_parsed_once_v1(__file__, components=texts),
    ],
)
def test_a_text_in_place_of_a_list_is_refused_where_it_is_given(make: Callable[..., Any]) -> None:
    """Otherwise it would count as a list of its letters."""
    for value in ("punct", {"punct": 1}, 1, [["punct"], 1]):
        with pytest.raises(LatentError):
            make(value)


FLAGS = [
    (name, setting)
    for name, make in {**registered.structures(), **registered.estimators()}.items()
    for setting, given in inspect.signature(make).parameters.items()
    if isinstance(given.default, bool)
]


@pytest.mark.parametrize("name, setting", FLAGS)
def test_what_is_neither_true_nor_false_is_refused_where_it_is_given(
    name: str, setting: str
) -> None:
    """spaCy reads ``False`` on a command line as text, which would count as true."""
    for value in ("False", "no", None, 2):
        with pytest.raises(LatentError, match=re.escape(f"{setting} is {value!r}")):
            MADE[name](**{setting: value})


def test_flags_occur_and_may_be_of_numpy() -> None:
    assert {"exactly", "marginalize", "single_root", "unaligned"} <= {one for _, one in FLAGS}
    assert not KOfN(2, np.False_).exactly  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert KOfN(np.int64(2)).k == 2  # type: ignore[arg-type]
    assert TraceRelax(np.int64(2)).num_samples == 2  # type: ignore[arg-type]


def test_what_was_expected_is_said() -> None:
    with pytest.raises(InvalidScores, match=r"^It: size is '3'; .* number of at least 2, or null"):
        check_whole("It", 2, True, InvalidScores, size="3")
    check_whole("It", 2, True, size=None)
    with pytest.raises(LatentError, match=r"size is None; expected a whole number of at least 0\."):
        check_whole("It", 0, many=0, size=None)


@pytest.mark.parametrize(
    ("number", "noun", "form", "said"),
    [
        (1, "text", "", "1 text"),
        (0, "text", "", "0 texts"),
        (1, "entity", "", "1 entity"),
        (2, "entity", "", "2 entities"),
        (2, "day", "", "2 days"),
        (12345, "doc", ",", "12,345 docs"),
        (1.0, "step", "g", "1 step"),
        (2, "gold arc", "", "2 gold arcs"),
    ],
)
def test_one_thing_is_not_called_several(number: float, noun: str, form: str, said: str) -> None:
    assert number_of(number, noun, form) == said


SCHEDULE = {"@schedules": "constant.v1", "rate": 0.5}
EMBEDDER = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 8,
    "attrs": ["NORM"],
    "rows": [10],
    "include_static_vectors": False,
}
# Settings of numbers that may follow no schedule.
NO_SCHEDULES = [
    ("CrfTagger.v2", "gain"),
    ("DocumentCode.v1", "size"),
    ("DocumentCode.v1", "code_width"),
    ("LatentTok2Vec.v1", "dropout"),
    ("LatentTok2Vec.v1", "entropy_weight"),
    ("LatentTok2Vec.v1", "width"),
    ("RationaleTextCat.v1", "transition_cost"),
    ("TreeSpanClassifier.v1", "hidden_width"),
    ("TreeSpanClassifier.v1", "max_width"),
    ("BagOfWords.v1", "size"),
    ("SentenceSpans.v1", "max_length"),
    ("EvidenceBound.v1", "learn_rate"),
    ("StructureLogger.v1", "limit"),
    ("StructureLogger.v1", "frames"),
]


@pytest.mark.parametrize("name, setting", NO_SCHEDULES)
def test_a_block_in_the_place_of_a_number_is_refused_with_its_setting(
    name: str, setting: str
) -> None:
    """A config resolves a block first, and does not check the type of the result."""
    name = f"spacy-latent.{name}"
    kind = next(kind for kind in ("architectures", "misc", "loggers") if registry.has(kind, name))
    block: dict[str, Any] = {f"@{kind}": name, setting: SCHEDULE}
    for given, value in (
        ("tok2vec", EMBEDDER),
        ("embed", EMBEDDER),
        ("exclusive_classes", True),
        ("decoder", {"@misc": "spacy-latent.BagOfWords.v1"}),
    ):
        parameter = inspect.signature(registry.get(kind, name)).parameters.get(given)
        if parameter is not None and parameter.default is inspect.Parameter.empty:
            block[given] = value
    with pytest.raises(LatentError, match=f"{setting} is "):
        registry.resolve({"block": block})


@pytest.mark.parametrize(
    "setting, value",
    [("loss", "hinge"), ("margin", -1.0), ("noise", 0.0), ("samples", 0)],
)
def test_settings_of_supervision_are_called_as_in_the_config(setting: str, value: object) -> None:
    name = f"supervision_{setting}"
    for given in (value, SCHEDULE):
        with pytest.raises(LatentError, match=f"{name} is "):
            spacy.blank("en").add_pipe("latent_encoder", config={name: given})
