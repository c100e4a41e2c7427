"""Every block of code on every page runs, or everything that it names exists.

New pages are found automatically. The Python of a page runs from top to bottom in one namespace, in
an empty directory. Configs are filled. Commands are parsed, and run if the page asks for it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import spacy
import srsly
import torch
from spacy.cli.init_config import fill_config
from spacy.training import Example
from spacy.util import registry
from thinc.api import Config, fix_random_seed

from benchmarks import recipes
from spacy_latent.testing import check_structure
from tests.pipeline.test_sourcing import small_pipeline
from tests.repository import drawings, pages
from tests.repository.pages import PAGES, ROOT


def of_language(language: str, run: bool = False) -> Any:
    found = [(page, block) for page in PAGES for block in pages.blocks(page)]
    wanted = [block for _, block in found if block.language == language and block.run >= run]
    return pytest.mark.parametrize("block", wanted, ids=str)


def an_annotated_doc() -> dict[str, Any]:
    """Return the names that the README's Python assumes, with a doc of a ``latent_encoder``."""
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder")
    nlp.initialize()
    return {"nlp": nlp, "doc": nlp("They saw the tree ."), "displacy": spacy.displacy}


def a_trained_pipeline() -> dict[str, Any]:
    """Save a pipeline under the name of the package that the page loads, if it is not installed."""
    # spacy.load() takes a directory of this name as well.
    if not spacy.util.is_package("en_core_web_sm"):
        small_pipeline().to_disk("en_core_web_sm")
    return {}


def an_english_pipeline() -> dict[str, Any]:
    """Train and save a pipeline in place of the package that ``spacy project run english`` makes.

    Its directory has the package's name.
    """
    nlp = spacy.blank("en")
    for name in ("latent_parser", "crf_ner"):
        nlp.add_pipe(name, config={"annotate": "probabilities"})
    annotated = {
        "heads": [1, 1, 1],
        "deps": ["nsubj", "ROOT", "obj"],
        "entities": ["U-PER", "O", "O"],
    }
    example = Example.from_dict(nlp.make_doc("Ada met Charles"), annotated)
    optimizer = nlp.initialize(lambda: [example])
    for _ in range(30):
        nlp.update([example], drop=0.0, sgd=optimizer)
    nlp.to_disk("en_latent_sm")
    return {}


# Functions that return the names, and write the files, that the Python of a page assumes.
BEFORE: dict[str, Callable[[], dict[str, Any]]] = {
    "README.md": an_annotated_doc,
    "crf_ner.md": a_trained_pipeline,
    "english.md": an_english_pipeline,
}


def check_pipelines(scope: dict[str, Any], printed: list[str]) -> None:
    assert "<svg" in str(scope["html"])
    assert "<mark" in str(scope["marked"])


def check_index(scope: dict[str, Any], printed: list[str]) -> None:
    first, second = spacy.tokens.DocBin().from_disk("train.spacy").get_docs(scope["nlp"].vocab)
    # A comma inside of quotation marks does not separate cells.
    assert first.text == "Fun, and long" and first.cats == {"bad": 0.0, "good": 1.0}
    assert second.cats == {"bad": 1.0, "good": 0.0}
    assert printed[0] == "1 of 3 rows have no category, and are left out"
    # Excel writes a byte order mark.
    text = Path("films.csv").read_text(encoding="utf8")
    Path("films.csv").write_text(text, encoding="utf-8-sig")
    scope["convert"]("films.csv", "marked.spacy")
    assert len(spacy.tokens.DocBin().from_disk("marked.spacy")) == 2
    assert Path("tree.html").exists()


