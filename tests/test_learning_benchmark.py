"""The table of what configs learn; the training itself is what the other tests do."""

import json
from pathlib import Path

import pytest
from spacy.util import load_config

from benchmarks import learning

GROUP = learning.Group(
    "Title", (), {"accuracy": "cats_micro_f", "F1": "ents_f"}, (learning.Entry("a", "note"),)
)


def keep(runs: Path, name: str, seconds: float, **scores: float) -> None:
    run = {"scores": scores, "seconds": seconds, "processor_seconds": seconds}
    (runs / f"{name}.json").write_text(json.dumps(run))


def test_the_table_has_each_seed_and_leaves_out_what_was_not_run(tmp_path):
    keep(tmp_path, "a-0", 60.0, cats_micro_f=0.5)
    keep(tmp_path, "a-10", 120.0, cats_micro_f=0.75)
    keep(tmp_path, "a_b-0", 60.0, cats_micro_f=0.1)
    *_, row = learning.table(GROUP, learning.measured(GROUP, tmp_path))
    assert row == "| `a`: note | 0, 10 | 50.0, 75.0; mean 62.5 (50.0 to 75.0) |  | 1.5 |"


def test_a_run_is_not_done_twice(tmp_path, monkeypatch):
    keep(tmp_path, "a-0", 60.0, ents_f=0.5)
    monkeypatch.setattr(learning.subprocess, "run", None)
    assert learning.train(learning.Entry("a"), 0, tmp_path)["scores"] == {"ents_f": 0.5}


def test_the_model_comes_before_its_controls():
    trees = {"attachment": {"model": {"without ]": 0.9}, "flat": {"without ]": 0.3}}}
    assert learning.of_listops({"accuracy": 0.8, **trees})["attachment"] == 0.9
    spans = {"brackets": {"model": 0.7, "left": 0.2}}
    assert learning.of_listops({"accuracy": 0.8, **spans})["brackets"] == 0.7
    # A pipeline without trees.
    assert learning.of_listops({"accuracy": 0.8}) == {"cats_micro_f": 0.8}


def test_of_the_first_corpus_there_are_sums_spans_and_gold_trees():
    own = {"accuracy": [0.8, 0.7, 0.9], "spans": [0.6, 0.5, 0.7], "accuracy_with": {"gold": [0.9]}}
    other = {"accuracy": [0.1, 0.1, 0.1], "spans": [0.1]}
    models = {"model": own, "other": other}
    part = {
        "by_depth": {"all": {"models": models}},
        "by_operator": {"with SM": {"models": models}, "MAX": {"models": models}},
    }
    found = learning.of_listops({"accuracy": 0.8, "corpora": {"test": part, "other": {}}})
    assert found == {"cats_micro_f": 0.8, "with SM": 0.8, "brackets": 0.6, "gold": 0.9}


@pytest.mark.parametrize("group", learning.GROUPS.values(), ids=learning.GROUPS)
def test_every_column_and_every_row_has_figures(group):
    """What ``spacy train`` keeps of a pipeline's scores are those with a weight."""
    kept = {}
    for entry in group.entries:
        config = load_config(learning.ROOT / "configs" / f"{entry.config}.cfg")
        kept[entry] = set(config["training"]["score_weights"])
        if entry.listops is not None:
            kept[entry] = {"cats_micro_f", "brackets", "attachment", "gold", *learning.WITH_SUMS}
        assert kept[entry] & set(group.figures.values()), entry
    assert set(group.figures.values()) <= set().union(*kept.values())


@pytest.mark.parametrize("group", learning.GROUPS.values(), ids=learning.GROUPS)
def test_there_are_the_configs_and_the_commands_for_their_corpora(group):
    project = (learning.ROOT / "project.yml").read_text(encoding="utf8")
    for entry in group.entries:
        assert (learning.ROOT / "configs" / f"{entry.config}.cfg").exists(), entry
    assert all(f"- name: {command}\n" in project for command in group.corpora)
