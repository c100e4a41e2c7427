"""Each sentence is there exactly when its number says so."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spacy_latent.analysis.verdicts import percent, points, trivial, verdicts

USED = {"before": 0.9, "after": 0.5, "drop": 0.4, "low": 0.35, "high": 0.45, "before_low": 0.88}


def figures(kind: str = "heads", **changes: Any) -> dict[str, Any]:
    plural = {"heads": "trees", "spans": "trees", "items": "selections"}.get(kind, "structures")
    base = {
        "component": "encoder",
        "kind": kind,
        "plural": plural,
        "statistics": {},
        "flat_share": 0.4,
        "controls": {"left-branching": 0.1, "right-branching": 0.3, "flat": 0.2, "nearest": 0.6},
        "by_length": (0.4, 5000),
        "random": {"accuracy": {**USED, "docs": 500}},
    }
    return {**base, **changes}


def codes(found: dict[str, Any]) -> list[str]:
    return [verdict.code for verdict in verdicts(found)]


def mean(name: str, value: float) -> dict[str, Any]:
    return {"statistics": {name: {"mean": value}}}


def drop(drop: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    row = {**USED, "drop": drop, "low": low, "high": high, "docs": 500, **more}
    return {"random": {"accuracy": row}}


def test_a_tree_that_is_used_has_no_warning() -> None:
    found = verdicts(figures())
    assert [verdict.code for verdict in found] == ["not-trivial", "used"]
    assert not trivial(found) and found[0].level == "good"
    assert found[1].text == (
        "Random trees cost 40.0 points of accuracy (95 % interval 35.0 to 45.0): "
        "the task uses the trees."
    )


@pytest.mark.parametrize(
    "changes, code, words",
    [
        ({"flat_share": 0.94}, "flat", "94 % of the tokens are roots or hang on one"),
        ({"controls": {"left-branching": 0.93}}, "like-left-branching", "on the token after"),
        ({"controls": {"right-branching": 0.97}}, "like-right-branching", "97 % of the tokens"),
        ({"controls": {"flat": 0.97}}, "like-flat", "hang on the first one"),
        ({"controls": {"balanced": 0.91}}, "like-balanced", "looks at no word"),
        ({"controls": {"nearest": 0.99}}, "like-nearest", "like the nearest-head control"),
        ({"by_length": (0.97, 500)}, "by-length", "do not look at the words: 97 %"),
        (mean("relative entropy", 0.95), "undecided-scores", "hardly prefer any"),
        (drop(0.003, -0.002, 0.008), "ignored", "only 0.3 points of accuracy (95 % interval −0.2"),
        (drop(0.004, -0.01, 0.018), "no-sign-of-use", "no sign that the task uses the trees"),
        (
            drop(0.4, 0.3, 0.5, before_low=0.5, chance={"label": "yes", "share": 0.52}),
            "chance",
            "always answering “yes” (52 %)",
        ),
    ],
)
def test_one_number_one_warning(changes: dict[str, Any], code: str, words: str) -> None:
    found = verdicts(figures(**changes))
    warnings = [verdict for verdict in found if verdict.level == "warning"]
    assert [verdict.code for verdict in warnings] == [code] and trivial(found)
    assert found[0] is warnings[0] and words in warnings[0].text
    assert "not-trivial" not in codes(figures(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"flat_share": 0.89},
        {"controls": {"left-branching": 0.89, "nearest": 0.89, "balanced": 0.89}},
        {"by_length": (0.94, 500)},
        {"by_length": (0.99, 60)},
        {"by_length": (math.nan, 0)},
        mean("relative entropy", 0.89),
        drop(0.05, 0.02, 0.08),
        drop(0.05, 0.001, 0.08),
        drop(0.05, -0.02, 0.12),
        drop(math.nan, math.nan, math.nan),
        drop(0.4, 0.3, 0.5, before_low=0.55, chance={"label": "yes", "share": 0.52}),
    ],
)
def test_no_warning_just_below(changes: dict[str, Any]) -> None:
    assert not trivial(verdicts(figures(**changes)))


@pytest.mark.parametrize(
    "kind, changes, code",
    [
        ("items", mean("rate", 0.99), "all-chosen"),
        ("items", mean("rate", 0.01), "none-chosen"),
        ("tags", {"tag_shares": {"0": 0.04, "3": 0.96}}, "one-tag"),
        ("cells", mean("diagonal", 0.95), "diagonal"),
        ("segments", mean("segment length", 1.0), "single-tokens"),
        ("spans", {"controls": {"left-branching": 0.95}}, "like-left-branching"),
    ],
)
def test_other_kinds(kind: str, changes: dict[str, Any], code: str) -> None:
    base = {"controls": {}, "flat_share": math.nan}
    assert codes(figures(kind, **{**base, **changes}))[0] == code
    assert not trivial(verdicts(figures(kind, **base)))


def test_a_chain_is_said_once() -> None:
    chain = {"right-branching": 1.0, "nearest": 1.0, "flat": 0.1}
    assert codes(figures(controls=chain))[0] == "like-right-branching"
    assert codes(figures(controls=chain)).count("like-nearest") == 0
    flat = codes(figures(flat_share=1.0, controls={"flat": 1.0, "nearest": 1.0}))
    assert flat[0] == "flat" and "like-flat" not in flat and "like-nearest" not in flat


def test_what_was_not_tested_is_not_claimed() -> None:
    (only,) = verdicts(figures(random={}))
    assert only.level == "note" and "was not tested" in only.text
    found = verdicts(figures(**drop(0.05, -0.02, 0.12)))
    assert found[0].level == "note" and "cannot be told" in found[0].text
    found = verdicts(figures(**drop(0.006, 0.001, 0.011)))
    assert [verdict.code for verdict in found] == ["not-trivial", "used-little"]
    assert found[0].level == "note" and found[0].text.endswith("the task hardly needs them.")


def test_references_seeds_and_mixtures() -> None:
    rows = {"encoder": {"directed": [0.9, 0.88, 0.92]}, "flat": {"directed": [0.5, 0.48, 0.52]}}
    reference = {"key": "directed", "rows": rows}
    assert "beyond-controls" in codes(figures(reference=reference))
    rows["flat"]["directed"] = [0.89, 0.87, 0.91]
    assert "no-better-than-controls" in codes(figures(reference=reference))
    others = {"names": ["b"], "mean": 0.3, "chance": 0.2}
    assert "seeds-differ" in codes(figures(others=others))
    assert "seeds-agree" in codes(figures(others={**others, "mean": 0.8}))
    assert "mixture" in codes(figures(**drop(0.4, 0.35, 0.45, mixture=0.97)))
    assert "few" in codes(figures(**drop(0.4, 0.35, 0.45, docs=12)))


def test_numbers_are_never_rounded_to_certainty() -> None:
    assert [percent(x) for x in (0.0, 0.0001, 0.003, 0.937, 0.9996, 1.0)] == [
        "0 %",
        "under 0.1 %",
        "0.3 %",
        "94 %",
        "over 99.9 %",
        "100 %",
    ]
    assert points(-0.002) == "−0.2" and points(-0.0001) == "0.0" and points(0.593) == "59.3"
