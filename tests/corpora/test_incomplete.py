"""Corpora with removed annotation, and a reader of corpora with different sets of labels."""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import registry
from typer.testing import CliRunner

from spacy_latent.annotations import annotated_labels
from spacy_latent.cli.app import latent_cli
from spacy_latent.corpora.incomplete import (
    flag_all_but,
    keep_some,
    simulate_sources,
    split_by_labels,
)
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.entity_evidence import EvidenceSettings
from spacy_latent.pipeline.evidence_survey import EvidenceSurvey

VOCAB = spacy.blank("xx").vocab


def doc(*ents: tuple[int, int, str]) -> Doc:
    made = Doc(VOCAB, words=["a", "b", "c", "d"])
    made.set_ents([Span(made, *ent[:2], label=ent[2]) for ent in ents], default="outside")
    return made


def docs(count: int = 40) -> list[Doc]:
    kinds = [[(0, 1, "A")], [(0, 2, "A"), (2, 3, "B")], [], [(1, 3, "B")]]
    return [doc(*kinds[i % len(kinds)]) for i in range(count)]


def found(given: Any) -> list[list[tuple[int, int, str]]]:
    return [[(s.start, s.end, s.label_) for s in one.ents] for one in given]


def test_a_share_of_the_entities_is_kept_and_of_the_rest_nothing_is_known() -> None:
    made = list(keep_some(docs(), 0.5, seed=1))
    before, after = found(docs()), found(made)
    assert all(set(few) <= set(all_) for few, all_ in zip(after, before))
    assert 0.3 < sum(map(len, after)) / sum(map(len, before)) < 0.7
    assert {token.ent_iob for one in made for token in one if not token.ent_type} == {0}
    assert found(keep_some(docs(), 0.5, seed=1)) == after != found(keep_some(docs(), 0.5, seed=2))
    assert found(keep_some(docs(), 1.0)) == before and not any(found(keep_some(docs(), 0.0)))
    whole = list(keep_some(docs(), 0.5, seed=1, as_if_complete=True))
    assert found(whole) == after
    assert {token.ent_iob for one in whole for token in one if not token.ent_type} == {2}


def test_flags_say_what_there_is() -> None:
    made, before = list(flag_all_but(docs(), 10, seed=0)), docs()
    complete = [d for d, one in enumerate(made) if not one.cats]
    assert len(complete) == 10
    for d, (one, whole) in enumerate(zip(made, before)):
        labels = {span.label_ for span in whole.ents}
        if d in complete:
            assert found([one]) == found([whole]) and one[3].ent_iob == 2
        else:
            assert one.cats == {"has_A": float("A" in labels), "has_B": float("B" in labels)}
            assert not one.ents and {token.ent_iob for token in one} == {0}
    few = list(flag_all_but(docs(), 10, seed=0, as_if_complete=True))
    assert found(few) == [found(before)[d] for d in complete]
    wrong = list(flag_all_but(docs(400), 0, wrong=0.25))
    right = [
        one.cats[f"has_{label}"] == float(any(span.label_ == label for span in whole.ents))
        for one, whole in zip(wrong, docs(400))
        for label in "AB"
    ]
    assert 0.65 < sum(right) / len(right) < 0.85


def test_texts_are_dealt_to_sets_of_labels() -> None:
    made, before = list(split_by_labels(docs(), [["A"], ["B"]], seed=3)), docs()
    for one, whole in zip(made, before):
        (label,) = annotated_labels(one) or ()
        assert found([one])[0] == [ent for ent in found([whole])[0] if ent[2] == label]
        assert one[3].ent_iob == 2
    assert sum(annotated_labels(one) == ("A",) for one in made) == 20
    whole_docs = list(split_by_labels(docs(), [["A"], ["B"]], seed=3, as_if_complete=True))
    assert found(whole_docs) == found(made)
    assert all(annotated_labels(one) is None for one in whole_docs)


def test_sources_see_entities_as_often_as_they_are_right() -> None:
    before = found(docs(200))
    made = list(simulate_sources(docs(200), [1.0, 0.7, 0.0], seed=1))
    seen = [
        [[(s.start, s.end, s.label_) for s in one.spans[f"source_{i}"]] for one in made]
        for i in (1, 2, 3)
    ]
    right = [sum(len(set(own) & set(gold)) for own, gold in zip(each, before)) for each in seen]
    every = sum(map(len, before))
    assert right[0] == every > right[1] > right[2] == 0 and 0.6 < right[1] / every < 0.8
    assert seen[0] == before and any(len(own) > len(gold) for own, gold in zip(seen[2], before))
    assert not any(one.ents for one in made) and made[0][0].ent_iob == 0
    most = list(simulate_sources(docs(200), [1.0, 1.0, 0.0], seed=1, as_if_complete=True))
    assert found(most) == before and most[2][0].ent_iob == 2
    alone = list(simulate_sources([doc((3, 4, "A")), doc((0, 1, "A"))], [0.0], seed=5))
    assert all(span.end <= len(one) for one in alone for span in one.spans["source_1"])


