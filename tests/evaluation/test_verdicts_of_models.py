"""Headlines and verdicts of reports on models whose use of trees is known."""

from __future__ import annotations

from typing import Any

import pytest
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam

from spacy_latent.analysis.verdicts import answer, headline, trivial
from spacy_latent.evaluation.assessment import Assessment, assess
from spacy_latent.models.inspection import latent_models, latent_module
from tests.pipeline.flag_pipelines import flag_examples, flag_pipeline
from tests.pipeline.keyword_pipelines import (
    CHOICE,
    FILLERS,
    TREE,
    keyword_examples,
    keyword_pipeline,
)
from tests.pipeline.small_pipelines import TOK2VEC

NAME = "latent_encoder"
GIVEN = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "right"}
# The embedder reads neighbouring words, so the task can be learned without a tree.
CONTEXT = {"tok2vec": TOK2VEC, "residual": True}


def said(found: Assessment) -> str:
    return headline(found.verdicts[NAME], found.figures.components[NAME])


def codes(found: Assessment) -> list[str]:
    return [verdict.code for verdict in found.verdicts[NAME]]


def reassures(found: Assessment) -> bool:
    return any("No sign of triviality" in verdict.text for verdict in found.verdicts[NAME])


@pytest.fixture(scope="module")
def controls() -> dict[str, list[Language]]:
    return {trees: [flag_pipeline(trees=trees)] for trees in ("random", "flat")}


def test_a_model_that_learns_the_task_with_wrong_trees(controls: dict[str, list[Language]]) -> None:
    """The composer is adapted to wrong trees, which is no sign that the trees are good."""
    nlp = flag_pipeline(steps=80)
    found = assess(nlp, flag_examples(nlp, 200))
    part = found.figures.components[NAME]
    rows = {name: row["directed"][0] for name, row in part.reference.rows.items()}
    drop = part.random["accuracy"]
    assert drop.before > 0.6 and drop.low > 0.05
    # Rounding errors decide which of two wrong trees is nearer to the gold tree.
    assert rows[NAME] < 0.1 + max(share for name, share in rows.items() if name != NAME) < 0.3
    assert said(found).startswith("No better than a control") and codes(found)[0] in (
        "no-better-than-controls",
        "no-better-than-random",
    )
    assert "co-adapted" in codes(found) and trivial(found.verdicts[NAME]) and not reassures(found)
    # The verdict is the same with trained controls.
    found = assess(nlp, flag_examples(nlp, 200), controls=controls, random=False)
    assert said(found).startswith("No better than a control") and not reassures(found)


def test_a_good_model(controls: dict[str, list[Language]]) -> None:
    nlp = flag_pipeline(80, supervision=5.0)
    found = assess(nlp, flag_examples(nlp, 200), controls=controls)
    assert said(found) == "The trees help" and reassures(found)
    assert not trivial(found.verdicts[NAME]) and answer(found.verdicts[NAME]) == "Yes"
    assert {"helps", "far-beyond-controls"} <= set(codes(found))
    row = found.figures.trained.measures["accuracy"]
    assert all(control.difference[1] > 0.01 for control in row.controls.values())
    # Without trained controls, the report does not claim that the trees help.
    found = assess(nlp, flag_examples(nlp, 200))
    assert said(found) == "The trees are mostly right; whether they help was not tested"
    assert answer(found.verdicts[NAME]) == "Not tested"
    # Without gold trees, it also does not claim that they are right.
    found = assess(nlp, flag_examples(nlp, 200, heads=False))
    assert said(found) == "Whether the trees help was not tested" and not reassures(found)


@pytest.fixture(scope="module")
def chain() -> Language:
    """A model with right-branching trees, whose embedder reads neighbouring words."""
    return keyword_pipeline({**CONTEXT, "estimator": GIVEN}, steps=70)


