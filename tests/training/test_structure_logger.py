"""The structure logger in spaCy's own training loop."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry

from spacy_latent import listops
from spacy_latent.distributed.train import train as train_ranks
from spacy_latent.errors import LatentError
from spacy_latent.training.console_table import WidenedTable
from spacy_latent.training.structure_logger import (
    StructureObserver,
    build_structure_logger_v1,
)
from tests.pipeline.small_pipelines import TOK2VEC

CONFIG = Path(__file__).parents[2] / "configs" / "demo_attention.cfg"
SMALL = {
    "training.max_epochs": 0,
    "training.max_steps": 4,
    "training.eval_frequency": 2,
    "components.latent_encoder.model.tok2vec.width": 8,
    "components.textcat.model.tok2vec.width": 8,
    "components.latent_encoder.model.scorer.hidden_width": 4,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logger")
    splits = listops.generate([60, 12], ["MIN", "MAX"], max_depth=3, min_length=5, max_length=12)
    for name, expressions in zip(("train", "dev"), splits):
        listops.write(path / f"{name}.tsv", expressions)
    return path


def pipeline(corpus: Path, **logger: Any) -> Language:
    config = load_config(CONFIG, overrides=SMALL)
    config["paths"].update(train=str(corpus / "train.tsv"), dev=str(corpus / "dev.tsv"))
    config["training"]["logger"] = {"@loggers": "spacy-latent.StructureLogger.v1", **logger}
    return init_nlp(config)


def trained(nlp: Language) -> str:
    out = io.StringIO()
    train(nlp, None, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_the_table_has_further_columns_and_stays_a_table(corpus: Path) -> None:
    lines = trained(pipeline(corpus)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("E "))
    header, rule, *rows = lines[start : start + 5]
    assert header.split()[-3:] == ["DEPTH", "LEFT", "CHANGED"]
    assert len(rule) == len(rows[0]) == len(rows[1]) == len(rows[2])
    assert rows[0].split()[-1] == "-"
    depth, left, changed = (float(cell) for cell in rows[2].split()[-3:])
    # The demo's heads stand before their modifiers.
    assert depth > 0 and left == 0 and 0 <= changed <= 1


def test_json_lines_of_a_resumed_training_follow_its_earlier_ones(
    corpus: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    # Another training, whose lines are replaced.
    log.write_text('{"step": 1}\n')
    config = load_config(CONFIG, overrides=SMALL)
    config["paths"].update(train=str(corpus / "train.tsv"), dev=str(corpus / "dev.tsv"))
    logger = {"@loggers": "spacy-latent.StructureLogger.v1", "output_file": str(log)}
    config["training"]["logger"] = logger
    config.to_disk(tmp_path / "config.cfg")
    nowhere = io.StringIO()

    def go_on(last: int) -> list[int]:
        train_ranks(
            tmp_path / "config.cfg",
            tmp_path / "output",
            overrides={"training.max_steps": last},
            resume=True,
            checkpoint_every=3,
            stdout=nowhere,
            stderr=nowhere,
        )
        return [json.loads(line)["step"] for line in log.read_text().splitlines()]

    assert go_on(4) == [0, 2, 4]
    # The last checkpoint is of three steps, so that step 4 is taken and written again.
    with log.open("a") as file:
        file.write('{"step": 6, "ep')
    assert go_on(6) == [0, 2, 4, 6]


def test_json_lines_may_go_to_what_is_no_file(corpus: Path, tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    trained(pipeline(corpus, output_file=str(pipe)))
    reader.join(10)
    assert [json.loads(line)["step"] for line in found[0].splitlines()] == [0, 2, 4]
    trained(pipeline(corpus, output_file=os.devnull))


def test_json_lines_hold_everything(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    trained(pipeline(corpus, output_file=str(path)))
    rows = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert {"epoch", "seconds", "words", "losses", "scores", "score"} <= rows[0].keys()
    first, last = rows[0]["structures"]["latent_encoder"], rows[2]["structures"]["latent_encoder"]
    assert {"depth", "root share", "left-branching", "arc length", "entropy"} <= first.keys()
    assert "changed" not in first and 0 <= last["changed"] <= 1
    assert last["support"] == 1 and last["entropy"] > 0
    # The score is in percent, as in spaCy's console logger.
    assert rows[2]["scores"]["latent_uas"] > 1


def test_the_log_is_one_that_reports_read(corpus: Path, tmp_path: Path) -> None:
    from spacy_latent.analysis.training_log import read_training_log

    path = tmp_path / "log.jsonl"
    trained(pipeline(corpus, output_file=str(path)))
    rows = read_training_log(path)
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert "textcat" in rows[0]["losses"] and "latent_uas" in rows[0]["scores"]


def test_training_is_the_same_with_and_without_it(corpus: Path, tmp_path: Path) -> None:
    observed = pipeline(corpus, drawings=str(tmp_path / "strip.html"))
    trained(observed)
    plain = pipeline(corpus)
    plain.config["training"]["logger"] = {"@loggers": "spacy.ConsoleLogger.v3"}
    trained(plain)
    for name in plain.pipe_names:
        assert plain.get_pipe(name).model.to_bytes() == observed.get_pipe(name).model.to_bytes()


class Recorder:
    """A logger that records its calls."""

    def __init__(self) -> None:
        self.infos: list[dict[str, Any]] = []
        self.finalized = False

    def __call__(self, nlp: Language, stdout: Any, stderr: Any) -> tuple[Any, Any]:
        def finalize() -> None:
            self.finalized = True

        return lambda info: self.infos.append(info) if info else None, finalize


def test_a_wrapped_logger_gets_the_statistics_as_scores(corpus: Path) -> None:
    nlp = pipeline(corpus)
    recorder = Recorder()
    log_step, finalize = build_structure_logger_v1(recorder, limit=3)(nlp, io.StringIO(), None)
    scores = {"cats_score": 0.5}
    info = {"epoch": 0, "step": 0, "score": 0.5, "other_scores": scores, "losses": {}}
    log_step(None)
    log_step(info)
    log_step({**info, "step": 1})
    finalize()
    assert recorder.finalized and scores == {"cats_score": 0.5}
    told = recorder.infos[1]["other_scores"]
    assert told["cats_score"] == 0.5
    assert told["latent/latent_encoder/root_share"] > 0
    assert told["latent/latent_encoder/changed"] == 0.0


@pytest.mark.parametrize(
    "module, settings",
    [
        ("wandb", {"@loggers": "spacy.WandbLogger.v5", "project_name": "trees"}),
        ("mlflow", {"@loggers": "spacy.MLflowLogger.v2"}),
    ],
)
def test_loggers_of_services_log_the_statistics(
    module: str, settings: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock replaces the library of the service."""
    pytest.importorskip("spacy_loggers")
    service = MagicMock()
    monkeypatch.setitem(sys.modules, module, service)
    trained(pipeline(corpus, logger=settings))
    calls = service.log.call_args_list + service.log_metrics.call_args_list
    logged: set[str] = set().union(*(call.args[0] for call in calls))
    assert {"latent/latent_encoder/depth", "latent/latent_encoder/changed"} <= logged
    # MLflow accepts these characters in the name of a metric.
    assert all(re.fullmatch(r"[\w\-. :/]+", name) for name in logged)


