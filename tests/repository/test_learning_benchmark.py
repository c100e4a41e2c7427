"""The runs of ``benchmarks learning`` are resumed and stored, and become tables and drawings.

Most of these tests replace the trainings by functions that take no time.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from spacy.util import load_config

from benchmarks import ablations, learning, learning_plot, raw_results, recipes
from benchmarks.learning_groups import GROUPS, WITH_SUMS, WITHOUT_CONVENTION, Entry, Group
from benchmarks.pages import page_of, read_section

SVG = "{http://www.w3.org/2000/svg}"
GROUP = Group("Title", (), {"accuracy": "cats_micro_f", "F1": "ents_f"}, (Entry("a", "note"),))


@pytest.fixture
def digests(monkeypatch):
    """The digests of configs that do not exist, as attributes that a test may set."""
    found = SimpleNamespace(a="first")
    monkeypatch.setattr(learning, "digest_of", lambda config: getattr(found, config, "other"))
    monkeypatch.setattr(learning, "task_of", lambda entry: "one")
    return found


def keep(
    raw: Path, config: str, seed: int, seconds: float, digest: str = "", **scores: float
) -> None:
    row = {"seed": seed, "digest": digest or learning.digest_of(config), "scores": scores}
    made = {
        "steps": 1001 + 100 * seed,
        "processor_seconds": seconds,
        "date": f"2030-01-0{1 + seed}",
        "torch": "2",
        "spacy": "3",
    }
    raw_results.add(raw / f"{config}.jsonl", {**row, **made})


def test_the_table_has_each_seed_and_leaves_out_what_was_not_run(tmp_path, digests):
    keep(tmp_path, "a", 10, 120.0, cats_micro_f=0.75)
    keep(tmp_path, "a", 0, 60.0, cats_micro_f=0.5)
    keep(tmp_path, "a_b", 0, 60.0, cats_micro_f=0.1)
    *_, row = learning.table(GROUP, learning.measured(GROUP, tmp_path))
    assert row == (
        "| `a`: note | 0, 10 | 50.0, 75.0; mean 62.5 (50.0 to 75.0) |  | 1,001 to 2,001 | 1.5 |"
    )


def test_a_row_has_its_control_and_what_was_published(tmp_path, digests):
    entries = (
        Entry("b", "control: no tree", settings=(("c.d", 1),)),
        Entry("a", control="b, no tree", published="data 80.0 (paper)"),
        Entry("c", control="b, no tree"),
    )
    keep(tmp_path, "a", 0, 60.0, cats_micro_f=0.75, ents_f=0.5)
    for seed, share in ((0, 0.5), (1, 0.25)):
        keep(tmp_path, "b", seed, 60.0, learning.digest_of_entry(entries[0]), ents_f=share)
    keep(tmp_path, "c", 0, 60.0, cats_micro_f=0.75)
    group = Group("Title", (), GROUP.figures, entries)
    head, _, control, row, other = learning.table(group, learning.measured(group, tmp_path))
    assert head.startswith("| config | seeds | accuracy | F1 | control | published")
    assert control.split(" | ")[4:6] == ["", ""]
    # The control "b" has no accuracy, so that the F1 of both is compared.
    assert row.split(" | ")[2:6] == ["75.0", "50.0", "`b`, no tree: 37.5", "data 80.0 (paper)"]
    assert other.split(" | ")[4:6] == ["`b`, no tree", ""]
    plain = Group("Title", (), GROUP.figures, (Entry("a"),))
    head, *_ = learning.table(plain, learning.measured(plain, tmp_path))
    assert "control" not in head and "published" not in head


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_rows_name_controls_of_their_group_and_task(group):
    controls = {entry.name: learning.task_of(entry) for entry in group.entries if entry.is_control}
    for entry in group.entries:
        assert not entry.control or controls[entry.control] == learning.task_of(entry), entry


def test_each_system_says_what_was_published_and_its_control():
    for entry in GROUPS["systems"].entries:
        assert entry.is_control or (entry.published and entry.control), entry


def test_the_drawing_has_a_dot_for_each_seed_and_a_band_for_controls():
    rows = {"one": [0.5, 0.7], "a <control>": [0.6, 0.8]}
    drawn = learning_plot.drawing("Title", "accuracy", rows, {"a <control>"})
    svg = ElementTree.fromstring(drawn)
    said = [node.text for node in svg.iter(f"{SVG}text")]
    assert {"one", "a <control>", "accuracy, %"} <= set(said)
    # Dots are drawn in the order of rows and seeds.
    least, most, low, high = (float(dot.get("cx")) for dot in svg.iter(f"{SVG}circle"))
    assert least < low < most < high
    # The axis is linear: equal differences of scores have equal widths.
    assert abs(low - least - (high - most)) < 0.05
    (band,) = svg.iter(f"{SVG}rect")
    start = float(band.get("x"))
    assert least < start < low < high < start + float(band.get("width"))
    none = learning_plot.drawing("Title", "accuracy", rows, set())
    assert not list(ElementTree.fromstring(none).iter(f"{SVG}rect"))


def test_a_band_is_that_of_the_controls_of_one_task():
    """The band behind a row spans the scores of the controls of its own task alone."""
    rows = {"one": [0.5], "control of one": [0.6], "two": [0.9], "control of two": [0.8, 0.85]}
    tasks = {name: name.split()[-1] for name in rows}
    controls = {name for name in rows if "control" in name}
    drawn = learning_plot.drawing("Title", "accuracy", rows, controls, tasks)
    svg = ElementTree.fromstring(drawn)
    first, second = svg.iter(f"{SVG}rect")
    x = [float(dot.get("cx")) for dot in svg.iter(f"{SVG}circle")]
    y = [float(dot.get("cy")) for dot in svg.iter(f"{SVG}circle")]
    for band, places, shares in ((first, y[:2], x[1:2]), (second, y[2:], x[3:])):
        top, left = float(band.get("y")), float(band.get("x"))
        bottom, right = top + float(band.get("height")), left + float(band.get("width"))
        assert [top < place < bottom for place in y] == [place in places for place in y]
        assert left < min(shares) and max(shares) < right
    assert float(first.get("x")) + float(first.get("width")) < float(second.get("x"))


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_rows_of_one_task_stand_together(group):
    """One band of controls can then lie behind all rows of a task."""
    tasks = [learning.task_of(entry) for entry in group.entries]
    assert [task for task, _ in groupby(tasks)] == list(dict.fromkeys(tasks))


@pytest.mark.parametrize(
    "values, ticks",
    [([0.6, 0.95], [60, 65, 70, 75, 80, 85, 90, 95]), ([1.0, 1.0], [99, 100]), ([0.0], [0, 1])],
)
def test_the_axis_ends_with_the_values(values, ticks):
    """Ticks cover the values, and none is outside of 0 to 100 percent."""
    svg = ElementTree.fromstring(learning_plot.drawing("Title", "x", {"one": values}, set()))
    said = [node.text for node in svg.iter(f"{SVG}text")]
    assert [int(words) for words in said if words.lstrip("-").isdigit()] == ticks


@pytest.mark.parametrize(
    "annotate, kept", [("none", {"cats_micro_f"}), ("map", {"cats_micro_f", "latent_align_f"})]
)
def test_no_figure_of_structures_that_no_component_annotates(tmp_path, annotate, kept):
    """spaCy stores 0 for scores of structures without annotation. Such a figure is left out."""
    performance = {"cats_micro_f": 0.75, "latent_align_f": 0.0}
    (tmp_path / "meta.json").write_text(json.dumps({"performance": performance}))
    text = f'[components]\n[components.latent_textcat]\nannotate = "{annotate}"\n'
    (tmp_path / "config.cfg").write_text(text)
    assert set(learning.scores_of(tmp_path)) == kept


def test_groups_of_one_config_have_no_drawing(tmp_path, digests, monkeypatch):
    monkeypatch.setattr(
        learning, "write_drawing", partial(learning_plot.write_drawing, folder=tmp_path)
    )
    keep(tmp_path, "a", 0, 60.0, cats_micro_f=0.5)
    assert learning.plot("a", GROUP, learning.measured(GROUP, tmp_path)) == []
    two = Group("Title", (), GROUP.figures, (*GROUP.entries, Entry("b")))
    keep(tmp_path, "b", 0, 60.0, cats_micro_f=0.25)
    line, _ = learning.plot("a", two, learning.measured(two, tmp_path))
    assert "learning_a.svg" in line and (tmp_path / "learning_a.svg").exists()


def test_rows_of_one_config_with_other_settings_are_told_apart(tmp_path, digests, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        learning,
        "write_drawing",
        lambda name, title, figure, rows, controls, tasks: drawn.update(
            rows=rows, controls=controls
        ),
    )
    usual = Entry("a", "note")
    other = Entry("a", "control: b", settings=(("c.d", 1),))
    for entry, share in ((usual, 0.5), (other, 0.25)):
        keep(tmp_path, "a", 0, 60.0, learning.digest_of_entry(entry), cats_micro_f=share)
    group = Group("Title", (), GROUP.figures, (usual, other))
    found = learning.measured(group, tmp_path)
    learning.plot("a", group, found)
    assert drawn == {"rows": {"a": [0.5], "a, b": [0.25]}, "controls": {"a, b"}}
    _, _, *rows = learning.table(group, found)
    assert rows == [
        "| `a`: note | 0 | 50.0 |  | 1,001 | 1.0 |",
        "| `a`: control: b | 0 | 25.0 |  | 1,001 | 1.0 |",
    ]


def test_results_of_another_config_are_kept_and_not_shown(tmp_path, digests):
    keep(tmp_path, "a", 0, 60.0, ents_f=0.5)
    keep(tmp_path, "a", 1, 60.0, ents_f=0.6)
    digests.a = "second"
    keep(tmp_path, "a", 0, 60.0, ents_f=0.1)
    for digest, expected in (("first", {0: 0.5, 1: 0.6}), ("second", {0: 0.1}), ("third", {})):
        digests.a = digest
        (found,) = learning.measured(GROUP, tmp_path).values()
        assert {seed: row["scores"]["ents_f"] for seed, row in found.items()} == expected
    assert len(raw_results.read(tmp_path / "a.jsonl")) == 3


def test_the_heading_tells_when_and_on_what(tmp_path, digests):
    for seed in (0, 2):
        keep(tmp_path, "a", seed, 60.0, ents_f=0.5)
    said = learning.heading(learning.measured(GROUP, tmp_path))
    assert said.startswith("2030-01-01 to 2030-01-03, torch 2, spaCy 3, one thread")


def test_a_result_after_half_a_line_is_whole(tmp_path):
    """Half a line, as a killed process leaves it, does not damage the next line."""
    path = tmp_path / "raw" / "a.jsonl"
    raw_results.add(path, {"seed": 0})
    with path.open("a") as file:
        file.write('{"seed": 1, "sco')
    raw_results.add(path, {"seed": 2})
    assert [row["seed"] for row in raw_results.read(path)] == [0, 2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for runs and their raw results; skips the test without optuna."""
    pytest.importorskip("optuna")
    (tmp_path / "runs").mkdir()
    return tmp_path


