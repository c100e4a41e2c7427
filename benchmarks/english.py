r"""Scores, calibration and speed of pipelines on English web text that was never used for choices.

    python -m benchmarks english corpus/english/test.spacy training/english_calibrated \
        training/english_spacy/model-best en_core_web_sm --meta assets/english/meta.json

``english-data`` of project.yml writes the corpus. Each pipeline reads raw text. Labels of OntoNotes
are replaced by the corresponding labels of Universal NER, and all other entities are left out.
Pipelines with other dependency labels than the corpus are also judged by the gold arcs whose label
they have. Even then, conventions may give another head. Speed is the highest of several rounds of
``nlp.pipe``, in words a second of a processor, for which the pipelines take turns.

With ``--record``, the results become a line of PATH and a section of results. With ``--meta``, the
metadata for ``spacy package`` are written to OUTPUT, with the scores of the first pipeline.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from benchmarks.raw_results import RAW, add
from benchmarks.sections import write_section
from spacy_latent.analysis.calibration import error_by_chance, expected_calibration_error
from spacy_latent.cli.pipelines import use_gpu
from spacy_latent.evaluation import entity_calibration, parse_calibration
from spacy_latent.pipeline.calibrated_components import entity_components, parse_components

PATH = RAW / "english_pipelines.jsonl"
ONTONOTES = {"PERSON": "PER", "ORG": "ORG", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC"}
ROUNDS = 3
# Rows of the table, and the names of their scores in spaCy.
FIGURES = {
    "tag": "tag_acc",
    "part of speech": "pos_acc",
    "lemma": "lemma_acc",
    "UAS": "dep_uas",
    "LAS": "dep_las",
    "sentences, F1": "sents_f",
    "entities, F1": "ents_f",
}
CALIBRATED = {
    "error of entities": "ents_error",
    "by chance alone": "ents_chance",
    "by chance alone, 95 % below": "ents_chance_high",
    "error of arcs": "arc_error",
    "error of labelled arcs": "labelled arc_error",
}


def read_examples(nlp: Language, corpus: Path) -> list[Example]:
    """Return examples whose raw text is tokenized by the pipeline."""
    docs = DocBin().from_disk(corpus).get_docs(nlp.vocab)
    return [Example(nlp.make_doc(doc.text), doc) for doc in docs]


def rename_entities(doc: Doc, labels: frozenset[str]) -> None:
    """Replace labels of OntoNotes, and drop entities whose label is not one of ``labels``."""
    kept = []
    for one in doc.ents:
        label = ONTONOTES.get(one.label_, one.label_) if one.label_ not in labels else one.label_
        if label in labels:
            kept.append(Span(doc, one.start, one.end, label))
    doc.set_ents(kept)


def shared_arcs(examples: Sequence[Example]) -> dict[str, float]:
    """Return UAS and LAS over the gold arcs whose label occurs in the predictions."""
    said = {token.dep_ for one in examples for token in one.predicted}
    gold = {token.dep_ for one in examples for token in one.reference}
    found = total = heads = 0
    for one in examples:
        places = one.alignment.x2y
        for token in one.predicted:
            own = places[token.i]
            if len(own) != 1 or one.reference[int(own[0])].dep_ not in said:
                continue
            reference, head = one.reference[int(own[0])], places[token.head.i]
            right = len(head) == 1 and int(head[0]) == reference.head.i
            total, heads = total + 1, heads + right
            found += right and token.dep_ == reference.dep_
    if not total:
        return {}
    count = len(said & gold)
    return {"shared_labels": count, "shared_uas": heads / total, "shared_las": found / total}


def scores_of(nlp: Language, corpus: Path) -> dict[str, float]:
    """Return the scores of spaCy's scorer on raw texts, and calibration errors, as shares."""
    examples = read_examples(nlp, corpus)
    labels = frozenset(entity.label_ for one in examples for entity in one.reference.ents)
    texts = [one.reference.text for one in examples]
    for one, doc in zip(examples, nlp.pipe(texts)):
        rename_entities(doc, labels)
        one.predicted = doc
    scores = Scorer(nlp).score(examples)
    found = {name: scores[name] for name in FIGURES.values() if scores.get(name) is not None}
    for label, row in (scores.get("ents_per_type") or {}).items():
        found[f"ents_f {label}"] = row["f"]
    found |= shared_arcs(examples)
    judged = {}
    if entity_components(nlp):
        judged["ents"] = entity_calibration.measure(nlp, read_examples(nlp, corpus)).entities
    if parse_components(nlp):
        judged |= parse_calibration.measure(nlp, read_examples(nlp, corpus))
    for name, each in judged.items():
        error = expected_calibration_error(each.probabilities, each.correct)
        found[f"{name}_error"] = error
        found[f"{name}_chance"], found[f"{name}_chance_high"] = error_by_chance(each.probabilities)
    # The calibration error is NaN, which JSON does not have, if no entity is predicted.
    return {name: round(float(value), 5) for name, value in found.items() if math.isfinite(value)}


