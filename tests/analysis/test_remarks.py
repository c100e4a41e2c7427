"""Remarks at the head of a report, before its figures."""

from __future__ import annotations

import pytest

from spacy_latent.analysis.calibration import entity_figures
from spacy_latent.analysis.figures import Figures, Score, TaskFigures
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.remarks import F1, remarks


def figures(right: int, wrong: int, gold: int, f1: float = 0.5, left_out: int = 0) -> Figures:
    count = right + wrong
    correct = [True] * right + [False] * wrong
    found = entity_figures(JudgedEntities([0.9] * count, correct, ["A"] * count, gold))
    task = TaskFigures({F1: Score(f1, f1, f1)})
    return Figures(3, 30, ["crf_ner"], task, entities={"crf_ner": found}, left_out=left_out)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (0, 0, "crf_ner finds no entity, and the references have 20: precision, recall and F1"),
        (0, 7, "None of the 7 that crf_ner finds is right, and the references have 20 entities"),
        (0, 1, "The one that crf_ner finds is wrong, and the references have 20 entities"),
        (3, 4, "finds correct entities, and none of them is in doc.ents"),
    ],
)
def test_why_no_entity_is_right(right: int, wrong: int, said: str) -> None:
    (told,) = remarks(figures(right, wrong, 20, f1=0.0))
    assert said in told
    assert ("Train it longer" in told) == (right == 0)


def test_nothing_is_said_where_entities_are_found_or_there_are_none() -> None:
    assert remarks(figures(3, 4, 20)) == []
    assert remarks(figures(0, 3, 0, f1=0.0)) == []


def test_what_was_left_out_is_counted() -> None:
    assert remarks(figures(3, 4, 20, left_out=1)) == ["1 text without tokens was left out."]
    assert remarks(figures(3, 4, 20, left_out=1200))[0].startswith(
        "1,200 texts without tokens were"
    )


def test_entities_where_annotation_is_missing_are_told() -> None:
    made = figures(3, 4, 20)
    made.entities["crf_ner"].unannotated = 3
    (told,) = remarks(made)
    assert told.startswith("3 of 10 entities that crf_ner finds are on tokens whose annotation is")


@pytest.mark.parametrize(("noun", "count"), [("span", 1), ("arc", 0)])
def test_spans_of_texts_without_the_group_are_told(noun: str, count: int) -> None:
    judged = JudgedEntities([0.9] * 4, [True] * 4, ["A"] * 4, 4, unannotated=8, noun=noun)
    made = figures(3, 4, 20)
    made.entities = {"tree_spancat": entity_figures(judged)}
    told = remarks(made)
    assert len(told) == count and all("8 of 12 spans" in each for each in told)