def test_what_cannot_be_taken_away_is_refused() -> None:
    for wrong in (
        lambda: keep_some(docs(), 1.5),
        lambda: flag_all_but(docs(), 41),
        lambda: flag_all_but(docs(), 1, wrong=0.5),
        lambda: split_by_labels(docs(), [["A"]]),
        lambda: simulate_sources(docs(), []),
        lambda: simulate_sources(docs(), [0.5, 1.5]),
        lambda: split_by_labels(docs(), [["A"], ["C"]]),
    ):
        with pytest.raises(LatentError):
            list(wrong())


def written(path: Path, given: list[Doc]) -> Path:
    DocBin(docs=given, store_user_data=True).to_disk(path)
    return path


def test_the_command_writes_a_corpus(tmp_path: Path) -> None:
    corpus, out = written(tmp_path / "all.spacy", docs()), tmp_path / "new" / "out.spacy"

    def run(*options: str) -> list[Doc]:
        result = CliRunner().invoke(latent_cli, ["incomplete", str(corpus), str(out), *options])
        assert result.exit_code == 0, result.output
        return list(DocBin().from_disk(out).get_docs(VOCAB))

    assert found(run("--keep", "0.5", "--seed", "1")) == found(keep_some(docs(), 0.5, seed=1))
    assert sum(not one.cats for one in run("--flags", "--full", "7")) == 7
    (first, *_) = run("--sources", "1,0.5")
    assert set(first.spans) == {"source_1", "source_2"}
    sets = run("--label-sets", "A/A,B")
    assert {annotated_labels(one) for one in sets} == {("A",), ("A", "B")}


def test_the_command_tells_of_labels_in_no_set(tmp_path: Path) -> None:
    texts = [*docs(), doc((0, 1, "REST"))]
    corpus, out = written(tmp_path / "all.spacy", texts), tmp_path / "out.spacy"
    for sets, is_told in (("A/B", True), ("A/B,REST", False)):
        told = CliRunner().invoke(
            latent_cli, ["incomplete", str(corpus), str(out), "--label-sets", sets]
        )
        assert told.exit_code == 0 and ("REST" in told.output) == is_told


@pytest.mark.parametrize(
    "options",
    [["--keep", "0.5"], ["--flags", "--full", "7", "--wrong", "0.1"], ["--sources", "1,0.5"]],
)
def test_the_command_prints_the_option_that_reads_the_evidence(
    options: list[str], tmp_path: Path
) -> None:
    texts = [*docs(), doc((0, 1, "Alzheimer's"))]
    corpus, out = written(tmp_path / "all.spacy", texts), tmp_path / "out.spacy"
    told = CliRunner().invoke(latent_cli, ["incomplete", str(corpus), str(out), *options]).output
    _, option = shlex.split(told[told.index("--components.NAME.evidence") :])
    settings = EvidenceSettings.of_block("crf_ner", json.loads(option))
    left = list(DocBin().from_disk(out).get_docs(VOCAB))
    # Add a text with the entity, since a label without any entity gives a warning.
    survey = EvidenceSurvey.of([Example(one, one) for one in [*left, texts[-1]]], settings)
    assert settings.tells_outside and not survey.doubts()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--keep", "0.5", "--flags"],
        ["--keep", "2"],
        ["--label-sets", "A/X"],
        ["--full", "3"],
        ["--keep", "0.5", "--wrong", "0.1"],
        ["--keep", "0.5", "--full", "3"],
        ["--sources", "good,bad"],
    ],
)
def test_the_command_refuses_what_makes_no_sense(options: list[str], tmp_path: Path) -> None:
    corpus, out = written(tmp_path / "all.spacy", docs()), tmp_path / "out.spacy"
    result = CliRunner().invoke(latent_cli, ["incomplete", str(corpus), str(out), *options])
    assert result.exit_code == 1 and not out.exists()