def speeds(pipelines: Sequence[Language], corpus: Path) -> list[float]:
    """Return the speed of each pipeline, in words a second of a processor."""
    texts = [one.reference.text for one in read_examples(pipelines[0], corpus)]
    best = [0.0] * len(pipelines)
    for _ in range(ROUNDS):
        for i, nlp in enumerate(pipelines):
            start = time.process_time()
            words = sum(map(len, nlp.pipe(texts)))
            best[i] = max(best[i], words / (time.process_time() - start))
    return [round(speed, 1) for speed in best]


def size_of(nlp: Language) -> float:
    """Return the size of a serialized pipeline in megabytes."""
    return round(len(nlp.to_bytes()) / 1e6, 1)


def table(found: dict[str, Any]) -> list[str]:
    """Return the lines of the section of results.

    Args:
        found: one line of :data:`PATH`.
    """
    rows: dict[str, dict[str, Any]] = found["pipelines"]
    columns = FIGURES | {"UAS, shared labels": "shared_uas", "LAS, shared labels": "shared_las"}
    columns |= CALIBRATED
    lines = [
        f"{found['date']}, torch {found['torch']}, {found['words']:,} words of "
        f"`{found['corpus']}`. Errors are expected calibration errors. Figures in percent, but "
        "for words a second of a processor, in turns, and megabytes.",
        "",
        f"| | {' | '.join(rows)} |",
        f"|---|{'---:|' * len(rows)}",
    ]
    for title, name in columns.items():
        cells = [f"{100 * row[name]:.1f}" if name in row else "–" for row in rows.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    for title in ("words a second", "megabytes"):
        cells = [f"{row[title]:,.0f}" for row in rows.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def read_meta(path: Path) -> dict[str, Any]:
    """Read a template of metadata.

    A template may name another file of its folder as "base". It then has the entries that differ,
    and its sources are added to the sources of the base.
    """
    meta: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    if "base" not in meta:
        return meta
    base = read_meta(path.with_name(meta.pop("base")))
    return base | meta | {"sources": base["sources"] + meta["sources"]}


def write_meta(template: Path, output: Path, scores: dict[str, float]) -> None:
    meta = read_meta(template)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(meta | {"performance": scores}, indent=2), encoding="utf8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("models", nargs="+", help="directories or installed packages")
    parser.add_argument("--meta", type=Path, help="template of the metadata of the first pipeline")
    parser.add_argument("--output", type=Path, default=Path("training/english_meta.json"))
    parser.add_argument("--gpu-id", type=int, default=-1, help="GPU ID, or -1 for CPU")
    parser.add_argument("--record", action="store_true", help="write to the results")
    given = parser.parse_args()
    names = [name_of(model) for model in given.models]
    if len(set(names)) < len(names):
        parser.error(f"two pipelines have the name of one directory: {', '.join(names)}")
    torch.set_num_threads(1)
    use_gpu(given.gpu_id)
    pipelines = [spacy.load(model) for model in given.models]
    rows: dict[str, Any] = {}
    for model, nlp in zip(given.models, pipelines):
        rows[name_of(model)] = {**scores_of(nlp, given.corpus), "megabytes": size_of(nlp)}
    for row, speed in zip(rows.values(), speeds(pipelines, given.corpus)):
        row["words a second"] = speed
    found = {
        "corpus": str(given.corpus),
        "words": sum(len(one.reference) for one in read_examples(pipelines[0], given.corpus)),
        "pipelines": rows,
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }
    if given.meta is not None:
        own = next(iter(rows.values()))
        # spaCy prints all scores as percentages except the speed, so other figures are left out.
        scores = {key: own[key] for key in own if not key.startswith(("shared", "words", "mega"))}
        write_meta(given.meta, given.output, scores | {"speed": own["words a second"]})
    lines = table(found)
    if given.record:
        add(PATH, found)
        write_section("english", "Beside other pipelines", lines)
    print("\n".join(lines))


def name_of(model: str) -> str:
    """Return the name of a package, or of the directory with ``model-best`` or ``model-last``."""
    path = Path(model)
    return path.parent.name if path.name.startswith("model-") else path.name


if __name__ == "__main__":
    main()
