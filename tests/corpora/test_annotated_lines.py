"""Lines with annotation, in the formats of spaCy, Prodigy and doccano."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.cli._util import app
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401
from spacy_latent.cli.corpus import read_counted
from spacy_latent.corpora.annotated_lines import read_line
from spacy_latent.corpora.iob import read_iob, to_biluo, to_iob2
from spacy_latent.corpora.labelled_corpora import read_labelled_corpora_v1
from spacy_latent.distributed.shards import read_shard, shards_of
from spacy_latent.errors import LatentError, LatentWarning
from tests.pipeline.small_pipelines import TOK2VEC, initialized

TEXT = "Anna met Bob in New York."
FOUND = [("Anna", "PER"), ("Bob", "PER"), ("New York", "GPE")]
OFFSETS = [[0, 4, "PER"], [9, 12, "PER"], [16, 24, "GPE"]]
WORDS = ["Anna", "met", "Bob", "in", "New", "York", "."]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


def prodigy_tokens(nlp: Language, text: str) -> list[dict[str, Any]]:
    return [
        {
            "text": t.text,
            "start": t.idx,
            "end": t.idx + len(t),
            "id": t.i,
            "ws": bool(t.whitespace_),
        }
        for t in nlp.make_doc(text)
    ]


def objects(start: str = "start", end: str = "end") -> list[dict[str, Any]]:
    return [{start: s, end: e, "label": label} for s, e, label in OFFSETS]


def read(nlp: Language, row: Any, *keys: str) -> Any:
    line = read_line(nlp, row, "lines.jsonl, line 3", keys)
    assert line.example is not None
    return line.example.reference


def entities(doc: Any) -> list[tuple[str, str]]:
    return [(ent.text, ent.label_) for ent in doc.ents]


BY_TOKENS = [(0, 0, "PER"), (2, 2, "PER"), (4, 5, "GPE")]
ROWS: dict[str, dict[str, Any]] = {
    "spaCy": {"text": TEXT, "entities": OFFSETS},
    "Prodigy": {"text": TEXT, "spans": objects(), "answer": "accept", "_input_hash": 1},
    "doccano": {"id": 1, "text": TEXT, "label": OFFSETS, "Comments": []},
    "doccano, older": {"id": 1, "text": TEXT, "labels": OFFSETS},
    "doccano, with relations": {
        "text": TEXT,
        "entities": objects("start_offset", "end_offset"),
        "relations": [{"id": 0, "from_id": 0, "to_id": 1, "type": "met"}],
    },
    "Label Studio": {
        "id": 1,
        "data": {"comment": TEXT, "rating": 3},
        "annotations": [
            {"was_cancelled": True, "result": []},
            {
                "result": [
                    {"type": "labels", "value": {"start": s, "end": e, "labels": [label]}}
                    for s, e, label in OFFSETS
                ]
            },
        ],
    },
    "Label Studio, shortened": {
        "text": TEXT,
        "label": [{"start": s, "end": e, "labels": [label]} for s, e, label in OFFSETS],
    },
    "words": {"text": TEXT, "words": WORDS, "entities": OFFSETS},
    "tokens and a text": {"text": TEXT, "tokens": WORDS, "entities": OFFSETS},
    "tags of the training format": {"text": TEXT, "tags": WORDS, "entities": OFFSETS},
    "BILUO": {"tokens": WORDS, "entities": "U-PER O U-PER O B-GPE L-GPE O".split()},
    "IOB1": {"tokens": WORDS, "entities": "I-PER O I-PER O I-GPE I-GPE O".split()},
    "BMES": {"tokens": WORDS, "entities": "S-PER O S-PER O B-GPE E-GPE O".split()},
    "white space at ends": {"text": TEXT, "entities": [[0, 5, "PER"], *OFFSETS[1:]]},
    "twice the same": {"text": TEXT, "entities": OFFSETS * 2},
}


@pytest.mark.parametrize("name", ROWS)
def test_entities_are_found_wherever_they_are_written(nlp: Language, name: str) -> None:
    assert entities(read(nlp, ROWS[name])) == FOUND


def test_tokens_of_prodigy(nlp: Language) -> None:
    tokens = prodigy_tokens(nlp, TEXT)
    places = [{"token_start": s, "token_end": e, "label": label} for s, e, label in BY_TOKENS]
    assert entities(read(nlp, {"text": TEXT, "tokens": tokens, "spans": places})) == FOUND
    # If the tokens differ from the pipeline's, only the reference has the tokens of the line.
    apart = prodigy_tokens(nlp, "New York")
    joined = [{"text": "New-York", "start": 0, "end": 8, "id": 0, "ws": False}]
    row = {"text": "New-York", "tokens": joined, "spans": [{"start": 0, "end": 8, "label": "GPE"}]}
    example = read_line(nlp, row, "").example
    assert example is not None
    assert [len(example.reference), len(example.predicted)] == [1, 3]
    # Word pieces do not match the text, so they are ignored.
    pieces = [{**token, "text": f"##{token['text']}"} for token in apart]
    assert [t.text for t in read(nlp, {"text": "New York", "tokens": pieces})] == ["New", "York"]
    # A line without a text gets it from the tokens.
    assert read(nlp, {"tokens": tokens}).text == TEXT


def test_what_a_doc_writes_is_read_whole(nlp: Language) -> None:
    doc = nlp.make_doc(TEXT)
    doc.ents = [doc.char_span(0, 4, "PER")]
    doc.spans["sc"] = [doc.char_span(16, 24, "GPE"), doc.char_span(20, 24, "X")]
    doc.cats = {"good": 1.0}
    row = json.loads(json.dumps({**doc.to_json(), "_": {"not_registered": 1}}))
    again = read(nlp, row)
    assert entities(again) == FOUND[:1] and again.cats == doc.cats
    assert [s.label_ for s in again.spans["sc"]] == ["GPE", "X"]
    assert not doc.has_extension("not_registered")


def test_spans_that_overlap_are_for_components_of_spans(nlp: Language) -> None:
    row = {"text": TEXT, "spans": [*objects(), {"start": 0, "end": 8, "label": "X"}]}
    with pytest.raises(LatentError, match=r"line 3.*'Anna'.*PER.*'Anna met'.*X"):
        read(nlp, row)
    doc = read(nlp, row, "sc")
    assert len(doc.spans["sc"]) == 4 and not doc.has_annotation("ENT_IOB")


def test_spans_that_are_not_of_tokens_are_told_and_not_guessed(nlp: Language) -> None:
    row = {"text": TEXT, "spans": [{"start": 0, "end": 6, "label": "X"}, *objects()[1:]]}
    line = read_line(nlp, row, "", ["sc"])
    assert line.misaligned == ["'Anna m' (0 to 6, X)"] and line.example is not None
    reference = line.example.reference
    assert entities(reference) == FOUND[1:] and len(reference.spans["sc"]) == 2
    assert [token.ent_iob_ for token in reference][:3] == ["", "", "B"]
    groups = read_line(nlp, {"text": TEXT, "spans": {"sc": [[0, 6, "X"], [0, 8]]}}, "")
    assert groups.example is not None and len(groups.misaligned) == 1
    assert [s.text for s in groups.example.reference.spans["sc"]] == ["Anna met"]


@pytest.mark.parametrize(
    ("row", "cats"),
    [
        ({"label": "good", "answer": "accept"}, {"good": 1.0}),
        ({"label": "good", "answer": "reject"}, {"good": 0.0}),
        ({"options": [{"id": "a"}, {"id": "b"}], "accept": ["b"]}, {"a": 0.0, "b": 1.0}),
        ({"options": [{"id": "a"}], "accept": ["c"]}, {"a": 0.0, "c": 1.0}),
        ({"label": ["good"]}, {"good": 1.0}),
        ({"label": "good"}, {}),
        ({"label": "PER", "spans": objects()}, {}),
        ({"label": "x", "cats": {"good": 0.5}}, {"good": 0.5}),
        ({"entities": OFFSETS, "cats": ["good", "long"]}, {"good": 1.0, "long": 1.0}),
    ],
)
def test_categories(nlp: Language, row: dict[str, Any], cats: dict[str, float]) -> None:
    assert read(nlp, {"text": TEXT, **row}).cats == cats


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"spans": [{"start": 0, "end": 99, "label": "X"}]}, "from 0 to 99, and the text has 25"),
        ({"spans": [{"start": 4, "end": 4, "label": "X"}]}, "from 4 to 4"),
        ({"label": [[5, 2, "X"]]}, "from 5 to 2"),
        ({"label": [[-1, 2, "X"]]}, 'expected {"start": 0'),
        ({"label": [["0", 2, "X"]]}, 'expected {"start": 0'),
        ({"label": [[0, 4]]}, 'expected {"start": 0'),
        ({"spans": [{"token_start": 0, "token_end": 0, "label": "X"}]}, 'expected {"start": 0'),
        ({"spans": [{"start": 0, "end": 4, "label": ""}]}, "has no label"),
        ({"spans": "Anna"}, "'spans' is 'Anna'"),
        ({"entities": {"a": 1}}, "'entities' is"),
        ({"entities": ["O"]}, "1 tags; expected one for each of the 7 tokens"),
        ({"entities": ["PER"] * 7}, "the tag 'PER'"),
        ({"tokens": [{"id": 0}, "a"]}, "has no 'text'"),
        ({"tokens": [3]}, "'tokens' is"),
        ({"text": None}, "'text' is null"),
    ],
)
def test_what_is_wrong_is_told_with_the_line(nlp: Language, row: dict[str, Any], said: str) -> None:
    with pytest.raises(LatentError) as raised:
        read(nlp, {"text": TEXT, **row})
    assert "lines.jsonl, line 3: " in str(raised.value) and said in str(raised.value)


def test_rejected_lines_are_left_out_and_counted(
    nlp: Language, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines.jsonl"
    rows = [{"text": TEXT, "spans": objects(), "answer": a} for a in ("accept", "reject", "ignore")]
    rows.append({"text": TEXT, "spans": [{"start": 1, "end": 4, "label": "X"}]})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    examples, _ = read_counted(nlp, str(path))
    assert len(examples) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "2 lines with the answer reject or ignore, first line 2" in told
    assert "1 span of" in told and "in line 4" in told
    # Lines after the limit are not counted.
    read_counted(nlp, str(path), limit=1)
    assert "answer" not in capsys.readouterr().err


def test_rejected_spans_may_be_kept(nlp: Language) -> None:
    row = {"text": TEXT, "spans": objects()[:1], "answer": "reject"}
    example = read_line(nlp, row, "", rejected_key="wrong").example
    assert example is not None
    (wrong,) = example.reference.spans["wrong"]
    assert (wrong.text, wrong.label_) == ("Anna", "PER")
    assert not example.reference.ents
    assert {token.ent_iob for token in example.reference} == {0}
    ignored = {**row, "answer": "ignore"}
    assert read_line(nlp, ignored, "", rejected_key="wrong").example is None


def test_tasks_of_label_studio_without_an_annotation_are_left_out(nlp: Language) -> None:
    task = {"data": {"text": TEXT}, "annotations": [{"was_cancelled": True, "result": []}]}
    assert read_line(nlp, task, "").example is None
    chosen = {"result": [{"value": {"choices": ["good"]}}]}
    assert read(nlp, {**task, "annotations": [chosen]}).cats == {"good": 1.0}
    with pytest.raises(LatentError):
        read(nlp, {**task, "data": {"a": "x", "b": "y"}})


def test_results_of_label_studio_about_a_text_say_nothing_of_entities(nlp: Language) -> None:
    task = {"data": {"text": TEXT}, "annotations": [{"result": []}]}
    assert {token.ent_iob for token in read(nlp, task)} == {2}
    paths = [["animal", "dog"], ["animal", "cat"], ["food"]]
    cats = dict.fromkeys(["animal", "dog", "cat", "food"], 1.0)
    others: list[dict[str, Any]] = [{"rating": 4}, {"number": 4}, {"datetime": "2026-11-30"}]
    for value, expected in (({"taxonomy": paths}, cats), *((other, {}) for other in others)):
        doc = read(nlp, {**task, "annotations": [{"result": [{"value": value}]}]})
        assert doc.cats == expected and {token.ent_iob for token in doc} == {0}


def test_a_region_of_label_studio_may_have_several_labels(nlp: Language) -> None:
    value = {"start": 0, "end": 4, "labels": ["PER", "GIRL"]}
    task = {"data": {"text": TEXT}, "annotations": [{"result": [{"value": value}]}]}
    for row in (task, {"text": TEXT, "label": [value]}):
        example = read_line(nlp, row, "", span_keys=["sc"]).example
        assert example is not None
        spans = example.reference.spans["sc"]
        assert {(span.text, span.label_) for span in spans} == {("Anna", "PER"), ("Anna", "GIRL")}
        with pytest.raises(LatentError, match="overlap"):
            read(nlp, row)


def test_every_command_reads_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}, "annotate": "probabilities"})
    path = tmp_path / "lines.jsonl"
    rows = [{"text": TEXT, "tokens": prodigy_tokens(nlp, TEXT), "spans": objects()}]
    rows += [ROWS["doccano"], ROWS["Prodigy"], ROWS["BMES"]]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    initialized(nlp, sample=read_counted(nlp, str(path))[0])
    nlp.to_disk(tmp_path / "model")
    monkeypatch.setattr(spacy, "load", lambda name: nlp)
    model = str(tmp_path / "model")
    for arguments in (
        ["scores", model, str(path)],
        ["report", model, str(path), str(tmp_path / "page.html"), "--no-random"],
        ["calibrate", model, str(path), str(tmp_path / "calibrated")],
        ["render", model, str(path), str(tmp_path / "drawn.html")],
        ["debug", model, "--corpus", str(path), "--steps", "1"],
        ["annotate", model, str(path), str(tmp_path / "annotated"), "--format", "docbin"],
    ):
        done = CliRunner().invoke(app, ["latent", *arguments])
        assert done.exit_code == 0, (arguments[0], done.output)
        if arguments[0] == "render":
            assert "Drawings of 4 texts" in done.output
        elif arguments[0] == "annotate":
            assert "4 texts in 1 file" in done.output


def test_annotate_reads_words_and_ends_of_lines_as_others_do(nlp: Language, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"id": 7, "tokens": ["a", "b"]}\n{"text": "c"}\n', encoding="utf8")
    (shard,) = shards_of(path, 10)
    first, second = read_shard(shard, nlp.vocab)
    assert (first.id, len(first.text), second.text) == ("7", 2, "c")
    for ends in ("\n", "\r\n", "\r"):
        plain = tmp_path / "texts.txt"
        plain.write_bytes(f"\ufeffa\u2028b{ends}{ends}c{ends}d".encode())
        shards = shards_of(plain, 3)
        read = [row.text for shard in shards for row in read_shard(shard, nlp.vocab)]
        assert read == ["a\u2028b", "", "c", "d"]


@pytest.mark.parametrize(
    ("tags", "iob2"),
    [
        # Two adjacent entities with the same label. IOB1 begins the second one with B-, and other
        # schemes mark the end of the first one.
        ("I-X B-X I-X O I-Y", "B-X B-X I-X O B-Y"),
        ("B-X B-X I-X O B-Y", "B-X B-X I-X O B-Y"),
        ("S-X B-X E-X O S-Y", "B-X B-X I-X O B-Y"),
        ("U-X B-X L-X O U-Y", "B-X B-X I-X O B-Y"),
        ("B-X M-X E-X M-X O", "B-X I-X I-X B-X O"),
        ("I-X I-Y - I-Y O", "B-X B-Y - B-Y O"),
    ],
)
def test_tags_of_any_scheme(tags: str, iob2: str) -> None:
    found = to_iob2(tags.split())
    assert found == iob2.split()
    assert to_iob2(to_biluo(tags.split())) == found and to_iob2(found) == found
    if "-" not in found:
        lines = "".join(f"w\t{tag}\n" for tag in tags.split())
        assert list(read_iob(lines)) == [(["w"] * len(found), found)]


def test_half_of_a_surrogate_pair_is_told_with_its_line(nlp: Language, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00"}\n{"text": "a\\ud83d"}\n', encoding="utf8")
    with pytest.raises(LatentError, match=r"line 2.*ud83d"):
        read_counted(nlp, str(path))


def test_files_of_annotated_tokens_are_told_how_they_are_converted(
    nlp: Language, tmp_path: Path
) -> None:
    for ending in (".conllu", ".iob"):
        path = tmp_path / f"tokens{ending}"
        path.write_text("1\ta\n", encoding="utf8")
        with pytest.raises(LatentError, match="spacy convert"):
            read_counted(nlp, str(path))


def test_offsets_count_the_white_space_of_the_text(nlp: Language) -> None:
    spans = [{"start": 4, "end": 5, "label": "C"}]
    for key in ("tokens", "words"):
        doc = read(nlp, {"text": "a   b c d", key: ["a", "b", "c", "d"], "spans": spans})
        assert entities(doc) == [("b", "C")]


def test_rejected_groups_of_spans_are_left_out(nlp: Language) -> None:
    row = {"text": "a b", "answer": "reject", "spans": {"sc": [{"start": 0, "end": 1}]}}
    assert read_line(nlp, row, "", rejected_key="wrong").example is None


def question(answer: str, text: str = TEXT, place: int = 0) -> dict[str, Any]:
    """Return a line of Prodigy's ner.teach, which asks about one span."""
    span = objects()[place]
    return {"text": text, "spans": [span], "_is_binary": True, "answer": answer}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    return path


