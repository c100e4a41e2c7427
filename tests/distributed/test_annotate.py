"""Annotation of corpora by one process and by several, some of which are killed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import DocBin
from typer.testing import CliRunner

from spacy_latent.cli.app import latent_cli
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.distributed import annotate as module
from spacy_latent.distributed import shard_annotation
from spacy_latent.distributed.annotate import annotate, annotate_shard, model_hash
from spacy_latent.distributed.parquet import Row
from spacy_latent.distributed.shard_annotation import annotate_rows, text_fields
from spacy_latent.distributed.shards import Shard, Source, read_shard, shards_of
from spacy_latent.errors import LatentError
from tests.conftest import HERE, STAND_INS
from tests.distributed.annotating import (
    CODE,
    check_whole,
    prepare,
    rows_of,
    save_lines,
    save_model,
    texts,
)
from tests.distributed.marking_component import DEATHS, die_while_writing
from tests.models import pair_pipelines as pairs
from tests.pipeline.small_pipelines import initialized

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
can_be_killed = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no SIGKILL")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "pipeline")


@pytest.fixture(autouse=True)
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deaths"
    path.mkdir()
    monkeypatch.setenv(DEATHS, str(path))
    return path


def test_each_text_has_a_row_with_what_the_pipeline_says(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts())
    done = annotate(model, corpus, tmp_path / "out", rows=15)
    assert (done.rows, done.shards, done.failed, done.skipped) == (40, 3, 0, 0)
    rows = check_whole(tmp_path / "out", texts())
    nlp = spacy.load(model)
    for row in rows:
        assert row.doc is not None
        expected = nlp(row.text)
        ours, theirs = (doc._.latent["marking"].items() for doc in (row.doc, expected))
        assert ours == theirs and row.doc.cats == expected.cats
        assert len(list(row.doc.sents)) == 2
    stored = pq.read_table(tmp_path / "out").to_pylist()[0]
    assert stored["model_hash"] == model_hash(model) and stored["model"] == "en_pipeline"
    assert rows[17].id == "corpus.jsonl:17"


@pytest.mark.parametrize("form", ["parquet", "docbin"])
def test_half_of_a_surrogate_pair_is_an_error_of_its_row(
    model: Path, tmp_path: Path, form: str
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    # JSON can express a single surrogate, and the files of the output cannot.
    corpus.write_text(
        '{"text": "good"}\n{"text": "bad \\ud800"}\n{"id": "\\udfff", "text": "well"}\n'
    )
    done = annotate(model, corpus, tmp_path / "out", form=form)
    assert (done.rows, done.failed) == (3, 1)


def test_what_is_done_is_not_done_again(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts())
    annotate(model, corpus, tmp_path / "out", rows=15)
    middle = tmp_path / "out" / "corpus.jsonl-00001.parquet"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    middle.unlink()
    done = annotate(model, corpus, tmp_path / "out", rows=15)
    assert (done.rows, done.shards, done.skipped) == (15, 1, 2)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert [path for path in after if after[path] != before[path]] == [middle]
    check_whole(tmp_path / "out", texts())


def test_output_of_something_else_is_not_added_to(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(3))
    annotate(model, corpus, tmp_path / "out")
    with pytest.raises(LatentError, match=r"--rows.*10000.*2"):
        annotate(model, corpus, tmp_path / "out", rows=2)
    with pytest.raises(LatentError, match=r"--id-field.*id.*key"):
        annotate(model, corpus, tmp_path / "out", id_field="key")
    moved = tmp_path / "moved" / corpus.name
    moved.parent.mkdir()
    shutil.copy(corpus, moved)
    assert annotate(model, moved, tmp_path / "out").skipped == 1
    save_lines(corpus, texts(5))
    with pytest.raises(LatentError, match="corpus"):
        annotate(model, corpus, tmp_path / "out")
    (tmp_path / "out" / module.MANIFEST).write_text("{")
    with pytest.raises(LatentError, match=r"_annotation.json"):
        annotate(model, corpus, tmp_path / "out")
    (tmp_path / "out" / module.MANIFEST).unlink()
    with pytest.raises(LatentError, match="else"):
        annotate(model, corpus, tmp_path / "out")


def test_a_refused_output_is_not_taken_for_a_damaged_one(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(3))
    output = tmp_path / "out"
    output.mkdir()
    (output / "other.spacy").write_bytes(b"")
    with pytest.raises(LatentError) as refused:
        annotate(model, corpus, output)
    # The files are of another kind, and it would be wrong to delete them.
    assert "Delete" not in str(refused.value)


@pytest.mark.parametrize("place", ["", "inside"])
def test_output_in_the_corpus_is_refused(model: Path, tmp_path: Path, place: str) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    save_lines(corpus / "a.jsonl", texts(3))
    with pytest.raises(LatentError):
        annotate(model, corpus, corpus / place)
    assert [path.name for path in corpus.iterdir()] == ["a.jsonl"]


def test_another_pipeline_has_another_hash(model: Path, tmp_path: Path) -> None:
    for name in ("same", "other"):
        shutil.copytree(model, tmp_path / name)
    (tmp_path / "other" / "meta.json").write_text("{}")
    assert model_hash(tmp_path / "same") == model_hash(model) != model_hash(tmp_path / "other")
    with pytest.raises(LatentError, match="exist"):
        model_hash(tmp_path / "none")


def test_a_text_that_fails_keeps_its_error_and_the_others_of_its_batch_are_done(
    model: Path, tmp_path: Path
) -> None:
    given = [*texts(5), "a bad one", *texts(3)]
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    done = annotate(model, corpus, tmp_path / "out")
    assert (done.rows, done.failed) == (9, 1)
    rows = check_whole(tmp_path / "out", given)
    assert [row.doc is None for row in rows] == [text == "a bad one" for text in given]
    assert rows[5].error == "marking: ValueError: a bad text"


def test_a_component_that_gives_up_a_whole_batch_loses_only_what_is_to_blame() -> None:
    nlp = spacy.blank("en")

    class Batches:
        def __call__(self, doc: Any) -> Any:
            return doc

        def pipe(self, stream: Any, batch_size: int) -> Any:
            for doc in list(stream):
                if doc.text == "bad":
                    raise ValueError("no")
                yield doc

    spacy.Language.component("batches_of_tests", func=Batches())
    nlp.add_pipe("batches_of_tests")
    nlp.max_length = 100
    given = ["a", "bad", "b", "long " * 30, "c"]
    rows = annotate_rows(nlp, [Source(text, text) for text in given])
    assert [row.text for row in rows if row.doc is None] == ["bad", "long " * 30]
    assert rows[1].error == "ValueError: no" and str(rows[3].error).startswith("tokenizer: ")


@pytest.mark.parametrize("name", ["ner", "parser", "beam_ner", "textcat", "crf_ner"])
def test_a_component_without_a_place_for_error_handlers_is_run(name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name)
    initialized(nlp)
    rows = annotate_rows(nlp, [Source(text, text) for text in texts(3)])
    assert [row.error for row in rows] == [None] * 3 and all(row.doc for row in rows)


def test_a_pipeline_that_was_trained_again_is_loaded_again(tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(1))
    for label in ("FIRST", "SECOND"):
        nlp = spacy.blank("en")
        nlp.add_pipe("entity_ruler").add_patterns(  # type: ignore[attr-defined]
            [{"label": label, "pattern": "text"}]
        )
        nlp.to_disk(tmp_path / "model")
        annotate(tmp_path / "model", corpus, tmp_path / label)
        (row,) = pq.read_table(tmp_path / label).to_pylist()
        assert [ent["label"] for ent in row["ents"]] == [label]
        assert row["model_hash"] == model_hash(tmp_path / "model")


def test_docs_of_docbin_are_annotated_as_they_are(model: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    docs = [nlp(text) for text in [*texts(3), "bad"]]
    docs[1].spans["kept"] = [docs[1][:2]]
    docs[2].user_data["id"] = "own"
    docs[1].user_data["id"] = 17
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "corpus.spacy")
    annotate(model, tmp_path / "corpus.spacy", tmp_path / "out", form="docbin")
    (file,) = (tmp_path / "out").glob("*.spacy")
    found = list(DocBin().from_disk(file).get_docs(nlp.vocab))
    assert [doc.text for doc in found] == [doc.text for doc in docs]
    assert len(found[1].spans["kept"]) == 1 and "marking" in found[1]._.latent
    ids = [doc.user_data["id"] for doc in found]
    assert ids == ["corpus.spacy:0", "17", "own", "corpus.spacy:3"]
    assert "a bad text" in found[3].user_data["error"] and "error" not in found[0].user_data


def test_words_of_docs_are_known_in_every_chunk(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_annotation, "CHUNK", 2)
    nlp = spacy.blank("en")
    given = [f"word{number} unlike others" for number in range(5)]
    for name in ("first", "second"):
        path = tmp_path / "corpus" / f"{name}.spacy"
        path.parent.mkdir(exist_ok=True)
        DocBin(docs=[nlp(text) for text in given]).to_disk(path)
    annotate(model, tmp_path / "corpus", tmp_path / "out")
    check_whole(tmp_path / "out", [*given, *given])
    # The vocabulary of the pipeline forgets the words at the end of each file.
    vocab = shard_annotation.load(model).nlp.vocab
    assert "word3" not in vocab.strings


# ---------------------------------------------------------------- processes


def test_several_processes_do_what_one_does(model: Path, tmp_path: Path) -> None:
    given = [*texts(30), "bad", ""]
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    done = annotate(model, corpus, tmp_path / "several", rows=8, workers=2, prepare=prepare)
    alone = annotate(model, corpus, tmp_path / "alone", rows=8)
    assert done == alone
    check_whole(tmp_path / "several", given)
    for path in (tmp_path / "alone").glob("*.parquet"):
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "several" / path.name))


def test_a_script_that_processes_cannot_import_is_an_error_at_once(
    model: Path, tmp_path: Path
) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(4))
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from spacy_latent.distributed.annotate import annotate\n"
        "from tests.distributed import marking_component\n"
        "annotate(*sys.argv[1:3], Path(sys.argv[3]), workers=2, rows=2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, model, corpus, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (STAND_INS, HERE.parent)))},
    )
    assert done.returncode == 1 and "__name__ == '__main__'" in done.stderr.splitlines()[-1]
    # Only one process was tried.
    assert done.stderr.count("An attempt has been made to start a new process") == 1


@can_be_killed
@pytest.mark.parametrize("when", ["while it predicts", "while it writes", "before the name"])
def test_a_process_that_is_killed_loses_nothing_and_doubles_nothing(
    model: Path, tmp_path: Path, deaths: Path, when: str
) -> None:
    given = texts(30)
    if when == "while it predicts":
        given[13] = "This is where to kill."
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    how: dict[str, Any] = {"prepare": prepare, "prepare_with": (deaths, when)}
    done = annotate(model, corpus, tmp_path / "out", rows=10, workers=2, **how)
    assert [path.name for path in deaths.iterdir()] == [when]
    assert (done.rows, done.shards) == (30, 3)
    check_whole(tmp_path / "out", given)


@can_be_killed
@pytest.mark.parametrize("when", ["while it predicts", "while it writes"])
def test_a_command_that_is_killed_is_taken_up_by_starting_it_again(
    model: Path, tmp_path: Path, deaths: Path, when: str
) -> None:
    given = texts(30)
    given[13] = "This is where to kill."
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    child = os.fork()
    if not child:
        if when == "while it writes":
            die_while_writing(True)
        annotate(model, corpus, tmp_path / "out", rows=10)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
    (deaths / "while it predicts").touch()
    left = list((tmp_path / "out").glob(".*.tmp"))
    assert len(left) == 1, "nothing was being written"
    assert all(row.text in given for row in _rows_if_any(tmp_path / "out"))
    done = annotate(model, corpus, tmp_path / "out", rows=10)
    assert done.shards + done.skipped == 3
    check_whole(tmp_path / "out", given)


@can_be_killed
def test_a_shard_of_which_processes_die_is_given_up_and_the_others_are_done(
    model: Path, tmp_path: Path
) -> None:
    given = [*texts(4), "kill", *texts(3)]
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    how: dict[str, Any] = {"prepare": prepare, "prepare_with": (None, "")}
    with pytest.raises(LatentError, match=r"corpus\.jsonl-00001"):
        annotate(model, corpus, tmp_path / "out", rows=4, workers=2, **how)
    assert [row.text for row in rows_of(tmp_path / "out")] == given[:4]


def test_an_error_of_a_process_is_told(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(4))
    # prepare gets too many arguments, which raises an error inside of the processes.
    how: dict[str, Any] = {"prepare": prepare, "prepare_with": (None, 3, "too many")}
    with pytest.raises(LatentError, match="TypeError"):
        annotate(model, corpus, tmp_path / "out", workers=2, rows=2, **how)


def _rows_if_any(output: Path) -> list[Row]:
    return rows_of(output) if list(output.glob("*.parquet")) else []


# ---------------------------------------------------------------- input files


def test_every_form_is_read_in_shards(model: Path, tmp_path: Path) -> None:
    given = ["first", "", "two words", 'with "marks"', "été", "last"]
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "lines.txt").write_text("\n".join(given), encoding="utf8")
    rows = [{"id": f"t{i}", "body": text} for i, text in enumerate(given)]
    (folder / "rows.jsonl").write_bytes("".join(json.dumps(row) + "\r\n" for row in rows).encode())
    table = pa.table({"id": range(6), "body": given, "other": range(6)})
    pq.write_table(table, folder / "table.parquet", row_group_size=4)
    below = folder / "below"
    below.mkdir()
    (below / "lines.txt").write_text("under\n")
    (folder / ".hidden.txt").write_text("hidden\n")
    (folder / "readme.md").write_text("none\n")
    shards = shards_of(folder, 4, text_field="body")
    vocab = spacy.blank("en").vocab
    read = {shard.name: list(read_shard(shard, vocab)) for shard in shards}
    expected = {"below--lines.txt": ["under"]}
    expected |= dict.fromkeys(("lines.txt", "rows.jsonl", "table.parquet"), given)
    for name, whole in expected.items():
        found = [row for shard, rows in read.items() for row in rows if shard[:-6] == name]
        assert [row.text for row in found] == whole
        assert all(row.error is None for row in found)
    assert len(read) == 7
    assert [row.id for row in read["table.parquet-00001"]] == ["4", "5"]
    assert [row.id for row in read["rows.jsonl-00001"]] == ["t4", "t5"]
    assert [row.id for row in read["lines.txt-00001"]] == ["lines.txt:4", "lines.txt:5"]


def test_lines_that_are_no_rows_are_kept_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    wrong = [b"no json", b"[1]", b'{"text": 3}', b"\xff\xfe", b'{"other": "a"}', b"[" * 100_000]
    path.write_bytes(b"\n".join([b'{"text": "good"}', *wrong]))
    found = list(read_shard(shards_of(path, 100)[0], spacy.blank("en").vocab))
    assert [row.error is None for row in found] == [True] + [False] * 6
    assert [row.id for row in found] == [f"rows.jsonl:{number}" for number in range(7)]
    assert found[1].text == "no json" and "UTF-8" in str(found[4].error)


@pytest.mark.parametrize("name", ["rows.jsonl", "lines.txt"])
def test_the_mark_of_an_encoding_and_empty_lines_are_no_part_of_texts(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    given = ["été", "", "two", "three"]
    if name.endswith(".jsonl"):
        lines = [json.dumps({"text": text}) if text else "" for text in given]
        # Empty lines of JSON are no rows. In a text file they are empty texts.
        given.remove("")
        ids = [0, 2, 3]
    else:
        lines, ids = given, [0, 1, 2, 3]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, ""]).encode())
    for rows in (1, 2, 10):
        shards = shards_of(path, rows)
        found = [row for one in shards for row in read_shard(one, spacy.blank("en").vocab)]
        assert [(row.text, row.error) for row in found] == [(text, None) for text in given]
        assert [row.id for row in found] == [f"{name}:{number}" for number in ids]


def test_another_encoding_is_refused_before_anything_is_written(
    model: Path, tmp_path: Path
) -> None:
    for name in ("u16.txt", "u16.jsonl"):
        for encoding in ("utf-16-le", "utf-16-be"):
            (tmp_path / name).write_bytes('\ufeff{"text": "a"}\n'.encode(encoding))
            with pytest.raises(LatentError, match=rf"{name}.*UTF-16"):
                annotate(model, tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_rows_without_the_field_of_texts_are_refused_before_anything_is_written(
    model: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name.endswith(".jsonl"):
        path.write_text('\n{"body": "a", "n": 1}\nno json\n{"body": "b"}\n')
    else:
        pq.write_table(pa.table({"body": ["a", "b"], "n": [1, 2]}), path)
    with pytest.raises(LatentError, match=r"'text'.*body.*--text-field"):
        annotate(model, path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert annotate(model, path, tmp_path / "out", text_field="body").rows >= 2


def test_a_place_that_cannot_be_written_to_is_told(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(1))
    (tmp_path / "file").touch()
    with pytest.raises(LatentError, match="Not a directory"):
        annotate(model, corpus, tmp_path / "file" / "out")


def test_pairs_of_texts(tmp_path: Path) -> None:
    nlp = pairs.trained(pairs.pipeline(), steps=1)
    nlp.config["corpora"]["dev"] = {"@readers": "spacy-latent.TextPairs.v1", "path": None}
    nlp.config["corpora"]["dev"].update({"first": "premise", "second": "claim"})
    nlp.to_disk(tmp_path / "model")
    given = [("the dog ran", "a dog ran home"), ("we saw cars ", "two cars"), ("alone", "")]
    rows = [{"premise": first, "claim": second} for first, second in given]
    corpus, table = tmp_path / "pairs.jsonl", tmp_path / "pairs.parquet"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"premise": "a"}]))
    pq.write_table(pa.Table.from_pylist(rows), table)
    listed = tmp_path / "pairs.csv"
    listed.write_text("".join(f"{one},{two}\n" for one, two in [("premise", "claim"), *given]))
    fields = text_fields(tmp_path / "model")
    for path in (corpus, table, listed):
        read = read_shard(shards_of(path, 10, **fields)[0], nlp.vocab)
        assert [row.text for row in read if row.error is None][1] == ("we saw cars", "two cars")
    done = annotate(tmp_path / "model", corpus, tmp_path / "out", rows=2)
    assert (done.rows, done.failed) == (4, 1)
    for row, texts_of_pair in zip(rows_of(tmp_path / "out"), given):
        expected = nlp(make_pair_doc(nlp, *(text.strip() for text in texts_of_pair)))
        assert row.doc is not None and row.doc.text == expected.text
        assert row.doc.cats == pytest.approx(expected.cats)
        ours, theirs = (doc._.latent[pairs.NAME].cells() for doc in (row.doc, expected))
        assert ours == theirs
    with pytest.raises(LatentError, match="fields"):
        annotate(tmp_path / "model", corpus, tmp_path / "c", text_field="premise")
    (tmp_path / "lines.txt").write_text("a\n")
    for source in (tmp_path / "lines.txt", "-"):
        with pytest.raises(LatentError, match="lines"):
            annotate(tmp_path / "model", source, tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".TSV"])
def test_tables_are_read_and_taken_up_where_they_were_left(
    model: Path, tmp_path: Path, ending: str
) -> None:
    between = "," if ending == ".csv" else "\t"
    texts = [
        "I like London",
        "two, and" if between == "\t" else '"two, and\nmore"',
        "",
        "ü",
        "five",
    ]
    lines = [between.join(row) for row in zip(["body", *texts], ["id", "a", "b", "c", "", "e"])]
    corpus = tmp_path / f"texts{ending}"
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    settings: dict[str, Any] = {"rows": 2, "text_field": "body"}
    assert annotate(model, corpus, tmp_path / "out", **settings).shards == 3
    rows = rows_of(tmp_path / "out")
    assert [row.id for row in rows] == ["a", "b", "c", f"texts{ending}:3", "e"]
    assert [row.text for row in rows] == [text.strip('"') for text in texts]
    second = tmp_path / "out" / f"texts{ending}-00001.parquet"
    second.unlink()
    again = annotate(model, corpus, tmp_path / "out", **settings)
    assert (again.shards, again.skipped, again.rows) == (1, 2, 2)
    assert [row.id for row in rows_of(tmp_path / "out")] == [row.id for row in rows]
    with pytest.raises(LatentError, match=r"'text'.*body"):
        annotate(model, corpus, tmp_path / "other")
    with corpus.open("a", encoding="utf8") as file:
        file.write(f"a{between}b{between}c\n")
    with pytest.raises(LatentError, match=r"line \d+.*3 columns"):
        annotate(model, corpus, tmp_path / "other", **settings)


def test_a_corpus_that_cannot_be_read_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.csv").touch()
    for name in ("none.txt", "empty", "other.csv"):
        with pytest.raises(LatentError, match=name):
            annotate(model, tmp_path / name, tmp_path / "out")
    with pytest.raises(LatentError, match=r".parquet.*.spacy"):
        annotate_shard(model, Shard("a", "stdin", lines=("a",)), tmp_path / "out.csv")


@pytest.mark.parametrize("setting", ["workers", "rows", "batch_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused(
    model: Path, tmp_path: Path, setting: str, value: int
) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(2))
    given: dict[str, Any] = {setting: value}
    with pytest.raises(LatentError, match=setting):
        annotate(model, corpus, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
    if setting == "batch_size":
        with pytest.raises(LatentError, match=setting):
            annotate_shard(model, corpus, tmp_path / "one.parquet", **given)


@pytest.mark.parametrize("form", ["parquet", "docbin"])
def test_a_full_disk_is_an_error_that_keeps_whole_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(4))
    write, calls = shard_annotation._count, []

    def count(rows: list[Row]) -> Any:
        calls.append(rows)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(rows)

    monkeypatch.setattr(shard_annotation, "_count", count)
    with pytest.raises(LatentError, match=os.strerror(errno.ENOSPC)):
        annotate(model, corpus, tmp_path / "out", rows=2, form=form)
    assert len(list((tmp_path / "out").glob("corpus*"))) == 1
    assert not list((tmp_path / "out").glob(".*"))
    done = annotate(model, corpus, tmp_path / "out", rows=2, form=form)
    assert (done.shards, done.skipped) == (1, 1)


@pytest.mark.parametrize("name", ["cut.spacy", "cut.parquet"])
def test_a_file_that_is_cut_off_is_named(model: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".spacy":
        DocBin(docs=[spacy.blank("en")("a text")]).to_disk(path)
    else:
        pq.write_table(pa.table({"text": ["a text"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LatentError, match=f"{name}"):
        annotate(model, path, tmp_path / "out")


def test_a_shard_that_another_command_has_done_meanwhile_is_left_alone(
    model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "a.parquet"
    shard = Shard("a-00000", "stdin", lines=("first", "second"))

    def sooner() -> None:
        if not target.exists():
            annotate_shard(model, shard, tmp_path / "other.parquet")
            (tmp_path / "other.parquet").rename(target)
            for path in target.parent.glob(".*.tmp"):
                path.unlink()

    assert annotate_shard(model, shard, target, after_chunk=sooner).skipped == 1
    assert [row.text for row in rows_of(target)] == ["first", "second"]


def test_a_pipeline_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "corpus.txt").write_text("a\n")
    with pytest.raises(LatentError, match="broken"):
        annotate(tmp_path / "broken", tmp_path / "corpus.txt", tmp_path / "out")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/b.txt", "a--b.txt"):
        (tmp_path / name).write_text("text\n")
    with pytest.raises(LatentError, match="name"):
        shards_of(tmp_path, 10)


# ---------------------------------------------------------------- the command


def test_the_command_reads_standard_input(model: Path, tmp_path: Path) -> None:
    arguments = ["annotate", str(model), "-", str(tmp_path / "out"), "--rows", "2"]
    arguments += ["--code", str(CODE)]
    done = CliRunner().invoke(latent_cli, arguments, input="a text\na bad one\nlast\n")
    assert done.exit_code == 0, done.output
    assert "3 texts in 2 files" in done.output and "1 of 3 texts failed" in done.output
    assert "stdin:1: marking: ValueError: a bad text" in " ".join(done.output.split())
    assert [row.id for row in rows_of(tmp_path / "out")] == ["stdin:0", "stdin:1", "stdin:2"]
    again = CliRunner().invoke(latent_cli, arguments, input="a text\n")
    assert again.exit_code == 1


def test_the_command_ends_with_1_where_every_text_fails(model: Path, tmp_path: Path) -> None:
    arguments = ["annotate", str(model), "-", str(tmp_path / "out"), "--code", str(CODE)]
    done = CliRunner().invoke(latent_cli, arguments, input="bad\nanother bad one\n")
    said = " ".join(done.output.split())
    assert done.exit_code == 1 and "Not one of 2 texts could be annotated" in said
    assert "stdin:0: marking: ValueError: a bad text" in said and "Delete" in said


def test_the_command_says_why_it_cannot(model: Path, tmp_path: Path, capsys: Any) -> None:
    for more in (["--format", "csv"], ["--code", str(tmp_path / "none.py")]):
        arguments = ["annotate", str(model), str(CODE), str(tmp_path / "out"), *more]
        done = CliRunner().invoke(latent_cli, arguments)
        assert done.exit_code == 1 and not (tmp_path / "out").exists()


def test_each_process_keeps_to_its_threads(model: Path, tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    seen: list[int] = []
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(2))
    annotate(
        model,
        corpus,
        tmp_path / "out",
        threads=3,
        prepare=lambda: seen.append(torch.get_num_threads()),
    )
    assert seen == [3] and torch.get_num_threads() == before


def test_without_pyarrow_the_other_format_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "corpus.txt").write_text("a\n")
    with pytest.raises(LatentError, match=r"spacy-latent\[parquet\].*docbin"):
        annotate(model, tmp_path / "corpus.txt", tmp_path / "out")
    annotate(model, tmp_path / "corpus.txt", tmp_path / "out", form="docbin")
    (file,) = (tmp_path / "out").glob("*.spacy")
    assert len(DocBin().from_disk(file)) == 1
