"""The demo's commands on a small corpus: generate, train, report, show."""

from functools import partial
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.cli.train import train

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent import listops
from spacy_latent.cli.listops import app as listops_app
from tests.cli.commands import invoked, latent, said

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo")
    options = ["--sizes", "60,20,20", "--operators", "MIN,MAX", "--max-length", "12"]
    latent("generate", "listops", path, *options)
    overrides = {
        "paths.train": str(path / "train.tsv"),
        "paths.dev": str(path / "dev.tsv"),
        "training.max_epochs": 1,
        "training.eval_frequency": 1,
    }
    train(CONFIGS / "demo_attention.cfg", path / "out", overrides=overrides)
    return path


def listops_command(*arguments, code=0):
    """Run a command of the module ``listops``, and return its output."""
    return invoked(listops_app, *arguments, code=code).output


report = partial(listops_command, "report")


def test_report_counts_hard_trees_beside_controls(trained):
    arguments = [trained / "out" / "model-last", trained / "test.tsv"]
    options = ["--metrics", trained / "m.json", "--html", trained / "page.html"]
    printed = report(*arguments, *options)
    figures = srsly.read_json(trained / "m.json")
    assert {"latent_encoder", "nearest operator", "flat"} <= set(figures["attachment"])
    assert 0 <= figures["accuracy"] <= 1
    low, high = figures["accuracy_interval"]
    assert low <= figures["accuracy"] <= high
    page = (trained / "page.html").read_text()
    assert page.count("<svg") == 12 and "gold" in page
    # The tables come before the drawings.
    assert page.index("random earlier operator") < page.index("<svg")
    assert "page.html" in printed and max(map(len, printed.splitlines())) <= 100
    every = figures["corpora"]["test"]["by_depth"]["all"]
    (own,) = (row["whole trees"][0] for row in every["models"].values())
    best = max(row["whole trees"][0] for row in every["controls"].values())
    said = " ".join(printed.split())
    assert f"test: {100 * own:.1f} % of the trees are whole; by " in said
    assert f", the best control, {100 * best:.1f} %" in said
    for name in ("accuracy", "attachment", "whole trees", "undirected", "yields", "one arc"):
        assert name in printed
    for trees in ("gold trees", "nearest operator", "flat trees", "random trees"):
        assert f"with {trees}" in printed and f"with {trees}" in page


def test_report_takes_several_pipelines_and_corpora(trained):
    folder = trained / "sets"
    generate(folder / "deep.tsv", "--sizes", "15", "--depth", "3", "--operators", "MIN,MAX")
    for name in ("train", "test"):
        listops.write(folder / f"{name}.tsv", (t for _, t in listops.read(trained / "dev.tsv")))
    model, other = trained / "out" / "model-last", trained / "out" / "model-best"
    metrics = trained / "several.json"
    printed = report(
        *(model, folder, trained / "dev.tsv"), "--beside", f"best={other}", "--metrics", metrics
    )
    figures = srsly.read_json(metrics)
    # All files of the folder except the training data.
    assert list(figures["corpora"]) == ["test", "deep", "dev"]
    assert list(figures["models"]) == ["out", "best"]
    assert figures["corpora"]["deep"]["depths"] == [3]
    assert figures["corpora"]["test"]["by_depth"] == figures["corpora"]["dev"]["by_depth"]
    part = figures["corpora"]["test"]["by_depth"]
    assert sum(part[depth]["expressions"] for depth in part if depth != "all") == 20
    own = part["all"]["models"]["out"]
    assert own["attachment"][0] == figures["attachment"]["latent_encoder"]["without ]"]
    assert list(own["accuracy_with"]) == ["gold", "nearest operator", "flat", "random tree"]
    assert "accuracy, by depth" in printed and "best" in printed


def generate(*arguments, code=0):
    return " ".join(listops_command("generate", *arguments, code=code).split())


def test_deep_sets_are_made_by_one_command(trained):
    known = {" ".join(tokens) for _, tokens in listops.read(trained / "train.tsv")}
    path = trained / "deep" / "depth4.tsv"
    options = ["--sizes", "30", "--min-length", "8", "--max-length", "80"]
    assert "expressions" not in generate(path.with_name("one.tsv"), "--sizes", "1")
    generate(path, *options, "--depth", "4")
    made = [tokens for _, tokens in listops.read(path)]
    assert len(made) == 30 and {listops.depth(tokens) for tokens in made} == {4}
    assert all(8 <= len(tokens) <= 80 for tokens in made)
    generate(path, *options, "--min-depth", "3")
    assert min(listops.depth(tokens) for _, tokens in listops.read(path)) == 3
    generate(path, *options, "--depths", "2,3,5")
    depths = [listops.depth(tokens) for _, tokens in listops.read(path)]
    assert sorted(depths) == [2] * 10 + [3] * 10 + [5] * 10
    # The same seed generates expressions of the training set again.
    same = ["--operators", "MIN,MAX", "--max-length", "12", "--sizes", "40"]
    generate(path, *same)
    assert known & {" ".join(tokens) for _, tokens in listops.read(path)}
    generate(path, *same, "--without", trained / "train.tsv")
    assert not known & {" ".join(tokens) for _, tokens in listops.read(path)}


