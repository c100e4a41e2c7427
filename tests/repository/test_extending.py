"""The code of docs/extending.md, which defines a structure by its MAP oracle alone."""

from __future__ import annotations

import sys
from copy import deepcopy
from importlib.metadata import EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import spacy
import torch
from confection import ConfigValidationError
from spacy.tokens import Span
from spacy.training import Example

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.spigot import Spigot
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.evaluation.assessment import assess
from spacy_latent.kinds import find_kind
from spacy_latent.visualize import render
from spacy_latent.visualize.report import render_report
from tests.pipeline.small_pipelines import initialized
from tests.repository.pages import blocks, entry_points, run_python
from tests.visualize.test_report import gallery

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The namespace after all Python blocks of the page have run."""
    return run_python(PAGE)


@pytest.mark.parametrize(
    "estimator",
    [
        StraightThrough(),
        Spigot(),
        SparseMAP(),
        SparseMAP(marginalize=True),
        PerturbAndMap(num_samples=4),
    ],
    ids=lambda estimator: estimator.name,
)
def test_the_structure_of_the_page_learns(page: dict[str, Any], estimator: Estimator) -> None:
    """The target is the sum of the vectors in a marked run of tokens, which the layer must find."""
    torch.manual_seed(0)
    layer = page["make_layer"](estimator)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    lengths = torch.randint(4, 9, (64,))
    vectors = torch.randn(64, 8, 8)
    starts = (torch.rand(64) * (lengths - 2)).long()
    marked = (torch.arange(8) >= starts[:, None]) & (torch.arange(8) < starts[:, None] + 3)
    vectors[:, :, 0] = marked * 2.0 - 1.0
    target = (vectors * marked[:, :, None]).sum(1)

    def step() -> float:
        optimizer.zero_grad()
        output = layer(vectors, lengths)
        loss = ((output.vectors - layer.composer.linear.bias).sum(1) - target).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    losses = [step() for _ in range(150)]
    assert losses[-1] < 0.5 * losses[0]
    found = layer.structure.map(layer.scorer(vectors, lengths), lengths)
    assert (found * marked).sum() / marked.sum() > 0.8


def test_the_page_supervises_draws_reports_and_compares(page: dict[str, Any]) -> None:
    assert page["losses"]["latent_encoder_supervision"] < 0.3
    (span,) = page["doc"]._.latent["latent_encoder"].spans
    assert span.kind == "parts" and span.decoded.tolist() == [[2], [3]]
    assert page["html"].count("<mark") == 2 and "great" in page["printed"]
    assert page["agreement"][0] == 1.0 and page["figures"].others.matrix[0][1] == 1.0
    assert page["figures"].random == {}, "there is no task"


@pytest.mark.parametrize("parts", ["items", "windows"])
def test_a_name_for_its_parts(page: dict[str, Any], parts: str) -> None:
    """A scorer and composer without a name of parts work with structures of any kind of parts.

    The kinds are "items", a kind of the package, and "windows", a kind that the page registers.
    """
    window = page["NamedWindow"] if parts == "windows" else type("Window", (page["Window"],), {})
    window.parts = parts
    spacy.registry.misc(f"test_extending.{parts}")(window)
    config = deepcopy(page["nlp"].config["components"]["latent_encoder"])
    config["model"]["structure"]["@misc"] = f"test_extending.{parts}"
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={k: v for k, v in config.items() if k != "factory"})
    nlp.initialize()
    doc = nlp("it was great fun")
    annotation = doc._.latent["latent_encoder"]
    assert annotation.spans[0].kind == parts and annotation.displacy_style == "ent"
    assert len(annotation.items()) == 2
    found = assess(nlp, [Example(nlp.make_doc(doc.text), doc)])
    part = found.figures.components["latent_encoder"]
    assert part.plural == {"items": "selections", "windows": "windows"}[parts]
    assert ("beginning" in part.statistics) == (parts == "windows")
    assert list(part.controls) == ["first tokens"] * (parts == "windows")
    data = gallery(render_report(found, model="m", corpus="c"))
    assert data["layers"][0]["kind"] == "items"
    ((_, _, chosen, percents),) = data["docs"][0][6][0][0]
    assert chosen == [item.token for item in annotation.items()] and len(percents) == 2


def test_the_best_runs_in_order(page: dict[str, Any]) -> None:
    scores = torch.tensor([[0.0, 1.0, 5.0, 2.0, 0.5]])
    best = page["Window"](2).top_k(scores, torch.tensor([5]), 5)
    assert best.scores[:, 0].tolist() == [7.0, 6.0, 2.5, 1.0, -torch.inf]


def test_what_it_cannot_do_is_refused_by_name(page: dict[str, Any]) -> None:
    with pytest.raises(IncompatiblePair, match=r"Marginals.*Window"):
        page["make_layer"](Marginals())
    with pytest.raises(IncompatiblePair, match=r"relaxed.*Window"):
        page["make_layer"](Spigot(projection="relaxed"))


def test_names_of_a_package_are_found_by_its_entry_points(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (b for b in blocks(PAGE) if "[options.entry_points]" in b.code)
    points = entry_points(block.code)
    for point in points:
        # The entry points name modules of a package, which get the definitions of the page.
        monkeypatch.setitem(sys.modules, point.module, ModuleType(point.module))
        vars(sys.modules[point.module]).update(page)
    monkeypatch.setitem(sys.modules, "my_project", ModuleType("my_project"))
    monkeypatch.setattr("catalogue.AVAILABLE_ENTRY_POINTS", EntryPoints(points))
    monkeypatch.setattr("catalogue.REGISTRY", {})
    config = deepcopy(page["nlp"].config["components"]["latent_encoder"]["model"])
    made = spacy.registry.resolve({key: config[key] for key in ("structure", "scorer", "composer")})
    assert type(made["structure"]) is page["NamedWindow"] and made["structure"].width == 2
    assert made["scorer"] is page["TokenScorer"] and made["composer"] is page["KeepChosen"]
    assert spacy.registry.misc.get("my_project.Sharpened.v1") is page["Sharpened"]


def test_a_drawing_of_its_own(page: dict[str, Any]) -> None:
    doc = page["doc"].copy()
    decoded = page["doc"]._.latent["latent_encoder"].spans[0].decoded
    write(doc, "latent_encoder", [SpanStructure(0, 4, "Window", "framed windows", decoded)])
    html = render(doc, jupyter=False)
    assert html.count("<mark") == 1 and "from the first word to the last" in html
    assert find_kind("framed windows").plural == "windows"


def test_a_component_of_the_page_has_the_settings_of_both_classes(
    page: dict[str, Any], tmp_path: Path
) -> None:
    nlp = page["selective"]
    pipe = nlp.get_pipe("selective_ner")
    assert (pipe.cfg["ignored"], pipe.cfg["min_confidence"]) == (["Monday"], 0.5)
    initialized(nlp)
    pipe.cfg.update(min_confidence=0.0, ignored=["London"])
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path).get_pipe("selective_ner")
    assert isinstance(loaded, page["SelectiveRecognizer"]) and loaded.cfg["ignored"] == ["London"]
    doc = nlp.make_doc("I like London")
    doc.ents = [Span(doc, 2, 3, "GPE")]
    assert not nlp(doc).ents
    with pytest.raises(ConfigValidationError):
        spacy.blank("en").add_pipe("selective_ner", config={"ignored": "Monday", "loss": 1})