def check_factor_graphs(scope: dict[str, Any], printed: list[str]) -> None:
    mean = scope["solution"].mean[0].detach()
    torch.testing.assert_close(mean.sum(1), torch.ones_like(mean[:, 0]), atol=1e-6, rtol=0)
    assert scope["solution"].residual <= 1e-6 and scope["scores"].grad is not None
    # These scores favour an alignment that violates the implication, so the constraint is active.
    mean = scope["graph"].sparsemap(torch.eye(3, 4) * 3.0).mean[0]
    assert mean[0, 0] <= mean[2, 3] + 1e-6 and mean[2, 3] > 0.1
    knapsack, table = scope["knapsack"], scope["table"]

    def fitting(n: int) -> list[np.ndarray]:
        every = product([0.0, 1.0], repeat=n)
        return [np.array(z) for z in every if np.dot(z, knapsack.costs[:n]) <= knapsack.budget]

    check_structure(knapsack, fitting, lengths=(5, 0, 3))
    # The scores are of the rows of the table, then of the values of its two variables. With large
    # scores, SparseMAP gives the best row alone.
    for _ in range(5):
        rows, first, second = torch.randn(3, 2), torch.randn(3), torch.randn(2)
        scores = 1e3 * torch.cat([rows.flatten(), first, second])
        best = table.sparsemap(scores).mean[0].round()
        totals = rows + first[:, None] + second
        assert torch.equal(best[:6].view(3, 2), (totals == totals.max()).float())


def check_python_api(scope: dict[str, Any], printed: list[str]) -> None:
    assert printed[0] == "4" and "[MIN <- [MAX" in printed
    assert scope["best"] != scope["second"] and "displacy" in scope["markup"]
    assert "<svg" in scope["svg"] and scope["page"].startswith("<!DOCTYPE")


def check_structured_attention(scope: dict[str, Any], printed: list[str]) -> None:
    shares = [float(line.split(": ")[1].split("%")[0]) for line in printed if "%" in line]
    cold, warm = shares[::2], shares[1::2]
    assert cold == sorted(cold) and cold[-1] > 50 and all(w <= c for w, c in zip(warm, cold))
    forward = scope["start"].exp()
    for place, symbol in enumerate(scope["observed"][0].tolist()):
        before = forward @ scope["transitions"].exp() if place else forward
        forward = before * scope["emissions"][:, symbol].exp()
    torch.testing.assert_close(scope["log_likelihood"][0], forward.sum().log())
    for item, n in enumerate(scope["sizes"].tolist()):
        totals = []
        for chain, own in ((scope["p"], scope["of_p"]), (scope["q"], scope["of_q"])):
            transitions, start, end = chain.bound
            totals.append([])
            for tags in product(range(3), repeat=n):
                used = [own[item, range(n), tags], start[tags[0]], end[tags[-1]]]
                used.append(transitions[tags[:-1], tags[1:]])
                totals[-1].append(sum(each.sum() for each in used))
        ours, theirs = (torch.stack(total).log_softmax(0) for total in totals)
        expected = (ours.exp() * (ours - theirs)).sum()
        torch.testing.assert_close(scope["divergence"][item], expected)
    # The marginals are the same without the masked words.
    alone = scope["p"].marginals(scope["scores_of_words"][:1, [0, 2, 3]], torch.tensor([3]))
    torch.testing.assert_close(scope["marginals_of_words"][:1, [0, 2, 3]], alone)
    cells = scope["cells"][0]
    paths = [p for p in combinations_with_replacement(range(3), 5) if len({*p}) == 3]
    weights = torch.stack([cells[p, range(5)].sum() for p in paths]).softmax(0)
    expected = sum(
        w * torch.nn.functional.one_hot(torch.tensor(p), 3).T for w, p in zip(weights, paths)
    )
    torch.testing.assert_close(scope["aligned"][0], expected)


def check_from_ner(scope: dict[str, Any], printed: list[str]) -> None:
    assert printed[0].startswith("London GPE ")


def check_crf_ner(scope: dict[str, Any], printed: list[str]) -> None:
    assert printed[0] == "[('London', 'GPE')]"
    assert printed[-1].startswith("[('cat', 'ANIMAL', 0.9")


def check_nested(scope: dict[str, Any], printed: list[str]) -> None:
    found = [line.rsplit(" ", 1)[0] for line in printed[:4]]
    phrases = ["NP the dog in the park", "NP the dog", "PP in the park", "NP the park"]
    assert found == phrases and len(printed) >= 8


