"""A new kind of parts, which this file registers, works in the whole package.

Its structures are learned, supervised, written on docs, drawn, printed, reported and compared.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import spacy
import srsly
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam, fix_random_seed
from torch import Tensor, nn

from spacy_latent.analysis.figures import plain
from spacy_latent.analysis.structures import structure_statistics
from spacy_latent.analysis.verdicts import Verdict
from spacy_latent.annotations import LatentAnnotation, SpanStructure, to_json, write
from spacy_latent.cli.show import show_cli
from spacy_latent.errors import LatentError
from spacy_latent.evaluation.assessment import Assessment, assess
from spacy_latent.kinds import Drawing, Kind, find_kind, known_kinds, register_kind
from spacy_latent.layers.base import Composer, PartScorer
from spacy_latent.structures.base import Structure
from spacy_latent.training.structure_observer import StructureObserver
from spacy_latent.visualize import render, render_svg
from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.picture import Picture
from spacy_latent.visualize.report import render_report
from spacy_latent.visualize.structure_view import StructureView
from spacy_latent.visualize.terminal import format_annotation
from tests.pipeline.keyword_pipelines import EMBED, keyword_examples, texts
from tests.pipeline.small_pipelines import step
from tests.visualize.test_report import gallery

# ---------------------------------------------------------------- the code of an extension


class Stretch(Structure):
    """A set of structures with one stretch of tokens. Its part is the first and the last token."""

    parts = "stretches"
    part_axes = 2

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        mask = super().part_mask(scores, lengths)
        return mask & torch.ones(mask.shape[1:], dtype=torch.bool).triu()

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        best = scores.flatten(1).argmax(1)
        z = torch.zeros_like(scores).flatten(1)
        z[torch.arange(len(z)), best] = 1.0
        return z.view_as(scores) * (lengths > 0).view(-1, 1, 1)


class StretchScorer(PartScorer):
    parts = "stretches"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 2)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        first, last = self.ends(vectors).unbind(2)
        return first[:, :, None] + last[:, None, :]


class InsideOnly(Composer):
    parts = "stretches"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output_width = width

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        begun = z.sum(2).cumsum(1)
        ended = z.sum(1).cumsum(1) - z.sum(1)
        return vectors * (begun - ended)[:, :, None]


spacy.registry.misc("test_kinds.Stretch.v1")(Stretch)
spacy.registry.misc("test_kinds.StretchScorer.v1")(lambda: StretchScorer)
spacy.registry.misc("test_kinds.InsideOnly.v1")(lambda: InsideOnly)


def describe(decoded: np.ndarray, n: int) -> dict[str, float | None]:
    ((first, last),) = decoded
    return {"part of the text": (last - first + 1) / n, "beginning": float(first)}


def whole_text(words: Any, heading: Any, other: Any) -> dict[str, np.ndarray]:
    return {"whole text": np.array([[0, len(words) - 1]])}


def judge(figures: Any) -> list[Verdict]:
    share = figures.statistics["part of the text"].mean
    return [Verdict("note", "long-stretches", f"Stretches hold {share:.0%}.")] if share > 0 else []


def draw(view: StructureView) -> tuple[list[Picture], str]:
    marks = [
        Highlight(first, last + 1, p, "", view.label(p), not chosen)
        for (first, last), p, chosen in view.parts(None)
    ]
    return [draw_highlights(view.spaced_words, marks, view.options, view.title)], "a stretch"


def stretch_text(annotation: LatentAnnotation, span: SpanStructure, part: tuple[int, ...]) -> str:
    first, last = (span.start + place for place in part)
    return f"from {annotation.doc[first].text} to {annotation.doc[last].text}"


def gold_stretches(example: Example, spans: Any) -> list[np.ndarray | None]:
    """Return the stretches that a group of spans of the reference gives."""
    marked = example.reference.spans.get("stretch")
    if not marked:
        return [None for _ in spans]
    return [np.array([[marked[0].start - start, marked[0].end - 1 - start]]) for start, *_ in spans]


STRETCHES = Kind(
    "stretches",
    plural="stretches",
    accessors=("brackets",),
    statistics=describe,
    meanings={"part of the text": "share of the tokens inside", "beginning": "tokens before"},
    shares=frozenset({"part of the text"}),
    columns=("part of the text",),
    controls=whole_text,
    control_words={"whole text": "Nearly all texts are whole: {share}."},
    judge=judge,
    drawings={"stretch": Drawing(draw)},
    part_text=stretch_text,
    gallery="spans",
    gold=gold_stretches,
)
register_kind(STRETCHES)

# ---------------------------------------------------------------- the behaviour of the package

MODEL: dict[str, Any] = {
    "tok2vec": EMBED,
    "structure": {"@misc": "test_kinds.Stretch.v1"},
    "scorer": {"@misc": "test_kinds.StretchScorer.v1"},
    "composer": {"@misc": "test_kinds.InsideOnly.v1"},
    "estimator": {"@misc": "spacy-latent.SparseMAP.v1"},
}


def marked_examples(nlp: Language, count: int, annotated: bool) -> list[Example]:
    """Return examples with a gold stretch, from the word of the label to the word "stop".

    Args:
        annotated: write it as an annotation of a component; otherwise as a group of spans.
    """
    made = []
    for text, label in texts(count, 1):
        doc = nlp.make_doc(f"{text} stop filler0")
        reference = doc.copy()
        first, last = text.split().index(label), len(doc) - 2
        if annotated:
            gold = np.array([[first, last]])
            span = SpanStructure(0, len(doc), "Stretch", "stretches", gold)
            write(reference, "encoder", [span])
        else:
            reference.spans["stretch"] = [reference[first : last + 1]]
        made.append(Example(doc, reference))
    return made


def supervised(annotated: bool, steps: int = 40) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    settings = {"supervision": 1.0, "supervision_loss": "sparsemap", "annotate": "probabilities"}
    nlp.add_pipe(
        "latent_encoder", "encoder", config={"model": MODEL, "alternatives": 2, **settings}
    )
    sample = marked_examples(nlp, 40, annotated)
    nlp.initialize(lambda: sample)
    optimizer = Adam(0.03)
    for _ in range(steps):
        step(nlp, sample, optimizer)
    return nlp


@pytest.fixture(scope="module")
def nlp() -> Language:
    return supervised(annotated=True)


@pytest.fixture(scope="module")
def found(nlp: Language) -> Assessment:
    return assess(nlp, marked_examples(nlp, 12, True), others={"first": supervised(True, steps=0)})


@pytest.mark.parametrize("annotated", [True, False], ids=["annotation", "own way"])
def test_gold_structures_are_learned(nlp: Language, annotated: bool) -> None:
    taught = nlp if annotated else supervised(annotated=False)
    examples = marked_examples(taught, 20, annotated=True)
    right = [
        taught(example.predicted.copy())._.latent["encoder"].spans[0].decoded.tolist()
        == example.reference._.latent["encoder"].spans[0].decoded.tolist()
        for example in examples
    ]
    assert sum(right) > 15


def test_gold_of_other_parts_is_refused_by_name(nlp: Language) -> None:
    examples = keyword_examples(nlp, 1)
    doc = examples[0].reference
    write(doc, "encoder", [SpanStructure(0, len(doc), "KOfN", "items", np.array([1]))])
    with pytest.raises(LatentError, match=r"Stretch.*stretches"):
        nlp.update(examples)


def test_the_task_alone_teaches_it_too() -> None:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    model = {**MODEL, "estimator": {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True}}
    nlp.add_pipe("latent_textcat", config={"model": model, "annotate": "map"})
    sample = keyword_examples(nlp, 40, heads=False)
    nlp.initialize(lambda: sample)
    optimizer = Adam(0.02)
    losses = [step(nlp, sample, optimizer)["latent_textcat"] for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    assert nlp("a good film")._.latent["latent_textcat"].spans[0].kind == "stretches"


def test_it_is_read_drawn_and_printed(nlp: Language) -> None:
    doc = nlp("filler1 filler2 good filler3 stop filler4")
    annotation = doc._.latent["encoder"]
    best = max(annotation.brackets(), key=lambda bracket: bracket.probability)
    assert (best.start, best.end) == (2, 5)
    assert annotation.displacy_style == "span"
    (drawing,) = annotation.to_displacy()
    assert drawing["spans"][0]["start_token"] == 2
    with pytest.raises(LatentError, match=r"'stretches'.*brackets\(\)"):
        annotation.arcs()
    ElementTree.fromstring(render_svg(doc))
    assert "a stretch" in render(doc, page=True, jupyter=False)
    assert render_svg(doc, style="stretch") == render_svg(doc)
    with pytest.raises(LatentError, match="stretch"):
        render(doc, style="tree", jupyter=False)
    assert format_annotation(annotation).splitlines()[1].startswith("from good to stop")
    (entry,) = to_json(doc, ["encoder"]).values()
    assert entry["brackets"][0][:2] == [2, 5] and entry["spans"][0]["decoded"] == [[2, 4]]


def test_commands_show_it(
    nlp: Language, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nlp.to_disk(tmp_path / "model")
    code = tmp_path / "code.py"
    code.write_text(
        "from spacy_latent.kinds import Kind, register_kind\n"
        "register_kind(Kind('test_kinds.from_code', plural='what --code brought'))\n"
    )
    asked = {
        "second": None,
        "html": None,
        "threshold": None,
        "alternatives": 0,
        "component": None,
        "gpu_id": -1,
    }
    text = "filler1 good filler2 stop"
    show_cli(str(tmp_path / "model"), text, as_json=True, code=code, **asked)
    shown = srsly.json_loads(capsys.readouterr().out)
    assert shown["latent"]["encoder"]["brackets"][0][:2] == [1, 4]
    assert find_kind("test_kinds.from_code").plural == "what --code brought"
    show_cli(str(tmp_path / "model"), text, as_json=False, code=None, **asked)
    assert "from good to stop" in capsys.readouterr().out


def test_it_is_reported(found: Assessment) -> None:
    part = found.figures.components["encoder"]
    assert part.kind == part.plural == "stretches"
    assert 0 < part.statistics["part of the text"].mean < 1
    assert part.statistics["part of the text"].high == 1.0, "a share"
    assert part.controls == {"whole text": 0.0}
    assert "long-stretches" in [verdict.code for verdict in found.verdicts["encoder"]]
    # The predictions are compared with the annotations of the references.
    rows = part.reference.rows
    assert rows["encoder"]["parts"][0] > 0.7 > rows["whole text"]["parts"][0]
    srsly.json_dumps(plain(found.figures))
    page = render_report(found, model="m", corpus="c")
    assert "share of the tokens inside" in page and "whole text stretches" in page
    data = gallery(page)
    assert data["layers"] == [{"name": "encoder", "kind": "spans"}]
    ((start, end, decoded, percents),) = data["docs"][0][6][0][0]
    assert (start, len(decoded), len(percents)) == (0, 1, 1) and decoded[0][1] == end - 2


def test_it_is_compared(found: Assessment) -> None:
    others = found.figures.components["encoder"].others
    assert 0 <= others.matrix[0][1] < 0.8 and math.isfinite(others.mean)


def test_a_report_says_what_controls_say(nlp: Language) -> None:
    docs = [nlp.make_doc("good filler1 filler2 stop") for _ in range(12)]
    found = assess(nlp, [Example(doc, doc.copy()) for doc in docs], random=False)
    said = [verdict for verdict in found.verdicts["encoder"] if verdict.level == "warning"]
    assert [(v.code, v.text) for v in said] == [
        ("like-whole text", "Nearly all texts are whole: 100 %.")
    ]


def test_training_shows_its_columns(nlp: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = [nlp.make_doc("a good film")]
    monkeypatch.setattr("spacy_latent.training.structure_observer._corpus_docs", lambda *_: docs)
    observer = StructureObserver(nlp)
    assert observer.columns(None) == [("encoder", "part of the text"), ("encoder", "changed")]
    assert observer.columns(["beginning"]) == [("encoder", "beginning")]
    assert 0 < observer.evaluate(0)["encoder"]["part of the text"] <= 1


# ---------------------------------------------------------------- the registry


def test_a_kind_takes_what_it_does_not_give() -> None:
    own = register_kind(Kind("test_kinds.words", like="items", plural="words"))
    whole = find_kind(own.name)
    assert whole.plural == "words" and whole.accessors == ("items",)
    assert whole.drawings == find_kind("items").drawings
    further = register_kind(Kind("test_kinds.few_words", like=own.name))
    assert find_kind(further.name).plural == "words"
    # A kind is registered again if a cell of a notebook is run again.
    register_kind(Kind(own.name, like="items", plural="terms"))
    assert find_kind(further.name).plural == "terms"


def test_every_kind_is_complete() -> None:
    for kind in [*known_kinds(), find_kind("never registered")]:
        missing = {name for name, value in vars(kind).items() if value is None}
        # These functions may be absent. Structures of the kind then cannot be moved, or are
        # compared part by part.
        assert missing <= {"moved", "agreement"}, kind.name


def test_names_that_are_taken_or_unknown() -> None:
    with pytest.raises(LatentError, match="'items'"):
        register_kind(Kind("items"))
    with pytest.raises(LatentError, match="'nothing'"):
        register_kind(Kind("test_kinds.lost", like="nothing"))
    register_kind(Kind("test_kinds.a"))
    register_kind(Kind("test_kinds.b", like="test_kinds.a"))
    with pytest.raises(LatentError, match=r"test_kinds\.b.*test_kinds\.a"):
        register_kind(Kind("test_kinds.a", like="test_kinds.b"))
    assert find_kind("test_kinds.b").plural == "structures"


def test_nothing_can_be_said_of_a_field_that_another_kind_has() -> None:
    own = register_kind(Kind("test_kinds.fixed", like="tags", agreement=None, moved=None))
    assert find_kind("tags").agreement is not None and find_kind("tags").moved is not None
    assert find_kind(own.name).agreement is None and find_kind(own.name).moved is None


@pytest.mark.parametrize("accessors", ["items", ("wins",)])
def test_accessors_that_there_are_not(accessors: Any) -> None:
    with pytest.raises(LatentError, match="heads, arcs, items"):
        register_kind(Kind("test_kinds.wins", accessors=accessors))


def test_what_is_no_kind_or_no_drawing_is_refused() -> None:
    for given in (Kind, "windows", Kind("")):
        with pytest.raises(LatentError, match="name"):
            register_kind(given)  # type: ignore[arg-type]
    drawings: Any = {"blocks": draw_highlights}
    with pytest.raises(LatentError, match="'blocks'"):
        register_kind(Kind("test_kinds.drawn", drawings=drawings))


def test_a_function_of_a_kind_without_a_return_is_named() -> None:
    nothing: Any = lambda decoded, tokens: None  # noqa: E731
    own = register_kind(Kind("test_kinds.silent", statistics=nothing))
    span = SpanStructure(0, 2, "Silent", own.name, np.array([[0], [1]]))
    with pytest.raises(LatentError, match=r"silent'.*None"):
        structure_statistics(span)


@pytest.mark.parametrize("read", [LatentAnnotation.items, LatentAnnotation.to_displacy])
def test_an_error_names_a_kind_whose_file_is_not_imported(read: Any) -> None:
    doc = spacy.blank("en")("a b")
    for kind in ("kind of a package", "parts"):
        write(doc, kind, [SpanStructure(0, 2, "Window", kind, np.array([[0]]))])
        with pytest.raises(LatentError) as error:
            read(doc._.latent[kind])
        assert ("register_kind" in str(error.value)) == (kind != "parts")
