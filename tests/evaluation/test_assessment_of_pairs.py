"""Reports on alignments of classifiers of pairs, compared with controls and references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import DocBin

from spacy_latent import annotations
from spacy_latent.analysis.alignments import ALIGNMENT_CONTROLS, SURE, alignment_scores, links_of
from spacy_latent.cli.corpus import read_examples
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import LatentError
from spacy_latent.evaluation.assessment import assess
from spacy_latent.pipeline.inspection import choose_components
from tests.cli.commands import latent
from tests.models.pair_pipelines import NAME, PAIRS, misc, pipeline, trained

# Controls differ only on texts that are longer than the training texts.
ROWS = [*PAIRS, ("the dog runs home", "home runs the dog", "same")]


@pytest.fixture(scope="module")
def nlp() -> Language:
    structure = misc("OneToOneAlignment", unaligned=True)
    return trained(pipeline(structure=structure, estimator=misc("SparseMAP")))


@pytest.fixture(scope="module")
def saved(nlp: Language, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs")
    nlp.to_disk(path / "model")
    rows: list[dict[str, Any]] = [{"text_a": a, "text_b": b, "label": c} for a, b, c in ROWS]
    srsly.write_jsonl(path / "dev.jsonl", [*rows, {"text_a": "", "text_b": "a", "label": "other"}])
    made = DocBin(store_user_data=True)
    for first, second, label in ROWS:
        doc = make_pair_doc(nlp, first, second)
        doc.cats = {name: float(name == label) for name in ("same", "other")}
        found = annotations.SpanStructure(
            0, len(first.split()), "OneToOneAlignment", "cells", [[0, 0]]
        )
        found.other_start, found.other_end = len(first.split()), len(doc)
        annotations.write(doc, SURE, [found])
        made.add(doc)
    made.to_disk(path / "dev.spacy")
    return path


def test_alignments_beside_controls_and_references(nlp: Language, saved: Path) -> None:
    found = assess(nlp, read_examples(nlp, str(saved / "dev.spacy")), random=True)
    part = found.figures.components[NAME]
    assert part.kind == "cells" and part.spans == len(ROWS)
    assert set(part.controls) == set(ALIGNMENT_CONTROLS)
    assert all(0 <= share <= 1 for share in part.controls.values())
    rows = part.reference.rows
    assert set(rows) == {NAME, "random", *ALIGNMENT_CONTROLS}
    links = [links_of(e.predicted, NAME) or [] for e in found.examples]
    sure = [links_of(e.reference, SURE) or [] for e in found.examples]
    assert rows[NAME]["links"][0] == pytest.approx(alignment_scores(links, sure).f1)
    # The gold link of each pair is between the first words, which are equal in two pairs. The pairs
    # have 3, 0, 2, 0 and 4 equal words.
    assert rows["same word"]["links"][0] == pytest.approx(2 * 2 / (9 + len(ROWS)))


def test_pairs_are_read_from_files(nlp: Language, saved: Path) -> None:
    found = read_examples(nlp, str(saved / "dev.jsonl"))
    assert len(found) == len(ROWS) + 1
    assert found[0].predicted.spans["a"][0].text == PAIRS[0][0]
    assert len(read_examples(nlp, str(saved), limit=3)) == 3
    with pytest.raises(LatentError, match="pairs"):
        read_examples(nlp, "-")
    nlp.config["corpora"] = {
        "dev": {"@readers": "spacy-latent.TextPairs.v1", "path": None, "first": "one"}
    }
    try:
        with pytest.raises(LatentError, match="'one'"):
            read_examples(nlp, str(saved / "dev.jsonl"))
    finally:
        nlp.config["corpora"] = {}


def test_a_page_with_drawings(saved: Path, tmp_path: Path) -> None:
    arguments = saved / "model", saved / "dev.jsonl"
    latent("report", *arguments, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf8")
    data = page.split('id="gallery-data"')[1].split(">", 1)[1].split("</script>")[0]
    gallery = srsly.json_loads(data)
    assert gallery["layers"] == [{"name": NAME, "kind": "cells"}]
    (span,) = gallery["docs"][0][6][0][0]
    assert [*span[:2], *span[4:]] == [0, 3, 3, 7]
    assert len(span[2]) == len(span[3])
    # A pair with an empty text has no links.
    assert gallery["docs"][-1][6][0][0] == []
    assert "nearest same word" in latent("evaluate", "stats", *arguments).output


def test_pairs_are_drawn_and_one_text_is_refused(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    latent("render", saved / "model", saved / "dev.jsonl", page)
    assert page.read_text(encoding="utf8").count("<svg") == len(ROWS)
    assert "pairs of texts" in latent("show", saved / "model", "the dog runs", code=1).output


@pytest.mark.parametrize("component", [None, "crf_ner"])
def test_entities_are_not_latent(component: str | None) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    with pytest.raises(LatentError, match="crf_ner"):
        choose_components(nlp, component)


def test_a_name_that_is_not_there_is_not_called_learned() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    with pytest.raises(LatentError, match=r"'ner'.*crf_ner"):
        choose_components(nlp, "ner")


def test_pairs_of_a_table_are_drawn_and_lines_are_refused(saved: Path) -> None:
    table, lines, page = saved / "dev.tsv", saved / "dev.txt", saved / "table.html"
    table.write_text("text_a\ttext_b\tlabel\nthe dog\tthe dog\tsame\n", encoding="utf8")
    lines.write_text("the dog runs\n", encoding="utf8")
    latent("render", saved / "model", table, page)
    assert page.read_text(encoding="utf8").count("<svg") == 1
    told = latent("render", saved / "model", lines, page, code=1).output
    assert "lines of text are none" in told