def run_of(tmp_path: Path, seed: int = 0) -> learning.Run:
    return learning.Run(Entry("a"), seed, tmp_path / "runs", tmp_path / "raw")


def pretend(monkeypatch, ended=lambda command: 0):
    """Replace trainings by a function that stores a model at once.

    Args:
        ended: function of the command of a training that returns its exit status.

    Returns:
        A list that gets an item for each training: its seed, or a tuple of the seed and the values
        of its settings if it has any.
    """
    trained = []

    def train(command, **options):
        *_, folder, seed, settings, _ = command
        model = Path(folder, "model-best")
        model.mkdir(exist_ok=True)
        (model / "meta.json").write_text(json.dumps({"performance": {"ents_f": 0.5, "x": None}}))
        (model / "config.cfg").write_text("[components]\n")
        Path(folder, "clock-0.txt").write_text("1.25")
        trained.append(
            (int(seed), *json.loads(settings).values()) if settings != "{}" else int(seed)
        )
        return SimpleNamespace(returncode=ended(command))

    monkeypatch.setattr(learning.subprocess, "run", train)
    monkeypatch.setattr(learning, "recipe", lambda name: Path(f"{name}.cfg"))
    monkeypatch.setattr(learning, "sweep", partial(learning.sweep, beat=0.05))
    return trained