def check_drawing(scope: dict[str, Any], printed: list[str]) -> None:
    assert str(scope["html"]).count("<svg") == 3
    assert "<table" in str(scope["table"]) and str(scope["marked"]).count("<mark") == 2


def check_pairs(scope: dict[str, Any], printed: list[str]) -> None:
    assert printed[0] == "[A man sleeps.] [He is asleep.]"
    assert printed[1] == "same"
    aligned = [line.split()[:2] for line in printed[2:6]]
    assert aligned == [[word, word] for word in "he reads a book".split()]
    assert float(printed[-1]) == 1.0


def check_rationales(scope: dict[str, Any], printed: list[str]) -> None:
    assert "rationale" in str(scope["html"])


def check_reports(scope: dict[str, Any], printed: list[str]) -> None:
    assert scope["sentences"] and "<!DOCTYPE html>" in str(scope["page"])
    assert "cats_score" in scope["scores"]


class Frame(dict[str, list[Any]]):
    """A stand-in for a pandas frame, with the methods that the page uses.

    It is needed because pandas may not be installed.
    """

    def assign(self, **columns: list[Any]) -> Frame:
        return Frame({**self, **columns})


class Spark:
    """A stand-in for Spark, with the methods that the page uses.

    Real Spark splits rows into frames of any size. Here each frame has one row.
    """

    def createDataFrame(self, rows: list[Any], columns: str) -> Spark:
        names = [column.split()[0] for column in columns.split(", ")]
        pandas = None if find_spec("pandas") is None else import_module("pandas")
        made = [{name: [row[i]] for i, name in enumerate(names)} for row in rows]
        self.frames = [Frame(one) if pandas is None else pandas.DataFrame(one) for one in made]
        return self

    def repartition(self, count: int) -> Spark:
        assert count == len(self.frames)
        return self

    def mapInPandas(self, function: Any, columns: str) -> Spark:
        self.names = [column.split()[0] for column in columns.split(", ")]
        self.frames = list(function(iter(self.frames)))
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [
            {name: frame[name][row] for name in self.names}
            for frame in self.frames
            for row in range(len(frame["source"]))
        ]


def check_annotating(scope: dict[str, Any], printed: list[str]) -> None:
    shards = [("texts.txt", f"annotated/{number}.parquet") for number in range(2)]
    for rows in (2, 0):
        # Spark may run a task twice. The second run leaves existing files unchanged.
        found = scope["annotate_with_spark"](Spark(), shards)
        assert [row["target"] for row in found] == [target for _, target in shards]
        assert [(row["rows"], row["failed"]) for row in found] == [(rows, 0)] * 2
    assert sorted(Path("annotated").iterdir()) == [Path(target) for _, target in shards]


def check_parsers(scope: dict[str, Any], printed: list[str]) -> None:
    assert scope["losses"]["latent_encoder_supervision"] < 0.3
    whole = [b for b in scope["doc"]._.latent["latent_textcat"].brackets() if b.end - b.start == 4]
    assert len(whole) == 1


