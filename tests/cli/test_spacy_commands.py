"""spaCy's own commands on the shipped configs, and the entry points that they load."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import spacy
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin
from spacy.util import load_config, load_model_from_config, registry

from tests.cli.commands import invoked
from tests.repository.recipes import RECIPES

CONFIGS = Path(__file__).parents[2] / "configs"
# Baselines without trees.
WITHOUT_TREES = ("listops_lstm", "listops_arborescence_lstm")
FAST = [
    "--training.max_epochs=1",
    "--training.max_steps=2",
    "--training.eval_frequency=1",
    "--components.latent_encoder.model.tok2vec.width=8",
    "--components.latent_encoder.model.tok2vec.depth=1",
    "--components.latent_encoder.model.tok2vec.embed_size=50",
    "--components.textcat.model.tok2vec.width=8",
]


run = partial(invoked, app)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("commands")
    vocab = spacy.blank("en").vocab
    docs = DocBin()
    for i in range(12):
        doc = Doc(vocab, words=["good" if i % 2 else "bad", "film", ".", str(i)])
        doc.cats = {"POSITIVE": float(i % 2), "NEGATIVE": float(1 - i % 2)}
        docs.add(doc)
    docs.to_disk(path / "data.spacy")
    return path


@pytest.fixture(scope="module")
def trained(corpus):
    data = corpus / "data.spacy"
    overrides = [f"--paths.train={data}", f"--paths.dev={data}", *FAST]
    run("train", CONFIGS / "sentiment_marginals.cfg", "-o", corpus / "out", *overrides)
    return corpus / "out" / "model-last"


def test_debug_config_takes_a_shipped_config():
    run("debug", "config", CONFIGS / "demo.cfg")


def stage_settings(config):
    """Return the names of the settings that end a stage of training after some updates."""

    def walk(block, path):
        for key, value in block.items():
            if key in ("release_at", "switch_at"):
                yield f"{path}{key}"
            elif isinstance(value, dict):
                yield from walk(value, f"{path}{key}.")

    return list(walk(load_config(config), ""))


@pytest.mark.parametrize(
    "config",
    [path for path in RECIPES if path.stem.startswith(("listops_", "demo_"))],
    ids=lambda path: path.stem,
)
def test_every_estimator_trains_as_configured(config, tmp_path):
    corpus = CONFIGS.parent / "assets" / "listops"
    overrides = [
        f"--paths.train={corpus / 'train.tsv'}",
        f"--paths.dev={corpus / 'dev.tsv'}",
        "--training.max_steps=2",
        "--training.eval_frequency=2",
        "--corpora.train.limit=60",
        "--corpora.dev.limit=20",
        *(f"--{setting}=1" for setting in stage_settings(config)),
    ]
    run("train", config, "-o", tmp_path, *overrides)
    nlp = spacy.load(tmp_path / "model-last")
    if config.stem in WITHOUT_TREES:
        return
    (annotation,) = nlp("[MAX 1 2 ]")._.latent.values()
    (span,) = annotation.spans
    assert len(span) == 4 and span.kind in ("heads", "spans")


def test_evaluate_apply_benchmark_package(trained, corpus):
    data = corpus / "data.spacy"
    run("evaluate", trained, data, "-o", corpus / "m.json")
    assert (corpus / "m.json").is_file()
    run("apply", trained, data, corpus / "applied.spacy")
    applied = list(DocBin().from_disk(corpus / "applied.spacy").get_docs(spacy.blank("en").vocab))
    assert len(applied) == 12 and "POSITIVE" in applied[0].cats
    run("benchmark", "speed", trained, data, "--batches", 30, "--warmup", 0)
    run("package", trained, corpus, "--build", "none", "--force")
    assert list(corpus.glob("en_pipeline-*/**/meta.json"))


def test_find_function():
    found = run("find-function", "spacy-latent.LatentTok2Vec.v1", "-r", "architectures")
    assert "latent_tok2vec.py" in found.output.replace("\n", "")


def test_every_entry_point_loads():
    from importlib.metadata import distribution

    points = distribution("spacy-latent").entry_points
    assert len(points) >= 20
    for point in points:
        assert callable(point.load()), point


def test_trap_17_and_imports_stay_light():
    """The imports of every spaCy command load no numba, and torch only by way of thinc."""
    code = (
        "import sys, thinc.api, spacy\n"
        "before = set(sys.modules)\n"
        "import spacy_latent, spacy_latent.pipeline.latent_encoder, spacy_latent.cli.app\n"
        "new = set(sys.modules) - before\n"
        "heavy = {'numba', 'torch', 'matplotlib', 'spacy_latent.structures.base'} & new\n"
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["--help"], 0, "Commands for pipelines"), (["show"], 2, "model"), (["shwo"], 2, "shwo")],
)
def test_the_script_answers_before_anything_heavy_is_imported(
    arguments: list[str], code: int, said: str
) -> None:
    program = (
        "import sys, spacy_latent.__main__ as script\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "try:\n"
        "    script.latent_cli()\n"
        "finally:\n"
        "    heavy = {'spacy', 'thinc', 'torch', 'numpy', 'numba'} & set(sys.modules)\n"
        "    print(f'{len(heavy)} heavy modules', *heavy)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == code
    # Older versions of typer write the names of arguments in capitals.
    assert said.lower() in (found.stdout + found.stderr).lower()
    assert "0 heavy modules" in found.stdout


def test_the_script_has_the_commands_of_spacy_latent() -> None:
    from importlib.metadata import distribution

    from spacy_latent.cli.app import latent_cli

    (script,) = distribution("spacy-latent").entry_points.select(group="console_scripts")
    assert script.name == "spacy-latent"
    assert script.load() is latent_cli


def test_an_impossible_pair_is_refused_with_its_names():
    config = load_config(CONFIGS / "demo_attention.cfg")
    model = config["components"]["latent_encoder"]["model"]
    model["composer"] = {"@misc": "spacy-latent.ChildSumTreeLstm.v1"}
    with pytest.raises(Exception, match=r"ChildSumTreeLstm.*Marginals"):
        load_model_from_config(config, auto_fill=True)


def test_listed_names_are_registered():
    for name in ("SpanningTree", "ProjectiveTree", "SparseMAP", "BiLSTM", "SentenceSpans"):
        assert registry.has("misc", f"spacy-latent.{name}.v1")