def test_a_run_is_not_done_twice(folder, monkeypatch, digests):
    trained = pretend(monkeypatch)
    runs = [run_of(folder, seed) for seed in (0, 1)]
    assert learning.work(runs) == learning.work(runs) == []
    assert trained == [0, 1]
    first, _ = raw_results.read(runs[0].path)
    assert first["scores"] == {"ents_f": 0.5} and first["config"] == "a" and first["seed"] == 0
    assert first["processor_seconds"] == 1.2 and first["digest"] == "first"
    assert not any(run.folder.exists() for run in runs)
    # A changed config is another run, and so is the same config with another setting.
    digests.a = "second"
    assert learning.work([run_of(folder)]) == [] and trained == [0, 1, 0]
    changed = replace(run_of(folder), entry=Entry("a", settings=(("x.rate", 0.5),)))
    assert learning.work([changed]) == learning.work([changed]) == []
    assert trained == [0, 1, 0, (0, 0.5)]
    assert changed.row()["settings"] == {"x.rate": 0.5} and "settings" not in runs[0].row()
    digests.a = "third"
    assert changed.row() is None


def test_where_the_encoder_lies_makes_no_other_result(folder, monkeypatch, digests):
    trained = pretend(monkeypatch)
    digests.b = "first"
    monkeypatch.setattr(learning, "has_encoder", lambda config: config == "a")
    parser = argparse.ArgumentParser()
    learning.add_options(parser)
    assert parser.parse_args([]).encoder is None
    given = parser.parse_args(["--encoder", str(folder)])
    run = replace(run_of(folder), encoder=given.encoder)
    other = replace(run, entry=Entry("b"))
    assert learning.work([run, other]) == learning.work([run_of(folder)]) == []
    assert trained == [(0, str(folder)), 0]
    assert str(folder) not in run.path.read_text()
    # With another encoder, a run has another folder, and so cannot resume from this checkpoint.
    moved = replace(run, encoder=folder / "runs")
    assert len({run.folder, moved.folder, run_of(folder).folder}) == 3
    with pytest.raises(SystemExit):
        parser.parse_args(["--encoder", str(folder / "nothing")])