def test_sets_that_cannot_be_made_say_why(tmp_path):
    path = tmp_path / "deep.tsv"
    assert "one number such as 500, for a file" in generate(path, "--sizes", "1,2,3", code=1)
    assert "without them" in generate(
        path, "--sizes", "1", "--depth", "3", "--min-depth", "2", code=1
    )
    assert "without them" in generate(
        path, "--sizes", "1", "--depth", "3", "--max-depth", "4", code=1
    )
    assert "without them" in generate(path, "--sizes", "2", "--depths", "1,2", "--depth", 3, code=1)
    assert "--depths is 'deep'" in generate(path, "--sizes", "2", "--depths", "deep", code=1)
    assert "cannot be shared equally" in generate(path, "--sizes", "3", "--depths", "1,2", code=1)
    told = generate(path, "--sizes", "1", "--min-depth", "3", "--max-depth", "3", code=1)
    assert "min_depth 3 with max_depth 3" in told and "at most 2 levels" in told
    assert "none.tsv" in generate(path, "--sizes", "1", "--without", tmp_path / "none.tsv", code=1)
    assert not path.exists()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["test.tsv", "--beside", "model"], "--beside is 'model'"),
        (["test.tsv", "--beside", "out=out/model-best"], "Two pipelines are called 'out'"),
        (["test.tsv", "--recorded", "=runs.jsonl"], "--recorded is '=runs.jsonl'"),
        (["test.tsv", "--recorded", "a=none.jsonl"], "none.jsonl does not exist"),
        (["test.tsv", "--recorded", "a=test.tsv"], "test.tsv, line 1, is no recorded run"),
        (["test.tsv", *2 * ["--recorded", "a=test.tsv"]], "--recorded names two 'a'"),
        (["none.tsv"], "none.tsv does not exist"),
        (["empty.tsv"], "empty.tsv holds no expressions"),
        (["nothing"], "holds no .tsv file other than train.tsv and dev.tsv"),
        (["test.tsv", "--component", "ner"], "no tree of 'ner'"),
    ],
)
def test_what_the_report_cannot_do_it_says(trained, arguments, expected, monkeypatch):
    monkeypatch.chdir(trained)
    Path("empty.tsv").touch()
    Path("nothing").mkdir(exist_ok=True)
    listops.write(Path("nothing/train.tsv"), [])
    assert expected in " ".join(report("out/model-last", *arguments, code=1).split())


def test_show_prints_draws_and_speaks_json(trained):
    model, text = str(trained / "out" / "model-last"), "[MAX 2 [MIN 4 7 ] <b> ]"
    printed = said("show", model, text)
    assert "[MIN" in printed and "latent_encoder" in printed
    page = trained / "show.html"
    latent("show", model, text, "--html", page)
    assert "<b>" not in page.read_text().replace("<br", "")
    shown = srsly.json_loads(said("show", model, text, "--json"))
    assert shown["tokens"] == text.split()
    assert len(shown["latent"]["latent_encoder"]["heads"]) == 8


def test_the_report_equals_what_the_pipeline_annotates(trained):
    nlp = spacy.load(trained / "out" / "model-last")
    doc = nlp("[MAX 2 9 ]")
    heads = doc._.latent["latent_encoder"].heads.tolist()
    assert heads[0] == 0 and all(head < i for i, head in enumerate(heads) if i)


def test_bad_input_says_what_to_do(trained, tmp_path):
    model = trained / "out" / "model-last"
    spacy.blank("en").to_disk(tmp_path / "blank")
    for arguments, expected in (
        (("show", tmp_path / "none", "x"), "cannot be loaded"),
        (("show", tmp_path / "blank", "x"), "no latent structure"),
        (("show", model, "x", "--component", "ner"), "'ner'"),
        (("show", model, "x", "--gpu-id", "0"), "GPU 0"),
        (("generate", "listops", tmp_path, "--sizes", "1"), "three numbers"),
    ):
        assert expected in said(*arguments, code=1)