# Conditions that must hold after the Python of a page, beyond the page's own assertions.
AFTER: dict[str, Callable[[dict[str, Any], list[str]], None]] = {
    "annotating.md": check_annotating,
    "python_api.md": check_python_api,
    "structured_attention.md": check_structured_attention,
    "from_ner.md": check_from_ner,
    "crf_ner.md": check_crf_ner,
    "drawing.md": check_drawing,
    "factor_graphs.md": check_factor_graphs,
    "index.md": check_index,
    "nested.md": check_nested,
    "pairs.md": check_pairs,
    "parsers.md": check_parsers,
    "pipelines.md": check_pipelines,
    "rationales.md": check_rationales,
    "reports.md": check_reports,
}
# The package of an optional extra that the Python of a page needs. The page is skipped without it.
NEEDS = {"annotating.md": "pyarrow", "sweeps.md": "optuna", "serve.md": "starlette"}
WITH_PYTHON = [p for p in PAGES if any(b.language == "python" for b in pages.blocks(p))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_the_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    fix_random_seed(0)
    scope = pages.run_python(page, BEFORE.get(page.name, dict)())
    if page.name in AFTER:
        AFTER[page.name](scope, capsys.readouterr().out.splitlines())
    for path, picture in drawings.pictures(page.name, scope).items():
        ElementTree.fromstring(picture)
        assert path.read_text(encoding="utf8") == picture, "run python -m tests.repository.drawings"


@of_language("ini")
def test_the_config_is_of_names_and_settings_that_there_are(block: pages.Block) -> None:
    own = re.findall(r'@misc = "(my_project\.\w+\.v1)"', block.code)
    if not all(registry.has("misc", name) for name in own):
        # The page's Python registers these names. It is slow, and may have run in another test.
        pages.run_python(ROOT / "docs" / block.page)
    if "spacy-transformers." in block.code:
        # spacy-transformers is an optional extra.
        pytest.importorskip("spacy_transformers")
    pages.check_config(block.code)


# Pieces that give a latent_encoder a structure, and nothing of another component.
ENCODERS = [
    block
    for page in PAGES
    for block in pages.blocks(page)
    if block.language == "ini"
    and "[components.latent_encoder.model.structure]" in block.code
    # The Python of its page registers these.
    and "my_project." not in block.code
]


@pytest.mark.parametrize("block", ENCODERS, ids=str)
def test_a_structure_of_an_encoder_needs_nothing_that_the_piece_lacks(block: pages.Block) -> None:
    config = Config().from_str(pages.with_parents(block.code))["components"]["latent_encoder"]
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={k: v for k, v in config.items() if k != "factory"})
    nlp.initialize()


WHOLE = [
    block
    for page in PAGES
    for block in pages.blocks(page)
    if block.language == "ini" and re.search(r"^\[nlp\]\nlang = ", block.code, re.M)
]


def test_whole_configs_are_found() -> None:
    assert {block.page for block in WHOLE} >= {"index.md", "pipelines.md"}