def test_what_there_is_no_time_for_is_left_and_not_failed(folder, monkeypatch, digests):
    run = replace(run_of(folder), end=time.monotonic() + 60)
    with monkeypatch.context() as patch:

        def slow(command, timeout, **options):
            assert 0 < timeout <= 60
            raise subprocess.TimeoutExpired(command, timeout)

        patch.setattr(learning.subprocess, "run", slow)
        patch.setattr(learning, "recipe", lambda name: Path(f"{name}.cfg"))
        with pytest.raises(learning.TimeIsUp):
            learning.work([run])
    done = pretend(monkeypatch)
    with pytest.raises(learning.TimeIsUp):
        learning.work([replace(run, end=time.monotonic())])
    assert not done and learning.work([run]) == [] and done == [0]


def test_the_program_says_by_its_status_that_runs_are_left(tmp_path, monkeypatch, digests, capsys):
    pytest.importorskip("optuna")
    given = SimpleNamespace(
        seeds=[0],
        runs=tmp_path / "runs",
        raw=tmp_path / "raw",
        gpu=False,
        encoder=None,
        minutes=0.0,
    )
    wanted = [(GROUP, GROUP.entries)]
    done = pretend(monkeypatch)
    assert learning.trained(wanted, given) == learning.LEFT and not done
    assert "goes on with what is left" in capsys.readouterr().err
    given.minutes = 1.0
    assert learning.trained(wanted, given) is None and done == [0]