def test_a_classifier_whose_trees_are_ignored(chain: Language) -> None:
    """The composed vectors have a weight of 0, so the residual connection carries everything."""
    nlp = keyword_pipeline(CONTEXT, steps=10)
    (node,) = latent_models(nlp.get_pipe(NAME).model)  # type: ignore[attr-defined]
    gain: Any = latent_module(node).gain
    train = keyword_examples(nlp, 64, seed=0, heads=False)
    optimizer = Adam(0.02)
    for _ in range(40):
        gain.data.zero_()
        nlp.update(train, sgd=optimizer)
    gain.data.zero_()
    # If no text of 100 differs, a rate of up to 3 % is still possible.
    few = assess(nlp, keyword_examples(nlp, 100, heads=False))
    assert "ignored" not in codes(few)
    examples = keyword_examples(nlp, 400, heads=False)
    found = assess(nlp, examples)
    assert found.figures.task.measures["accuracy"].value > 0.8
    assert said(found) == "Predictions ignore the trees" and not reassures(found)
    found = assess(nlp, examples, controls={"chain": [chain]})
    assert said(found) == "No better than a control: the trees do not help"
    assert codes(found)[:2] == ["no-better-than-trained", "ignored"]


def test_trap_29_what_random_trees_cost_at_prediction_is_no_use_of_the_trees(
    chain: Language,
) -> None:
    """Random trees cost much, but a model trained with right-branching trees is as good."""
    nlp = keyword_pipeline(CONTEXT, steps=70)
    examples = keyword_examples(nlp, 200, heads=False)
    ceiling = assess(nlp, examples, controls={"chain": [chain]}, random=False)
    assert ceiling.figures.task.measures["accuracy"].value == 1.0
    # A control that is right in all texts leaves no difference to find.
    assert answer(ceiling.verdicts[NAME]) == "Undecided" and not reassures(ceiling)
    (told,) = (v.text for v in ceiling.verdicts[NAME] if v.code == "trained-undecided")
    assert "both are right in all 200 texts" in told
    few = assess(nlp, examples[:15], controls={"chain": [chain]})
    assert answer(few.verdicts[NAME]) == "Undecided" and "few" in codes(few)
    row = few.figures.trained.measures["accuracy"].controls["chain"]
    assert row.difference == (0.0, pytest.approx(-0.2), pytest.approx(0.2))
    one = assess(nlp, examples[:1], controls={"chain": [chain]})
    assert said(one) == "Too few texts for any conclusion" and not trivial(one.verdicts[NAME])
    noisy = keyword_examples(nlp, 200, heads=False)
    for example in noisy[::10]:
        example.reference.cats = {name: 1 - value for name, value in example.reference.cats.items()}
    found = assess(nlp, noisy, controls={"chain": [chain]})
    drop = found.figures.components[NAME].random["accuracy"]
    assert "co-adapted" in codes(found) and drop.low > 0.1
    assert said(found) == "No better than a control: the trees do not help"
    assert answer(found.verdicts[NAME]) == "No" and not reassures(found)


def test_trap_30_attachment_may_be_nothing_but_the_constraint() -> None:
    """A structure with a single tree has the same attachment score as random trees."""
    only = {
        "@misc": "spacy-latent.SpanningTree.v1",
        "single_root": True,
        "direction": "earlier",
        "max_arc_length": 1,
    }
    nlp = keyword_pipeline({**TREE, "structure": only}, steps=2)
    examples = []
    for example in keyword_examples(nlp, 60):
        heads = [max(0, i - 1) for i in range(len(example.predicted))]
        gold = {"cats": example.reference.cats, "heads": heads, "deps": ["dep"] * len(heads)}
        examples.append(Example.from_dict(example.predicted, gold))
    found = assess(nlp, examples, random=False)
    rows = found.figures.components[NAME].reference.rows
    assert rows[NAME]["directed"][0] == rows["random"]["directed"][0] == 1.0
    first = found.verdicts[NAME][0]
    assert first.level == "warning" and first.code == "no-better-than-random"
    assert "same set (direction = 'earlier', max_arc_length = 1) have 100 %" in first.text
    assert said(found) == "No better than a control: trees like random ones"