@pytest.mark.parametrize("block", WHOLE, ids=str)
def test_a_whole_config_goes_through_fill_config_as_it_stands(
    block: pages.Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in set(re.findall(r'^source = "(\w+)"$', block.code, re.M)):
        if not spacy.util.is_package(name):
            # spaCy takes a directory of this name as well.
            small_pipeline().to_disk(tmp_path / name)
    (tmp_path / "base_config.cfg").write_text(block.code, encoding="utf8")
    fill_config(tmp_path / "config.cfg", tmp_path / "base_config.cfg", silent=True)
    filled = spacy.util.load_config(tmp_path / "config.cfg", interpolate=False)
    assert filled["training"]["optimizer"] and filled["corpora"]["train"]


@of_language("bash")
def test_the_commands_are_there(block: pages.Block) -> None:
    for words in pages.commands(block.code):
        pages.check_command(words)


@of_language("json")
def test_the_json_is_json(block: pages.Block) -> None:
    for line in [block.code] if block.code.lstrip().startswith("[") else block.code.splitlines():
        json.loads(line)


@of_language("yaml")
def test_the_yaml_is_yaml(block: pages.Block) -> None:
    assert srsly.yaml_loads(block.code)


NO_RECIPES = "scorer\\b|key\\b|rate\\b|f\\b|p\\b|r\\b|iou_f\\b|pipeline\\b"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_configs_that_the_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf8")
    there = {
        path.name
        for folder in ("configs", "configs/variants", "benchmarks", ".")
        for path in (ROOT / folder).glob("*.cfg")
    }
    named = set(re.findall(r"(?:^|[\s`(/])(?!self)([a-z]\w*\.cfg)\b", text, re.M))
    assert named - pages.WRITTEN_BY_THE_READER <= there
    # Some recipes are variants, which are not files of their own.
    there |= {f"{name}.cfg" for name in recipes.names()}
    kinds = "arguments|demo|infix|listops|pairs|rationale|sentiment|tree"
    # Names of recipes begin with their task. NO_RECIPES has the endings of settings and scores.
    named = set(re.findall(rf"`((?:{kinds})_(?!spancat\b|{NO_RECIPES})\w+)`", text))
    assert {f"{name}.cfg" for name in named} <= there
    # A table may give the common prefix of all names in its heading.
    for start, rows in re.findall(r"^\| config, `(\w+)…`(.*?)\n\n", text, re.M | re.S):
        for name in re.findall(r"^\| `(\w+)`", rows, re.M):
            assert f"{start}{name}.cfg" in there, name


WITH_RUNS = [p for p in PAGES if any(b.run for b in pages.blocks(p))]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_RUNS, ids=lambda page: page.name)
def test_the_commands_run(page: Path, tmp_path: Path) -> None:
    """The commands that the page marks run one after another, in a directory with the configs."""
    (tmp_path / "configs").symlink_to(ROOT / "configs", target_is_directory=True)
    printed = ""
    for block in pages.blocks(page):
        for words in pages.commands(block.code) if block.run else ():
            assert words[:2] == ["python", "-m"], words
            done = subprocess.run(
                [sys.executable, *words[1:]],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert done.returncode == 0, f"{words}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
            printed = done.stdout
    if page.name == "index.md":
        # The last command prints what the page says: digits under their operator, and the value.
        assert re.search(r"[│|]  \S+ 9 ", printed), printed
        assert re.search(r"[│|]  \S+ 4 ", printed) and "categories: 4 " in printed, printed


def test_a_block_in_no_language_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```\nsomething\n```\n", encoding="utf8")
    with pytest.raises(AssertionError, match=r"page.md:3"):
        pages.blocks(page)


@pytest.mark.parametrize(
    "command",
    [
        "python -m spacy latent shout model text",
        "python -m spacy latent show model text --louder",
        "python -m spacy latent show",
        "python -m spacy train configs/demo.cfg --training.steps 3",
        "python -m spacy train configs/nothing.cfg",
        "python -m spacy project run dance",
        "python -m spacy_latent.cli.listops generate corpus --size 3",
        "python -m spacy_latent.nothing",
        "make coffee",
        "pip install spacy-latent[coffee]",
        "rm everything",
    ],
)
def test_commands_that_there_are_not_are_refused(command: str) -> None:
    with pytest.raises(Exception, match=r"\w"):
        pages.check_command(command.split())


@pytest.mark.parametrize(
    "config",
    [
        '[components.latent_encoder]\nannotation = "map"\n',
        '[components.latent_encoder.model.structure]\n@misc = "spacy-latent.Bush.v1"\n',
        '[components.x.model.structure]\n@misc = "spacy-latent.KOfN.v1"\nkk = 3\n',
        '[training.logger]\n@loggers = "spacy-latent.StructureLogger.v1"\nlimits = 3\n',
        '[corpora.train]\n@readers = "spacy-latent.LabelledCorpora.v1"\n\n'
        '[corpora.train.corpora.one]\npath = "one.spacy"\n',
        "[options.entry_points]\nspacy_nothing =\n    a.B.v1 = a:B\n",
        "[options.entry_points]\nspacy_misc =\n    Window = a:B\n",
    ],
)
def test_configs_of_what_there_is_not_are_refused(config: str) -> None:
    with pytest.raises(Exception, match=r"\w"):
        pages.check_config(config)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_has_a_head(page: Path) -> None:
    """A row after a blank line, which an edit may leave, would be shown as text."""
    lines = pages.FENCE.sub("", page.read_text(encoding="utf8")).splitlines()
    rows = [i for i, line in enumerate(lines) if line.startswith("|")]
    first = [i for i in rows if not lines[i - 1].startswith("|")]
    assert not [lines[i] for i in first if not re.fullmatch(r"[|\s:-]+", lines[i + 1])]