@pytest.mark.parametrize("killed_in", ["result_of", "add"])
def test_what_was_trained_is_not_lost_with_its_worker(folder, monkeypatch, digests, killed_in):
    trained, run = pretend(monkeypatch), run_of(folder)
    with monkeypatch.context() as patch:

        def killed(*given):
            raise KeyboardInterrupt

        patch.setattr(learning, killed_in, killed)
        with pytest.raises(KeyboardInterrupt):
            learning.work([run])
    assert raw_results.read(run.path) == []
    assert learning.work([run]) == []
    assert trained == [0] and len(raw_results.read(run.path)) == 1


def test_a_run_that_fails_is_told_with_how_to_try_again(folder, monkeypatch, digests):
    pretend(monkeypatch, ended=lambda command: int(command[-3] == "0"))
    runs = [run_of(folder, seed) for seed in (0, 1)]
    (said,) = learning.work(runs)
    assert "a, seed 0" in said and "failed" in said and "remove" in said
    assert runs[1].row() is not None
    (said,) = learning.work(runs)
    Path(said.split("remove ")[1]).unlink()
    pretend(monkeypatch)
    assert learning.work(runs) == []


@pytest.mark.skipif(
    not os.environ.get("SPACY_LATENT_ALL_FAULTS") or not hasattr(os, "fork"),
    reason="SPACY_LATENT_ALL_FAULTS is not set, or there is no SIGKILL",
)
def test_a_training_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    """This test runs real trainings, in a worker that is killed and a second worker."""
    pytest.importorskip("optuna")
    from tests.distributed.trainings import save_corpus, shared, write_config

    (tmp_path / "configs").mkdir()
    (tmp_path / "runs").mkdir()
    save_corpus(tmp_path / "train.spacy")
    config = tmp_path / "configs" / "a.cfg"
    data = tmp_path / "train.spacy"
    write_config(config, shared("tagger"), data, max_steps=120, eval_frequency=10, dropout=0.1)
    text = config.read_text().replace("seed = 1", "seed = ${system.seed}")
    config.write_text(f"{text}\n[system]\nseed = 0\n")
    root = str(learning.ROOT)
    monkeypatch.setattr(learning, "ROOT", tmp_path)
    monkeypatch.setitem(learning.ENVIRONMENT, "PYTHONPATH", root)
    monkeypatch.setattr(learning, "sweep", partial(learning.sweep, beat=0.2))
    learning.digest_of.cache_clear()
    run, whole = (
        run_of(tmp_path),
        learning.Run(Entry("a"), 0, tmp_path / "others", tmp_path / "other raw"),
    )
    worker = os.fork()
    if not worker:
        learning.work([run])
        os._exit(0)
    checkpoints = run.folder / "checkpoints"
    end = time.monotonic() + 120
    while time.monotonic() < end and not list(checkpoints.glob("step-[3-9]1")):
        time.sleep(0.02)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    assert not (run.folder / "trained.json").exists(), "it was through already"
    assert learning.work([run]) == []
    learning.work([whole])
    again, expected = run.row(), whole.row()
    assert again["scores"]["tag_acc"] == expected["scores"]["tag_acc"]
    assert (again["started"], expected["started"]) == (2, 1)
    assert again["steps"] == expected["steps"] and again["processor_seconds"] > 0
    learning.digest_of.cache_clear()