def test_seeds_that_agree_on_nothing() -> None:
    """The agreement of untrained scorers is compared with chance. A pipeline agrees with itself."""
    nlp = keyword_pipeline(TREE, steps=0)
    others = {"other": keyword_pipeline(TREE, steps=0, seed=1)}
    found = assess(nlp, keyword_examples(nlp, 60, heads=False), others=others, random=False)
    seeds = found.figures.components[NAME].others
    assert seeds.alike and 0 < seeds.chance < 0.4
    assert "seeds-random" in codes(found) and "seeds-agree" not in codes(found)
    twin = assess(nlp, keyword_examples(nlp, 60, heads=False), others={"twin": nlp}, random=False)
    assert "seeds-agree" in codes(twin)


def test_seeds_of_the_model_and_of_controls() -> None:
    nlp, twin = keyword_pipeline(TREE, steps=2), keyword_pipeline(TREE, steps=2, seed=1)
    other = keyword_pipeline({**TREE, "temperature": 2.0}, steps=2)
    found = assess(
        nlp,
        keyword_examples(nlp, 40),
        others={"twin": twin, "other": other},
        controls={"two": [other, twin], "one": [other]},
        random=False,
    )
    row = found.figures.trained.measures["accuracy"]
    # A pipeline with other settings is not another training of the same model.
    assert len(row.seeds) == 2 and len(row.controls["two"].seeds) == 2
    mean = sum(row.seeds) / 2
    assert row.value == pytest.approx(mean)
    for control in row.controls.values():
        difference, low, high = control.difference
        assert difference == pytest.approx(row.value - control.value)
        assert low <= difference <= high
    # The control has one training, so the spread comes from the two trainings of the model.
    (a, b), spread = row.seeds, row.controls["one"].spread
    assert spread == pytest.approx(2 * (a - b) if a > b else 2 * (b - a))
    assert "temperature: 1.0 → 2.0" in found.figures.trained.controls["one"].unlike[0]


def test_mixtures_of_one_structure_are_said_with_a_temperature_that_makes_several() -> None:
    def assessed(temperature: float) -> Assessment:
        estimator = {"@misc": "spacy-latent.SparseMAP.v1"}
        model = {**TREE, "estimator": estimator, "temperature": temperature}
        nlp = keyword_pipeline(model, steps=0)
        # Words do not repeat: equal words would have equal scores, and give mixtures of structures.
        texts = [" ".join(FILLERS[i : i + 6]) for i in range(7)]
        cats = {"cats": {"good": 1.0, "bad": 0.0}}
        examples = [Example.from_dict(nlp.make_doc(text), cats) for text in texts]
        return assess(nlp, examples, random=False)

    cold = assessed(0.001)
    (verdict,) = (v for v in cold.verdicts[NAME] if v.code == "one-structure")
    alone = cold.figures.components[NAME].alone
    assert alone is not None and alone.share > 0.9 and alone.temperature == 0.001
    assert f"temperature = {alone.higher:g}" in verdict.text and verdict.level == "note"
    warm = assessed(alone.higher).figures.components[NAME].alone
    assert warm is not None and warm.share <= 0.5
    assert "one-structure" not in codes(assessed(alone.higher))
    # The figure is missing for marginals.
    nlp = keyword_pipeline(TREE, steps=0)
    figures = assess(nlp, keyword_examples(nlp, 4), random=False).figures
    assert figures.components[NAME].alone is None and "alone" not in figures.plain()


def test_where_all_words_are_chosen_a_mixture_of_one_structure_is_no_fault() -> None:
    structure = {"@misc": "spacy-latent.KOfN.v1", "k": 2}
    nlp = keyword_pipeline({**CHOICE, "structure": structure}, steps=0)
    cats = {"cats": {"good": 1.0, "bad": 0.0}}
    whole = [Example.from_dict(nlp.make_doc(text), cats) for text in ("good filler1", "filler2 x")]
    found = assess(nlp, whole, random=False)
    assert found.figures.components[NAME].alone is None and "one-structure" not in codes(found)
    assert "relative entropy" not in found.figures.components[NAME].statistics
    longer = Example.from_dict(nlp.make_doc("good filler1 filler2 x"), cats)
    found = assess(nlp, [*whole, longer], random=False)
    alone = found.figures.components[NAME].alone
    assert alone is not None and alone.share in (0.0, 1.0)