def test_the_command_overwrites_no_file_of_its_corpus(tmp_path: Path) -> None:
    corpus = written(tmp_path / "all.spacy", docs())
    before = corpus.read_bytes()
    (tmp_path / "link.spacy").symlink_to(corpus)
    for given, out in ((corpus, corpus), (tmp_path, corpus), (corpus, tmp_path / "link.spacy")):
        options = ["incomplete", str(given), str(out), "--keep", "0.5"]
        assert CliRunner().invoke(latent_cli, options).exit_code == 1
        assert corpus.read_bytes() == before
    # The next run would read a new file in this directory as a part of the corpus.
    options = ["incomplete", str(tmp_path), str(tmp_path / "new.spacy"), "--keep", "0.5"]
    assert CliRunner().invoke(latent_cli, options).exit_code == 1
    assert not (tmp_path / "new.spacy").exists()


def test_the_command_tells_wrong_files_from_texts_without_entities(tmp_path: Path) -> None:
    (tmp_path / "all.iob").write_text("Anna|B-PER left|O\n", encoding="utf8")
    (tmp_path / "cut.spacy").write_bytes(b"nothing")
    written(tmp_path / "none.spacy", [])
    written(tmp_path / "plain.spacy", [doc()])
    told = set()
    for name in ("all.iob", "cut.spacy", "none.spacy", "plain.spacy"):
        given, out = str(tmp_path / name), str(tmp_path / "out.spacy")
        result = CliRunner().invoke(latent_cli, ["incomplete", given, out, "--keep", "0.5"])
        assert result.exit_code == 1 and name in " ".join(result.output.split())
        assert not isinstance(result.exception, ValueError)
        told.add(result.output.replace(given, ""))
    assert len(told) == 4


# ---------------------------------------------------------------- the reader


def reader(corpora: Any, **settings: Any) -> Any:
    block = {"@readers": "spacy-latent.LabelledCorpora.v1", "corpora": corpora, **settings}
    return registry.resolve({"reader": block})["reader"]


def test_corpora_are_read_with_their_labels(tmp_path: Path) -> None:
    own = doc((0, 1, "A"))
    own._.annotated_labels = ["A", "B"]
    first = str(written(tmp_path / "first.spacy", [doc((0, 1, "A")), own]))
    second = str(written(tmp_path / "second.spacy", [doc((1, 2, "B"))]))
    blocks = {"a": {"path": first, "labels": ["A"], "repeat": 2}, "b": {"path": second}}
    read, nlp = reader(blocks), spacy.blank("en")
    asked = [annotated_labels(example.reference) for example in read(nlp)]
    assert asked == [("A",), ("A", "B"), ("A",), ("A", "B"), None]
    assert asked == [annotated_labels(example.reference) for example in read(nlp)]
    assert not list(reader({"a": {"path": first}}, max_length=3)(nlp))


@pytest.mark.parametrize(
    "corpora",
    [
        {},
        {"a": {"labels": ["A"]}},
        {"a": {"path": "first.spacy", "labels": "A"}},
        {"a": {"path": "first.spacy", "labels": ["A", 3]}},
        {"a": {"path": "first.spacy", "repeat": 0}},
        {"a": {"path": "first.spacy", "repeats": 1}},
        {"a": {"path": "none.spacy"}},
        {"a": {"path": ""}},
        {"a": {"path": 5}},
        {"a": {"path": "first.spacy", "labels": [""]}},
        {"a": {"path": "first.spacy", "incorrect_spans_key": ""}},
        {"a": "first.spacy"},
    ],
)
def test_corpora_that_are_not_as_expected_are_refused(
    corpora: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "first.spacy", docs(1))
    monkeypatch.chdir(tmp_path)
    assert reader({"a": {"path": "first.spacy"}})
    with pytest.raises(ValueError):
        list(reader(corpora)(spacy.blank("en")))


def test_a_file_of_another_kind_is_no_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("Anna B-PER\n", encoding="utf8")
    read = reader({"a": {"path": str(tmp_path / "train.conll")}})
    with pytest.raises(LatentError, match=r"train\.conll.*\.spacy"):
        list(read(spacy.blank("en")))


def test_exports_of_annotation_tools_are_read(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 1, "label": "A"}]
    lines = [{"text": "x y", "spans": spans, "answer": said} for said in ("accept", "reject")]
    (tmp_path / "checked.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf8")
    result = [{"value": {"start": 2, "end": 3, "labels": ["B"]}}]
    task = {"data": {"text": "x y"}, "annotations": [{"result": result}]}
    (tmp_path / "tasks.json").write_text(json.dumps([task]), encoding="utf8")
    checked = {
        "path": str(tmp_path / "checked.jsonl"),
        "unmarked": "missing",
        "incorrect_spans_key": "wrong",
    }
    tasks = {"path": str(tmp_path / "tasks.json"), "labels": ["B"]}
    read = reader({"checked": checked, "tasks": tasks})
    accepted, rejected, last = [one.reference for one in read(spacy.blank("en"))]
    assert [token.ent_iob for token in accepted] == [3, 0]
    assert [token.ent_iob for token in rejected] == [0, 0]
    assert [span.label_ for span in rejected.spans["wrong"]] == ["A"]
    assert [token.ent_iob for token in last] == [2, 3] and annotated_labels(last) == ("B",)
    alone = reader({"checked": {**checked, "incorrect_spans_key": None}})
    assert len(list(alone(spacy.blank("en")))) == 1