def test_it_stands_around_a_chain_of_loggers(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("spacy_loggers")
    chain = {
        "@loggers": "spacy.ChainLogger.v1",
        "logger1": {"@loggers": "spacy.ConsoleLogger.v3"},
        "logger2": {
            "@loggers": "spacy.ConsoleLogger.v3",
            "console_output": False,
            "output_file": str(tmp_path / "plain.jsonl"),
        },
    }
    assert "DEPTH" in trained(pipeline(corpus, logger=chain))
    assert len((tmp_path / "plain.jsonl").read_text(encoding="utf8").splitlines()) == 3


def test_films_are_written_and_texts_in_them_are_inert(corpus: Path, tmp_path: Path) -> None:
    page = tmp_path / "films" / "strip.html"
    sentences = ["[MIN 4 <script>alert(1)</script> ]", "", "[MAX 1 2 ]"]
    trained(pipeline(corpus, drawings=str(page), sentences=sentences, frames=2))
    markup = page.read_text(encoding="utf8")
    assert "<script" not in markup and "&lt;script&gt;" in markup
    assert markup.count("step 0") == 2 and markup.count("step 4 ·") == 2 and "step 2" not in markup
    assert markup.count("data:image/svg+xml") == 2
    assert {path.name for path in page.parent.iterdir()} == {
        "strip.html",
        "strip-1.svg",
        "strip-2.svg",
    }


def test_drawings_that_fail_do_not_cost_the_pipeline(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("spacy_latent.training.structure_logger.write_films", broken)
    nlp = pipeline(corpus, drawings=str(tmp_path / "strip.html"))
    with pytest.warns(UserWarning, match="disk full"):
        trained(nlp)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"limit": 0}, "limit"),
        ({"frames": 1}, "frames"),
        ({"components": ["textcat"]}, "'textcat'"),
        ({"columns": ["width"]}, "columns.*'width'.*depth"),
        ({"corpus": "corpora.test"}, "corpora.test"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_the_start(
    corpus: Path, settings: dict[str, Any], message: str
) -> None:
    nlp = pipeline(corpus)
    with pytest.raises(LatentError, match=message):
        build_structure_logger_v1(**settings)(nlp, io.StringIO(), io.StringIO())


def test_a_pipeline_without_latent_layers_is_refused(corpus: Path) -> None:
    nlp = pipeline(corpus)
    nlp.remove_pipe("textcat")
    nlp.remove_pipe("latent_encoder")
    with pytest.raises(LatentError, match="structure"):
        build_structure_logger_v1()(nlp, io.StringIO(), io.StringIO())


INLINE_KINDS = {
    "items": ("KOfN", "ItemScorer", "Selection", "rate"),
    "tags": ("LinearChain", "TransitionScorer", "TagEmbedding", "switches"),
    "spans": ("ConstituencyTree", "SpanScorer", "SpanAttention", "left splits"),
    "segments": ("SemiMarkov", "SegmentScorer", "SegmentAttention", "segment length"),
}


@pytest.mark.parametrize("kind", INLINE_KINDS)
def test_every_kind_has_its_own_columns(kind: str, corpus: Path, tmp_path: Path) -> None:
    structure, scorer, composer, column = INLINE_KINDS[kind]
    inline = {
        "@architectures": "spacy-latent.LatentTok2Vec.v1",
        "tok2vec": TOK2VEC,
        "structure": {"@misc": f"spacy-latent.{structure}.v1"},
        "scorer": {"@misc": f"spacy-latent.{scorer}.v1"},
        "composer": {"@misc": f"spacy-latent.{composer}.v1"},
    }
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": inline}
    nlp.add_pipe("tagger", config={"model": model}).add_label("N")
    nlp.initialize()
    nlp.config["corpora"] = pipeline(corpus).config["corpora"]
    nlp.config["paths"].update(train=None, dev=str(corpus / "dev.tsv"))
    observer = StructureObserver(nlp, "corpora.dev", 4, sentences=["1 2 3 4"])
    columns = observer.columns(None)
    assert columns[0][0] == "tagger" and column in [name for _, name in columns]
    first, second = observer.evaluate(0), observer.evaluate(1)
    assert column in first["tagger"] and second["tagger"]["changed"] == 0.0
    assert {name for _, name in columns} <= second["tagger"].keys()


def test_what_changed_is_measured_on_parts() -> None:
    from spacy_latent.annotations import SpanStructure
    from spacy_latent.training.structure_observer import changed_share

    def tree(*heads: int, start: int = 0) -> list[SpanStructure]:
        array = np.array(heads, dtype="int32")
        return [SpanStructure(start, start + len(heads), "SpanningTree", "heads", array)]

    assert changed_share(None, [tree(0, 1)]) is None
    assert changed_share([tree(0, 1, 2, 3)], [tree(0, 1, 2, 1)]) == 0.25
    # Sentences that begin at different tokens are not comparable.
    assert changed_share([tree(0, 1)], [tree(0, 1, start=1)]) is None
    # Those after a split that changed are.
    split = [*tree(0), *tree(0, start=1), *tree(0, 1, start=2)]
    assert changed_share([split], [[*tree(0, 1), *tree(0, 2, start=2)]]) == 0.5


def test_a_table_that_is_printed_in_pieces_and_other_lines() -> None:
    out = io.StringIO()
    table = WidenedTable(out, ["depth", "left-branching"])
    print("E    #       SCORE", file=table, flush=True)
    print("---  ------  ------", file=table, flush=True)
    table.expect_row(0, 200, [2.5, None])
    table.write("saving\n")
    table.write("  0     200")
    table.write("    0.30\n")
    table.write("  0     200    0.30\n")
    table.write("half")
    table.flush()
    assert out.getvalue().split("\n") == [
        "E    #       SCORE  DEPTH   LEFT-BRANCHING",
        "---  ------  ------  ------  --------------",
        "saving",
        "  0     200    0.30    2.50               -",
        "  0     200    0.30",
        "half",
    ]


def test_the_name_is_registered() -> None:
    assert registry.get("loggers", "spacy-latent.StructureLogger.v1") is build_structure_logger_v1