def test_the_model_comes_before_its_controls():
    trees = {"attachment": {"model": {"without ]": 0.9}, "flat": {"without ]": 0.3}}}
    assert learning.of_listops({"accuracy": 0.8, **trees})["attachment"] == 0.9
    spans = {"brackets": {"model": 0.7, "left": 0.2}}
    assert learning.of_listops({"accuracy": 0.8, **spans})["brackets"] == 0.7
    edges = {"edges": {"model": {"all tokens": 0.6, "without ]": 0.7}, "flat": {}}}
    found = learning.of_listops({"accuracy": 0.8, **edges})
    assert (found["edges"], found["edges without ]"]) == (0.6, 0.7)
    # A pipeline without trees has an accuracy alone.
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


def test_of_every_corpus_there_are_all_measures_of_trees():
    def part(**shares):
        said = {key.replace("_", " "): [share, 0.0, 1.0] for key, share in shares.items()}
        return {"by_depth": {"all": {"models": {"model": said}}}}

    parts = {
        "test": part(whole_trees=0.9, accuracy=0.8, attachment=0.95, undirected=0.97, yields=0.5),
        "depth6": part(whole_trees=0.4, accuracy=0.7, attachment=0.6, yields=0.2, one_arc=0.3),
        "other": {},
    }
    found = learning.of_listops({"accuracy": 0.8, "corpora": parts})
    assert found == {
        "cats_micro_f": 0.8,
        "attachment": 0.95,
        "whole": 0.9,
        "undirected": 0.97,
        "yields": 0.5,
        "whole depth6": 0.4,
        "accuracy depth6": 0.7,
        "attachment depth6": 0.6,
        "yields depth6": 0.2,
        "one arc depth6": 0.3,
    }


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_every_column_and_every_row_has_figures(group):
    """Scores of a config are the ones with a weight: ``spacy train`` keeps no others."""
    kept = {}
    for entry in group.entries:
        config = load_config(learning.recipe(entry.config))
        kept[entry] = set(config["training"]["score_weights"])
        if entry.listops is not None:
            kept[entry] = {"cats_micro_f", "brackets", "attachment", "gold", *WITH_SUMS}
            kept[entry] |= {"whole", "whole depth6", "whole long", "edges", "edges without ]"}
            kept[entry] |= {"accuracy depth6", "lists", *WITHOUT_CONVENTION}
        others = [Path(test).stem for test in entry.tests[1:]]
        kept[entry] |= {f"{name} {key}" for name in others for key in kept[entry]}
        assert kept[entry] & set(group.figures.values()), entry
    assert set(group.figures.values()) <= set().union(*kept.values())


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_there_are_the_configs_and_the_commands_for_their_corpora(group):
    project = (learning.ROOT / "project.yml").read_text(encoding="utf8")
    for entry in group.entries:
        assert entry.config in recipes.names(), entry
    assert all(f"- name: {command}\n" in project for command in group.corpora)


@pytest.mark.parametrize("name", GROUPS)
def test_each_group_has_a_page(name):
    assert page_of(f"learning_{name}")


@pytest.mark.parametrize("name", GROUPS)
def test_the_page_of_results_is_written_from_the_raw_ones(name):
    """The section of a group has the table of its raw results.

    Groups may share a row. After a new result, write the section of each of them with
    ``python -m benchmarks learning NAME --seeds``.
    """
    group = GROUPS[name]
    found = learning.measured(group, raw_results.RAW)
    section = read_section(f"learning_{name}") if any(found.values()) else ""
    shown = [line for line in section.splitlines() if line.startswith("| `")]
    assert shown == learning.table(group, found)[2:]
    assert not shown or learning.heading(found) in section


@pytest.mark.parametrize("name", ablations.ABLATIONS)
def test_ablations_are_written_from_the_raw_results(name):
    page = read_section("ablations")
    ablation = ablations.ABLATIONS[name].group()
    section = page.partition(f"### {ablation.title}\n")[2].partition("##")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")]
    found = learning.measured(ablation, raw_results.RAW)
    # An ablation has no table as long as only one of its values was measured.
    several = sum(map(bool, found.values())) > 1
    assert shown == (ablations.table(ablation, found) if several else [])