def test_misaligned_spans_of_exports_are_no_negatives(tmp_path: Path) -> None:
    path = tmp_path / "checked.jsonl"
    row = {"text": "ab cd", "spans": [{"start": 0, "end": 1, "label": "A"}]}
    path.write_text("\ufeff" + json.dumps(row), encoding="utf8")
    read = reader({"own": {"path": str(path), "unmarked": "outside"}})
    with pytest.warns(LatentWarning):
        (example,) = read(spacy.blank("en"))
    assert [token.ent_iob for token in example.reference] == [0, 2]
    path.write_text("{", encoding="utf8")
    with pytest.raises(LatentError):
        list(read(spacy.blank("en")))


def rejecting(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write a corpus whose last text was rejected, and return its path and a reader's block."""
    spans = [{"start": 0, "end": 1, "label": "A"}]
    answers = ["accept"] * 10 + ["reject"]
    lines = [{"text": "x y", "spans": spans, "answer": said} for said in answers]
    path = folder / "checked.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf8")
    block = {"path": str(path), "unmarked": "missing", "incorrect_spans_key": "rejected"}
    return path, {"@readers": "spacy-latent.LabelledCorpora.v1", "corpora": {"own": block}}


@pytest.mark.parametrize("key", [None, "rejcted", "rejected"])
def test_rejected_spans_that_nothing_reads_are_told_in_training_and_in_debug(
    tmp_path: Path, key: str | None
) -> None:
    _, block = rejecting(tmp_path)
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    read = list(registry.resolve({"reader": block})["reader"](nlp))
    optimizer = nlp.initialize(lambda: read)
    nlp.get_pipe("crf_ner").cfg["incorrect_spans_key"] = key  # type: ignore[union-attr]
    nlp.config["corpora"]["train"] = block
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nlp.update(read[:10], sgd=optimizer)
        assert not [one for one in told if "rejected" in str(one.message)]
        nlp.update(read, sgd=optimizer)
        nlp.update(read, sgd=optimizer)
    found = [one for one in told if "doc.spans['rejected']" in str(one.message)]
    assert len(found) == (key != "rejected")
    # Without rejected spans in these examples, the config shows that other texts have some.
    for examples in ((), read[:2], read):
        codes = [one.code for one in find_traps(nlp, examples)]
        assert codes.count("rejected-spans") == (key != "rejected")
    nlp.config["corpora"]["train"] = {"@readers": "spacy.Corpus.v1", "path": None}
    assert "rejected-spans" not in {one.code for one in find_traps(nlp, read[:2])}


def test_rejected_texts_that_are_left_out_are_told(tmp_path: Path) -> None:
    _, block = rejecting(tmp_path)
    del block["corpora"]["own"]["incorrect_spans_key"]
    with pytest.warns(LatentWarning, match=r"1 text .*line 11"):
        read = list(registry.resolve({"reader": block})["reader"](spacy.blank("en")))
    assert len(read) == 10


@pytest.mark.parametrize("component", ["spancat", "tree_spancat"])
def test_overlapping_spans_are_read_for_components_that_find_them(
    tmp_path: Path, component: str
) -> None:
    spans = [{"start": 0, "end": 1, "label": "A"}, {"start": 0, "end": 3, "label": "B"}]
    judged = {"text": "x y", "spans": spans[:1], "answer": "accept", "_is_binary": True}
    path = tmp_path / "manual.jsonl"
    path.write_text(json.dumps({"text": "x y", "spans": spans}) + "\n" + json.dumps(judged))
    block = {"@readers": "spacy-latent.LabelledCorpora.v1", "corpora": {"own": {"path": str(path)}}}
    nlp = spacy.blank("en")
    nlp.add_pipe(component)
    with pytest.warns(LatentWarning, match=r"1 text .*line 2"):
        (example,) = registry.resolve({"reader": block})["reader"](nlp)
    (key,) = example.reference.spans
    assert key == nlp.get_pipe(component).key  # type: ignore[union-attr]
    assert [(span.text, span.label_) for span in example.reference.spans[key]] == [
        ("x", "A"),
        ("x y", "B"),
    ]