def corpus(path: Path, nlp: Language, **settings: Any) -> list[Doc]:
    reader = read_labelled_corpora_v1({"one": {"path": str(path), **settings}})
    return [example.reference for example in reader(nlp)]


def test_answers_on_single_spans_judge_no_text(
    nlp: Language, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"text": TEXT, "spans": objects(), "_is_binary": False, "answer": "accept"}
    path = written(tmp_path, whole, question("accept"), question("reject"))
    examples, _ = read_counted(nlp, str(path))
    assert [len(example.reference.ents) for example in examples] == [3]
    told = " ".join(capsys.readouterr().err.split())
    assert "2 lines" in told and "first line 2" in told and "_is_binary" in told
    with pytest.raises(LatentError, match="completely"):
        read_counted(nlp, str(written(tmp_path, question("accept"), question("reject"))))


@pytest.mark.parametrize("unmarked", [None, "missing", "outside"])
def test_answers_on_single_spans_leave_other_tokens_open(
    nlp: Language, tmp_path: Path, unmarked: str | None
) -> None:
    path = written(tmp_path, question("accept", place=2), question("reject"))
    settings = {"unmarked": unmarked, "incorrect_spans_key": "wrong"}
    accepted, rejected = corpus(path, nlp, **settings)
    assert entities(accepted) == [("New York", "GPE")]
    assert [token.ent_iob for token in accepted] == [0, 0, 0, 0, 3, 1, 0]
    assert not rejected.ents and [span.text for span in rejected.spans["wrong"]] == ["Anna"]
    assert {token.ent_iob for token in rejected} == {0}