WITH_ABLATIONS = {
    **GROUPS,
    **{f"ablation of {name}": made.group() for name, made in ablations.ABLATIONS.items()},
}


@pytest.mark.parametrize("group", WITH_ABLATIONS.values(), ids=WITH_ABLATIONS)
def test_rows_have_settings_of_their_configs(group):
    for entry in group.entries:
        config = load_config(learning.recipe(entry.config))
        known = set(dict(walk_dict_of(config)))
        # A sourced component may omit ``component`` if its name in the other pipeline is the same.
        sourced = [name for name, part in config["components"].items() if "source" in part]
        known |= {f"components.{name}.component" for name in sourced}
        assert {key for key, _ in entry.settings} <= known


def test_graph_convolution_over_latent_and_given_trees_differs_in_the_trees_alone():
    latent, given = (
        load_config(learning.recipe(name), interpolate=False)
        for name in ("sentiment_perturb_and_parse", "sentiment_parsed_convolution")
    )
    for config in (latent, given):
        del config["components"]["latent_encoder"]["model"]["estimator"]
        # Without a parser, docs have no sentences, so that both getters return the whole doc.
        del config["components"]["latent_encoder"]["model"]["span_getter"]
        # Given trees come from a parser.
        config["paths"].pop("parser", None)
        config["components"].pop("latent_parser", None)
        del config["nlp"]["pipeline"], config["corpora"]["train"]
        del config["training"]["frozen_components"]
    assert latent == given


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_rows_have_names_of_their_own(group):
    assert len({entry.name for entry in group.entries}) == len(group.entries)


@pytest.mark.parametrize(
    "name, score, column",
    [
        ("given_trees", "cats_micro_f", 1),
        ("given_trees_entities", "ents_f", 2),
        ("given_trees_pairs", "cats_micro_f", 3),
    ],
)
def test_the_page_on_parsers_has_what_was_measured_over_its_trees(name, score, column):
    page = (learning.ROOT / "docs" / "latent_parser.md").read_text(encoding="utf8")
    table = page.split("### Do they help?")[1].split("## Calibration")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    shown = {row[0].strip(): row[column].strip() for row in rows[2:] if row[column].strip()}
    measured = {
        entry.what.removeprefix("control: "): mean(
            100 * run["scores"][score] for run in runs.values()
        )
        for entry, runs in learning.measured(GROUPS[name], raw_results.RAW).items()
    }
    assert shown == {what: f"{share:.1f}" for what, share in measured.items()}


@pytest.mark.parametrize("name", ablations.ABLATIONS)
def test_each_value_of_an_ablation_is_another_config(name):
    entries = ablations.ABLATIONS[name].group().entries
    assert len({learning.digest_of_entry(entry) for entry in entries}) == len(entries) > 1


def test_an_ablation_of_one_value_has_no_table(tmp_path, monkeypatch):
    write = partial(learning_plot.write_drawing, folder=tmp_path)
    monkeypatch.setattr(ablations, "write_drawing", write)
    group = ablations.ABLATIONS["target_step"].group()
    first, second, *_ = group.entries
    row = {"seed": 0, "processor_seconds": 1.0, "date": "2030-01-01", "torch": "2", "spacy": "3"}
    for entry, share in ((first, 0.5), (second, 0.75)):
        assert ablations.section_of("x", group, tmp_path) == []
        scores = {"scores": {"cats_micro_f": share}}
        raw_results.add(
            tmp_path / f"{entry.config}.jsonl",
            {**row, "digest": learning.digest_of_entry(entry), **scores},
        )
    shown = ablations.section_of("x", group, tmp_path)
    assert "| 0.1 | 0 | 50.0 |" in shown and "| 0.3 | 0 | 75.0 |" in shown
    assert (tmp_path / "ablation_x.svg").exists()


def walk_dict_of(config, before=""):
    for key, value in config.items():
        yield f"{before}{key}", value
        if isinstance(value, dict):
            yield from walk_dict_of(value, f"{before}{key}.")
