"""Verdicts of a report: each sentence is there if and only if the figures support it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from spacy_latent.analysis.figures import (
    Chance,
    ControlScore,
    LayerFigures,
    OtherModels,
    RandomStructures,
    ReferenceFigures,
    Statistic,
    Trained,
    TrainedControl,
    TrainedScore,
)
from spacy_latent.analysis.verdicts import (
    answer,
    headline,
    percent,
    points,
    trivial,
    verdicts,
)

USED = RandomStructures(
    before=0.9, after=0.5, drop=0.4, low=0.35, high=0.45, before_low=0.88, docs=500, draws=1
)


def figures(kind: str = "heads", **changes: Any) -> LayerFigures:
    plural = {"heads": "trees", "spans": "trees", "items": "selections"}.get(kind, "structures")
    base = LayerFigures(
        component="encoder",
        structure="Some()",
        estimator="Some",
        scorer="Some",
        composer="Some",
        kind=kind,
        plural=plural,
        constraint="",
        spans=500,
        flat_share=0.4,
        controls={"left-branching": 0.1, "right-branching": 0.3, "flat": 0.2, "nearest": 0.6},
        by_length=(0.4, 5000),
        random={"accuracy": USED},
    )
    return replace(base, **changes)


def codes(found: LayerFigures) -> list[str]:
    return [verdict.code for verdict in verdicts(found)]


def mean(name: str, value: float) -> dict[str, Any]:
    row = Statistic(value, [value] * 3, value, value, [500], 500)
    return {"statistics": {name: row}}


def drop(drop: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"random": {"accuracy": replace(USED, drop=drop, low=low, high=high, **more)}}


def trained(
    *rows: tuple[str, float, float, float], spread: float = math.nan, **more: list[str]
) -> dict[str, Any]:
    """Return figures of trained controls.

    Args:
        rows: Name of each control, its difference, and the bounds of the difference's interval.
        spread: Two standard deviations between trainings.
        more: Further fields of the controls.
    """
    what = "the same model trained with random trees"
    control = replace(TrainedControl("random trees", what, [], []), **more)
    scores = {
        name: ControlScore(
            value=0.9 - difference,
            low=0.88 - difference,
            high=0.92 - difference,
            seeds=[0.9 - difference],
            difference=(difference, low, high),
            spread=spread,
            docs=500,
        )
        for name, difference, low, high in rows
    }
    row = TrainedScore(value=0.9, low=0.88, high=0.92, seeds=[0.9], controls=scores)
    controls = {name: replace(control) for name, *_ in rows}
    return {"trained": Trained(controls, {"accuracy": row})}


def reference(own: float, width: float = 0.02, docs: int = 500, **rows: float) -> dict[str, Any]:
    """Return the agreement of the structures and of controls with the reference."""
    everything = {"encoder": own, **rows}
    return {
        "reference": ReferenceFigures(
            key="directed",
            of="heads",
            docs=docs,
            tokens=10 * docs,
            rows={name: {"directed": (v, v - width, v + width)} for name, v in everything.items()},
            ahead={n: (own - v, own - v - width, own - v + width) for n, v in rows.items()},
        )
    }


def headline_of(found: LayerFigures) -> str:
    return headline(verdicts(found), found)


def test_what_random_trees_cost_is_no_sign_of_a_use() -> None:
    """A composer is adapted to its own trees, so random ones cost much even without any use."""
    made = figures()
    found = verdicts(made)
    assert [verdict.code for verdict in found] == ["untested", "co-adapted"]
    assert not trivial(found) and {verdict.level for verdict in found} == {"note"}
    assert found[1].text == (
        "Random trees in their place, at prediction only, cost 40.0 points of accuracy (95 % "
        "interval 35.0 to 45.0): the composer is adapted to its own trees (co-adaptation). This "
        "shows neither that they are right nor that they help."
    )
    assert headline(found, made) == "Whether the trees help was not tested"
    assert "spacy latent control CONFIG --trees random --output DIRECTORY" in found[0].text
    assert "--control DIRECTORY" in found[0].text and answer(found) == "Not tested"
    assert not any("triviality" in verdict.text for verdict in found)


def test_a_control_without_a_score_is_not_asked_for_again() -> None:
    made = figures(**trained(("random", 0.05, 0.03, 0.07)))
    made = replace(made, trained=replace(made.trained, measures={}))
    (told,) = [verdict for verdict in verdicts(made) if verdict.code == "untested"]
    assert "--control" not in told.text and answer(verdicts(made)) == "Not tested"


@pytest.mark.parametrize(
    "row, code, words, said",
    [
        (("random", 0.05, 0.03, 0.07), "helps", "5.0 points more", "Yes"),
        (("random", 0.005, 0.001, 0.02), "helps-little", "help a little", "A little"),
        (("random", 0.004, -0.002, 0.009), "no-better-than-trained", "do not help", "No"),
        (("random", 0.005, -0.01, 0.02), "no-better-than-trained", "do not help", "No"),
        (("random", -0.05, -0.08, -0.02), "no-better-than-trained", "5.0 points less", "No"),
        # The interval leaves open that the trees help by 10 points.
        (("random", -0.05, -0.2, 0.1), "trained-undecided", "500 texts", "Undecided"),
        (("random", 0.05, -0.05, 0.15), "trained-undecided", "500 texts", "Undecided"),
    ],
)
def test_a_trained_control_is_the_answer(
    row: tuple[str, float, float, float], code: str, words: str, said: str
) -> None:
    made = figures(**trained(row))
    found = verdicts(made)
    (told,) = [verdict for verdict in found if verdict.code == code]
    assert words in told.text and answer(found) == said
    assert "from one training of each" in told.text and "untested" not in codes(made)
    assert trivial(found) == (said == "No")
    if said == "No":
        assert found[0] is told
        assert headline(found, made) == "No better than a control: the trees do not help"
        row = made.trained.measures["accuracy"]
        of_f1 = replace(made, trained=replace(made.trained, measures={"F1 of the labels": row}))
        assert "control: F1 of the labels is" in verdicts(of_f1)[0].text
    good = any("No sign of triviality" in verdict.text for verdict in found)
    assert good == (said == "Yes") == (headline(found, made) == "The trees help")


def test_the_answer_agrees_with_a_headline_that_the_task_ignores_the_trees() -> None:
    made = figures(
        **trained(("random", 0.05, -0.05, 0.15)), **drop(0.003, -0.002, 0.008, before_low=0.9)
    )
    found = verdicts(made)
    assert {"trained-undecided", "ignored"} <= {verdict.code for verdict in found}
    assert headline(found, made) == "Predictions ignore the trees"
    assert answer(found).startswith("No sign of it")


def beside(
    own: float, other: float, low: float, high: float, docs: int, differ: int | None = None
) -> LayerFigures:
    """Return figures of a model and a control.

    Args:
        own, other: Scores of the model and of the control.
        low, high: Interval of the difference.
        differ: Number of texts with different predictions.
    """
    made = figures(**trained(("random", own - other, low, high)))
    row = made.trained.measures["accuracy"]
    control = replace(row.controls["random"], value=other, docs=docs, differ=differ)
    row = replace(row, value=own, controls={"random": control})
    made.trained = Trained(made.trained.controls, {"accuracy": row})
    return made


def told(found: LayerFigures, code: str) -> str:
    (verdict,) = [verdict for verdict in verdicts(found) if verdict.code == code]
    return verdict.text


@pytest.mark.parametrize("docs", [15, 5000])
def test_where_both_are_right_everywhere_nothing_can_be_told(docs: int) -> None:
    made = beside(1.0, 1.0, -3 / docs, 3 / docs, docs, differ=0)
    said = told(made, "trained-undecided")
    assert "undecided" in said and f": both are right in all {docs} texts" in said
    assert answer(verdicts(made)) == "Undecided" and not trivial(verdicts(made))
    assert headline_of(made) == "Undecided whether the trees help"
    room = {"before": 1.0, "after": 1.0, "docs": docs, "differ": 0}
    made = figures(**drop(0.0, -3 / docs, 3 / docs, **room))
    said = told(made, "dependence-undecided")
    assert "undecided whether predictions depend on the trees: both are right in all" in said
    assert not trivial(verdicts(made)) and "ignored" not in codes(made)


def test_no_width_is_not_read_as_certainty() -> None:
    """An interval of width 0 from 15 texts with the same answers is undecided."""
    made = beside(0.8, 0.8, 0.0, 0.0, 15, differ=0)
    said = told(made, "trained-undecided")
    assert "both are equal in 15 texts, which are too few" in said
    assert "up to 20 % of all texts and in none of these" in said
    made = figures(**drop(0.0, 0.0, 0.0, docs=15, differ=0, before=0.8, after=0.8))
    assert "too few" in told(made, "dependence-undecided") and not trivial(verdicts(made))


@pytest.mark.parametrize(
    ("docs", "low", "high", "code"),
    [
        # The absence of a difference is concluded only from at least 50 texts.
        (49, -0.01, 0.005, "trained-undecided"),
        (50, -0.01, 0.005, "no-better-than-trained"),
        (49, -0.2, -0.01, "no-better-than-trained"),
        (49, 0.05, 0.3, "helps"),
        (10, 0.05, 0.3, "helps"),
        # Fewer than ten texts decide nothing.
        (9, 0.05, 0.3, "trained-undecided"),
        (9, -0.2, -0.01, "trained-undecided"),
    ],
)
def test_few_texts_tell_large_differences_alone(
    docs: int, low: float, high: float, code: str
) -> None:
    middle = (low + high) / 2
    made = beside(0.8, 0.8 - middle, low, high, docs)
    assert code in codes(made)
    if code == "trained-undecided":
        assert f"{docs} texts are too few. Give 50 or more" in told(made, code)
    change = drop(middle, low, high, docs=docs, before=0.8, after=0.8 - middle)
    undecided = "dependence-undecided" in codes(figures(**change))
    assert undecided == (docs < 10 or (docs < 50 and low <= 0))


@pytest.mark.parametrize(
    "changes",
    [
        {"flat_share": 1.0},
        reference(0.1, docs=1, nearest=0.7, random=0.9),
        reference(1.0, docs=1, nearest=0.0, random=0.0),
        drop(0.0, 0.0, 0.0, docs=1, differ=0),
        trained(("random", 1.0, 1.0, 1.0)),
        {},
    ],
)
def test_of_one_text_nothing_is_said_but_that_it_is_too_few(changes: dict[str, Any]) -> None:
    one = {"spans": 1, "docs": 1, "random": {"accuracy": replace(USED, docs=1)}}
    made = figures(**{**one, **changes})
    for row in made.trained.measures.values():
        row.controls = {name: replace(c, docs=1) for name, c in row.controls.items()}
    found = verdicts(made)
    assert found[0].text == (
        "There is only 1 text to evaluate on: that is too few. Give 50 or more, better hundreds."
    )
    assert {verdict.level for verdict in found} == {"note"} and not trivial(found)
    assert headline(found, made) == "Too few texts for any conclusion"
    assert answer(found) in ("Not tested", "Undecided")


def test_few_of_many_texts_may_have_references() -> None:
    made = figures(docs=500, **drop(0.4, 0.35, 0.45, docs=12))
    assert told(made, "few").startswith("Only 12 of 500 texts have references to evaluate on: they")
    assert "few" not in codes(figures(docs=50))
    # One long text has enough structures to describe them.
    made = figures(docs=1, flat_share=0.99, random={})
    assert codes(made)[0] == "flat" and "few" in codes(made)


def test_whether_the_task_is_learned_cannot_be_told_from_few_texts_or_one_label() -> None:
    chance = Chance("yes", 0.6)
    low = {"before": 0.7, "before_low": 0.5, "chance": chance}
    assert "chance" in codes(figures(**drop(0.4, 0.3, 0.5, docs=500, **low)))
    said = told(figures(**drop(0.4, 0.3, 0.5, docs=15, **low)), "chance-undecided")
    assert "in 15 texts, not reliably better than always answering “yes” (60 %)" in said
    # A score much below the share of the most frequent label decides, even with few texts.
    bad = {"before": 0.1, "before_low": 0.0, "chance": chance}
    assert "chance" in codes(figures(**drop(0.4, 0.3, 0.5, docs=15, **bad)))
    one = {"before": 1.0, "before_low": 0.994, "chance": Chance("yes", 1.0)}
    made = figures(**drop(0.4, 0.3, 0.5, docs=500, **one))
    assert "all evaluated texts have the label “yes”" in told(made, "chance-undecided")
    assert not trivial(verdicts(made))


def test_whether_the_task_is_learned_is_said_of_the_pipeline_as_it_predicts() -> None:
    """The verdict is on the score with mixtures, and not on the run with single best structures."""
    chance = Chance("neg", 0.5)
    low = {"before": 0.52, "before_low": 0.45, "chance": chance}
    made = figures(**drop(0.1, 0.05, 0.15, **low, mixture=0.575, mixture_low=0.505))
    assert "chance" not in codes(made) and headline_of(made) != "The task is not learned"
    assert "accuracy is 57 % with it, and 52 % with only the best one" in told(made, "mixture")
    made = figures(**drop(0.1, 0.05, 0.15, **low, mixture=0.54, mixture_low=0.48))
    assert "its accuracy of 54 % is no better" in told(made, "chance")
    # The verdict also ignores a good score with the single best structures.
    high = {"before": 0.7, "before_low": 0.6, "chance": chance}
    assert "chance" in codes(figures(**drop(0.1, 0.05, 0.15, **high, mixture=0.5, mixture_low=0.4)))


@pytest.mark.parametrize(
    "row, code, words",
    [
        ((-0.062, -0.128, 0.004), "ignored", "6.2 points of accuracy (95 % interval −0.4 to 12.8)"),
        ((-0.072, -0.132, -0.02), "ignored", "2.0 to 13.2): nothing is lost without the trees."),
        ((-0.046, -0.115, 0.016), "no-sign-of-use", "4.6 points of accuracy (95"),
        ((-0.01, -0.2, 0.2), "dependence-undecided", "1.0 points of accuracy (95"),
    ],
)
def test_random_trees_that_do_better_do_not_cost_less_than_nothing(
    row: tuple[float, float, float], code: str, words: str
) -> None:
    said = told(figures(**drop(*row)), code)
    assert said.startswith("Random trees in their place, at prediction only, score higher, by ")
    assert words in said and "cost" not in said
    # If the model predicts with mixtures, random trees are compared with the single best trees.
    said = told(figures(**drop(*row, mixture=0.9, mixture_low=0.88)), code)
    assert said.startswith("Random trees in the place of the single best ones, at prediction only,")


def test_few_references_tell_what_is_worse_beyond_doubt_alone() -> None:
    same = figures(**reference(0.7, width=0.1, docs=20, nearest=0.7, random=0.1))
    assert "controls-undecided" in codes(same) and not trivial(verdicts(same))
    worse = figures(**reference(0.1, width=0.1, docs=20, nearest=0.7, random=0.1))
    assert "no-better-than-controls" in codes(worse)
    made = figures(**reference(0.95, width=0.01, docs=9, nearest=0.7, random=0.1))
    assert "9 texts are too few to tell whether" in told(made, "controls-undecided")


def test_random_trees_alone_are_a_weak_control() -> None:
    helps = ("a", 0.05, 0.03, 0.07)
    assert "only-random" in codes(figures(**trained(helps)))
    made = figures(**trained(helps, ("b", 0.04, 0.02, 0.06)))
    made.trained.controls["b"].trees = "flat trees"
    assert "only-random" not in codes(made) and answer(verdicts(made)) == "Yes"


def test_every_control_has_to_be_beaten() -> None:
    made = figures(**trained(("random", 0.3, 0.25, 0.35), ("flat", 0.0, -0.01, 0.01)))
    found = verdicts(made)
    assert found[0].code == "no-better-than-trained"
    assert "the control flat" in found[0].text and "helps-more" in codes(made)
    assert answer(found) == "No"


def test_seeds_differ_by_more_than_the_difference() -> None:
    row = ("random", 0.05, 0.03, 0.07)
    made = figures(**trained(row, spread=0.02))
    assert verdicts(made)[0].code == "not-trivial"
    assert "two standard deviations between trainings are 2.0" in verdicts(made)[1].text
    made = figures(**trained(row, spread=0.06))
    assert headline_of(made) == "Undecided whether the trees help"
    assert "trainings with different seeds differ by as much" in verdicts(made)[1].text


def test_a_control_that_was_trained_otherwise_proves_nothing() -> None:
    other = ["training.max_steps: 1000 → 1"]
    made = figures(**trained(("random", 0.3, 0.25, 0.35), unlike=other, unfair=other))
    assert answer(verdicts(made)).startswith("Not shown") and "control-unlike" in codes(made)
    assert not any("No sign of triviality" in verdict.text for verdict in verdicts(made))
    # An unlike control that is better still decides.
    made = figures(**trained(("random", -0.3, -0.35, -0.25), unlike=other, unfair=other))
    assert answer(verdicts(made)) == "No"


def test_a_control_that_is_another_pipeline_does_not_fill_the_page() -> None:
    other = [f"components.textcat.setting_{i}: 1 → default" for i in range(100)]
    made = figures(**trained(("stock", 0.3, 0.25, 0.35), unlike=other, unfair=other))
    texts = {found.code: found.text for found in verdicts(made)}
    for code in ("control-unlike", "trained-unlike"):
        assert other[0] in texts[code] and other[-1] not in texts[code]
        assert "92 settings more" in texts[code]


def test_of_several_tasks_the_first_is_what_the_model_is_for() -> None:
    made = figures(**trained(("random", 0.05, 0.03, 0.07)))
    measures = made.trained.measures
    worse = trained(("random", -0.05, -0.07, -0.03))["trained"].measures["accuracy"]
    made.trained.measures = {**measures, "accuracy of the tags": worse}
    assert not trivial(verdicts(made)) and "no-better-than-trained" in codes(made)
    made.trained.measures = {"accuracy of the tags": worse, **measures}
    assert headline_of(made) == "No better than a control: the trees do not help"


@pytest.mark.parametrize(
    "changes, code, words, said",
    [
        # A model with a good score in the task and wrong trees, 9.8 % of the heads.
        (
            reference(0.098, nearest=0.708, flat=0.1, random=0.07),
            "no-better-than-controls",
            "Worse than a control without a model: 10 % agreement with the reference; the "
            "nearest control has 71 %, random trees of the same set have 7 %",
            "No better than a control: the trees differ from the reference",
        ),
        (
            reference(0.71, nearest=0.708, random=0.07),
            "no-better-than-controls",
            "No better than a control",
            "No better than a control: the trees differ from the reference",
        ),
        (
            {**reference(0.48, nearest=0.3, random=0.475), "constraint": "direction = 'earlier'"},
            "no-better-than-random",
            "random trees of the same set (direction = 'earlier') have 48 %",
            "No better than a control: trees like random ones",
        ),
    ],
)
def test_trees_that_are_not_right(
    changes: dict[str, Any], code: str, words: str, said: str
) -> None:
    made = figures(**changes)
    found = verdicts(made)
    assert found[0].code == code and words in found[0].text and trivial(found)
    assert headline(found, made) == said
    assert "untested" in codes(made)


def test_trees_that_are_right() -> None:
    made = figures(**reference(0.95, nearest=0.7, random=0.1))
    found = verdicts(made)
    assert [verdict.code for verdict in found][:2] == ["not-trivial", "far-beyond-controls"]
    assert "far better than every control. Whether the trees help" in found[0].text
    assert headline(found, made) == "The trees are mostly right; whether they help was not tested"
    # A small lead over the controls is only a note.
    made = figures(**reference(0.75, nearest=0.7, random=0.1))
    assert "beyond-controls" in codes(made) and verdicts(made)[0].level == "note"
    assert headline_of(made) == "Whether the trees help was not tested"
    # Few texts leave the comparison with controls undecided.
    made = figures(**reference(0.75, width=0.1, docs=20, nearest=0.7, random=0.1))
    assert "controls-undecided" in codes(made) and not trivial(verdicts(made))
    # Trees that are right and do not help are still no better than a control.
    right = reference(0.95, nearest=0.7, random=0.1)
    made = figures(**right, **trained(("random", 0.0, -0.01, 0.01)))
    assert headline_of(made) == "No better than a control: the trees do not help"
    made = figures(**right, **trained(("random", 0.05, -0.05, 0.15)))
    assert headline_of(made) == "The trees are mostly right; whether they help is undecided"


@pytest.mark.parametrize(
    "changes, code, words",
    [
        ({"flat_share": 0.94}, "flat", "94 % of the tokens are roots or have a root as head"),
        (
            {"controls": {"left-branching": 0.93}},
            "like-left-branching",
            "of the tokens is the next token",
        ),
        ({"controls": {"right-branching": 0.97}}, "like-right-branching", "97 % of the tokens"),
        ({"controls": {"flat": 0.97}}, "like-flat", "of the tokens is the first token"),
        ({"controls": {"balanced": 0.91}}, "like-balanced", "does not depend on words"),
        (
            {"controls": {"nearest": 0.99}},
            "like-nearest",
            "nearly those of the nearest-head control",
        ),
        ({"by_length": (0.97, 500)}, "by-length", "do not depend on the words: 97 %"),
        (mean("relative entropy", 0.95), "undecided-scores", "hardly prefer any"),
        (drop(0.003, -0.002, 0.008), "ignored", "only 0.3 points of accuracy (95 % interval −0.2"),
        (
            drop(0.004, -0.01, 0.018),
            "no-sign-of-use",
            "no sign that predictions depend on the trees",
        ),
        (
            drop(0.4, 0.3, 0.5, before_low=0.5, chance=Chance("yes", 0.52)),
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
        drop(0.4, 0.3, 0.5, before_low=0.55, chance=Chance("yes", 0.52)),
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


def test_what_length_says_of_much_is_a_note() -> None:
    found = verdicts(figures(by_length=(0.92, 500)))
    (note,) = [verdict for verdict in found if verdict.code == "largely-by-length"]
    assert note.level == "note" and "92 % of the tokens" in note.text and not trivial(found)
    assert "largely-by-length" not in codes(figures(by_length=(0.79, 500)))
    assert "largely-by-length" not in codes(figures(by_length=(0.97, 500)))


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
    assert found[1].code == "dependence-undecided" and "It is undecided" in found[1].text
    found = verdicts(figures(**drop(0.006, 0.001, 0.011)))
    assert [verdict.code for verdict in found] == ["untested", "hardly-co-adapted"]
    # No command makes a control for this structure, so none is named.
    (only,) = verdicts(figures("items", random={}, controls={}))
    assert "was not tested" in only.text and "spacy latent control" not in only.text


def test_the_headline_is_of_what_weighs_most() -> None:
    ignored = drop(0.003, -0.002, 0.008)
    assert headline_of(figures(**ignored)) == "Predictions ignore the trees"
    flat = {"flat_share": 0.94}
    assert headline_of(figures(**flat)) == "The structure looks trivial"
    assert headline_of(figures(**flat, **ignored)) == "Predictions ignore the trees"
    wrong = reference(0.1, nearest=0.7)
    assert "differ from the reference" in headline_of(figures(**flat, **ignored, **wrong))
    useless = trained(("flat", 0.0, -0.01, 0.01))
    assert "do not help" in headline_of(figures(**flat, **ignored, **wrong, **useless))


def test_seeds_and_mixtures() -> None:
    others = OtherModels(["b"], [[1.0, 0.3], [0.3, 1.0]], mean=0.3, chance=0.2, alike=True)
    assert "seeds-differ" in codes(figures(others=others))
    assert "seeds-agree" in codes(figures(others=replace(others, mean=0.8)))
    found = figures(others=replace(others, mean=0.25))
    assert verdicts(found)[0].code == "seeds-random" and trivial(verdicts(found))
    assert headline_of(found) == "Other seeds learn other trees, as if they were random"
    # Models with other settings may differ, which is no warning.
    assert "seeds-differ" in codes(figures(others=replace(others, mean=0.25, alike=False)))
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