@pytest.mark.parametrize("answer", ["accept", "reject"])
def test_answers_on_a_category_judge_the_text_and_no_entities(nlp: Language, answer: str) -> None:
    """Lines of textcat.teach have an empty list of spans, which does not annotate entities."""
    row = {"text": TEXT, "label": "news", "spans": [], "_is_binary": True, "answer": answer}
    line = read_line(nlp, row, "")
    assert line.example is not None and not line.is_partial
    assert line.example.reference.cats == {"news": float(answer == "accept")}
    assert {token.ent_iob for token in line.example.reference} == {0}


def test_answers_on_spans_that_overlap_are_read_for_groups_and_refused_as_entities(
    nlp: Language,
) -> None:
    spans = [{"start": 0, "end": 4, "label": "A"}, {"start": 0, "end": 9, "label": "B"}]
    row = {"text": "Anna came", "spans": spans, "_is_binary": True, "answer": "accept"}
    line = read_line(nlp, row, "line 1", ["sc"])
    assert line.is_partial and line.example is not None
    assert len(line.example.reference.spans["sc"]) == 2
    assert {token.ent_iob for token in line.example.reference} == {0}
    with pytest.raises(LatentError, match="overlap"):
        read_line(nlp, row, "line 1")


def test_every_reader_names_the_line_that_is_no_json(nlp: Language, tmp_path: Path) -> None:
    good, bad = '{"text": "a b", "label": []}', '{"text": "abc", "label": [[0, 3, "X"]]'
    lines, listed = tmp_path / "lines.jsonl", tmp_path / "list.json"
    lines.write_text(f"{good}\n\n{bad}\n{good}\n", encoding="utf8")
    listed.write_text(f"[{good},\n\n{bad},\n{good}]", encoding="utf8")
    for read_all in (lambda path: read_counted(nlp, str(path)), lambda path: corpus(path, nlp)):
        with pytest.raises(LatentError) as error:
            read_all(lines)
        assert f"line 3, column {len(bad) + 1}" in str(error.value)
        assert str(error.value).count("line ") == 1
        with pytest.raises(LatentError, match=r"line [34], column"):
            read_all(listed)


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_half_of_a_surrogate_pair_is_named(nlp: Language, tmp_path: Path, ending: str) -> None:
    good, bad = '{"text": "a \\ud83d\\udc8a"}', '{"text": "a \\ud83d b"}'
    path = tmp_path / f"texts{ending}"
    path.write_text(f"{good}\n{bad}" if ending == ".jsonl" else f"[{good}, {bad}]", "utf8")
    for read_all in (lambda: read_counted(nlp, str(path)), lambda: corpus(path, nlp)):
        with pytest.raises(LatentError, match=r"(line|text) 2.*surrogate"):
            read_all()


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a b", "tokens": ["a", "b"], "heads": [0, 9], "deps": ["x", "y"]},
        {"text": "a b", "tokens": ["a", "b"], "tags": [1, 2]},
        {"text": "a b", "ents": [], "tokens": [{"id": 0}]},
        {"tokens": ["a", ""]},
        {"data": "a b", "annotations": []},
        {"data": {"text": "a b"}, "annotations": [{"result": ["x"]}]},
    ],
)
def test_commands_and_training_name_the_line_of_wrong_values(
    nlp: Language, tmp_path: Path, row: dict[str, Any]
) -> None:
    path = written(tmp_path, {"text": "a"}, row)
    for read_all in (lambda: corpus(path, nlp), lambda: read_counted(nlp, str(path))):
        with pytest.raises(LatentError, match="line 2"):
            read_all()


def test_commands_and_training_name_the_file_of_a_directory_that_is_damaged(
    nlp: Language, tmp_path: Path
) -> None:
    docs = [nlp("Anna met Bob"), Doc(nlp.vocab)]
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    assert [doc.text for doc in corpus(tmp_path, nlp)] == ["Anna met Bob"]
    whole = (tmp_path / "a.spacy").read_bytes()
    (tmp_path / "b.spacy").write_bytes(whole[:-9])
    for read_all in (lambda: corpus(tmp_path, nlp), lambda: read_counted(nlp, str(tmp_path))):
        with pytest.raises(LatentError, match=r"b\.spacy"):
            read_all()


def test_a_line_with_another_format_is_named(nlp: Language, tmp_path: Path) -> None:
    with pytest.raises(LatentError, match="line 2"):
        corpus(written(tmp_path, {"text": "a"}, {"no": "text"}), nlp)


def test_offsets_in_code_units_of_utf_16_are_recognised(
    nlp: Language, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\U0001f48a ibuprofen helps"
    row = {"text": text, "label": [[3, 12, "Chemical"]]}
    (told,) = read_line(nlp, row, "").misaligned
    assert "3 to 12" in told and "'ibuprofen'" in told and "UTF-16" in told
    # One span does not fit in UTF-16 either, and one text has no characters outside of the BMP.
    for wrong in ({**row, "label": [[4, 12, "X"]]}, {"text": TEXT, "label": [[1, 4, "X"]]}):
        (told,) = read_line(nlp, wrong, "").misaligned
        assert "UTF-16" not in told
    # The bounds may also lie beyond the end of the text.
    last = {"text": "\U0001f48a aspirin", "label": [[3, 10, "Chemical"]]}
    with pytest.raises(LatentError, match=r"'aspirin'.*UTF-16"):
        read_line(nlp, last, "")
    assert not read_line(nlp, {"text": text, "label": [[2, 11, "Chemical"]]}, "").misaligned
    path = written(tmp_path, row)
    with pytest.warns(LatentWarning, match=r"line 1 .*3 to 12.*UTF-16"):
        corpus(path, nlp)
    read_counted(nlp, str(path))
    assert "UTF-16" in capsys.readouterr().err


def test_spans_elsewhere_than_their_text_are_refused(nlp: Language) -> None:
    # Label Studio counts in code units of UTF-16: 7 is "b" there, and "c" in characters.
    text = "\U0001f600\U0001f600 a b c d\ne"

    def task(start: int, end: int, own: str) -> dict[str, Any]:
        value = {"start": start, "end": end, "text": own, "labels": ["X"]}
        return {"data": {"text": text}, "annotations": [{"result": [{"value": value}]}]}

    with pytest.raises(LatentError, match=r"line 3: .*'b'.*UTF-16"):
        read(nlp, task(7, 8, "b"))
    assert entities(read(nlp, task(5, 6, "b"))) == [("b", "X")]
    # Line breaks are escaped there.
    assert entities(read(nlp, task(9, 12, r"d\ne"))) == [("d\ne", "X")]
    for own in ("z", ""):
        span = {"start": 3, "end": 4, "text": own, "label": "X"}
        with pytest.raises(LatentError) as told:
            read(nlp, {"text": text, "spans": [span]})
        assert "UTF-16" not in str(told.value)


@pytest.mark.parametrize("key", ["tokens", "words"])
def test_offsets_are_of_the_text_if_tokens_are_of_another(nlp: Language, key: str) -> None:
    text, words = 'A "b" d Bob', ["A", "``", "b", "''", "d", "Bob"]
    # In the tokens, with a space between them, 6 to 7 would be "b" and 8 to 11 no token.
    spans = [[6, 7, "X"], [8, 11, "PER"]]
    for own in ({"entities": spans}, {"spans": {"sc": spans}}):
        doc = read(nlp, {"text": text, key: words, **own})
        found = doc.ents or doc.spans["sc"]
        assert [(span.text, span.label_) for span in found] == [("d", "X"), ("Bob", "PER")]
    tagged = {"text": text, key: words, "tags": list("abcdef")}
    assert [token.text for token in read(nlp, tagged)] == words
    with pytest.raises(LatentError, match="line 3"):
        read(nlp, {**tagged, "entities": spans})


@pytest.mark.parametrize("key", ["words", "tokens"])
def test_tokens_may_leave_out_white_space_at_the_end_of_the_text(nlp: Language, key: str) -> None:
    row = {"text": "Anna met Bob\n", key: ["Anna", "met", "Bob"], "tags": ["N", "V", "N"]}
    reference = read(nlp, {**row, "entities": [[9, 12, "PER"]]})
    assert entities(reference) == [("Bob", "PER")]
    assert [token.tag_ for token in reference] == ["N", "V", "N"]


@pytest.mark.parametrize("kind", ["hypertextlabels", "paragraphlabels"])
def test_spans_of_web_pages_and_dialogues_are_refused(nlp: Language, kind: str) -> None:
    value = {"start": "0", "end": "0", "startOffset": 0, "endOffset": 4, kind: ["PER"]}
    result = [{"type": kind, "value": value}]
    row = {"id": 1, "data": {"text": TEXT}, "annotations": [{"result": result}]}
    with pytest.raises(LatentError, match=r"line 3: a span is .*expected"):
        read(nlp, row)


def test_choices_about_spans_are_not_of_the_text(nlp: Language) -> None:
    place = {"start": 0, "end": 4, "text": "Anna"}
    span = {"type": "labels", "id": "a", "value": {**place, "labels": ["PER"]}}
    about = [
        {"type": "choices", "id": "a", "value": {**place, "choices": ["sure"]}},
        {"type": "textarea", "id": "a", "value": {**place, "text": ["a note"]}},
    ]
    whole = {"type": "choices", "value": {"choices": ["news"]}}
    task = {"data": {"text": TEXT}, "annotations": [{"result": [span, *about, whole]}]}
    doc = read(nlp, task)
    assert entities(doc) == FOUND[:1] and doc.cats == {"news": 1.0}
    # A span without a label is refused as before.
    task["annotations"] = [{"result": [{"type": "labels", "value": place}]}]
    with pytest.raises(LatentError, match="line 3"):
        read(nlp, task)


@pytest.mark.parametrize("key", ["tokens", "words"])
def test_an_empty_list_of_tokens_leaves_them_to_the_tokenizer(nlp: Language, key: str) -> None:
    assert entities(read(nlp, {"text": TEXT, key: [], "entities": OFFSETS})) == FOUND
    assert [len(read(nlp, {"text": text, key: []})) for text in ("a b", "")] == [2, 0]


def test_spans_of_white_space_are_reported(nlp: Language) -> None:
    # In code units of UTF-16 this is "b".
    row = {"text": "\U0001f600 a b c", "spans": [{"start": 5, "end": 6, "label": "X"}]}
    line = read_line(nlp, row, "")
    assert line.example is not None and not line.example.reference.ents
    (told,) = line.misaligned
    assert "5 to 6" in told and "'b'" in told
    for text in ("a\nb", "a  b"):
        line = read_line(nlp, {"text": text, "spans": {"sc": [[1, 2, "X"], [0, 1, "Y"]]}}, "")
        assert line.example is not None and len(line.misaligned) == 1
        assert [span.label_ for span in line.example.reference.spans["sc"]] == ["Y"]


def test_an_export_of_label_studio_is_read_by_commands_and_training(
    nlp: Language, tmp_path: Path
) -> None:
    value = {"start": 0, "end": 4, "labels": ["PER"], "text": "Anna"}
    task = {"data": {"text": TEXT}, "annotations": [{"result": [{"value": value}]}]}
    path = tmp_path / "export.json"
    path.write_text(json.dumps([task, task], indent=1), encoding="utf8")
    read_by_commands = [example.reference for example in read_counted(nlp, str(path))[0]]
    for docs in (read_by_commands, corpus(path, nlp)):
        assert [entities(doc) for doc in docs] == [[("Anna", "PER")]] * 2
    path.write_text(json.dumps(task), encoding="utf8")
    for read_all in (lambda: read_counted(nlp, str(path)), lambda: corpus(path, nlp)):
        with pytest.raises(LatentError, match="list"):
            read_all()
