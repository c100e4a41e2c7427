"""Write the structures that trained pipelines predict for real texts, for docs/gallery.md.

python -m tests.repository.gallery NAME ...

The commands of the page train the pipelines. The structures of the named pictures, or of all
pictures if there is no name, are written to assets/gallery.json. The pictures are drawn from this
file by ``python -m tests.repository.drawings``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import load_config, load_model_from_config
from spacy.vocab import Vocab

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.cli.pipelines import annotated
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.visualize import render_svg
from tests.repository.pages import ROOT

FOUND = ROOT / "assets" / "gallery.json"
IMAGES = ROOT / "docs" / "images"

# UD English EWT, development set.
PRICE = "They have good sushi for a good price."
CASE = "The case against Iran has a feeling of Déjà vu."
ATTEND = "Scott Neal and Tom Martin would like to attend as well."
# Sentence polarity, test set.
REVIEW = "its premise is smart , but the execution is pretty weary ."
# The corpus of Cohn et al. (2008), development part.
PAIR = ("'' it will be a hindrance '' , said Ned .", "'' this 'll mean a delay '' , Ned said .")


@dataclass(frozen=True)
class Shown:
    """A picture of the gallery.

    Attributes:
        pipeline: directory of the trained pipeline.
        component: name of the component whose structures are drawn.
        texts: one text, or two texts of a pair.
        structure: block of a config that replaces the structure of the trained component. The
            scores stay the same.
        options: options of :func:`spacy_latent.visualize.render_svg`.
    """

    pipeline: str
    component: str
    texts: tuple[str, ...]
    structure: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


PARSES = "training/english_calibrated", "latent_parser", (PRICE,)
WORDS = "training/rationale_k_of_n/model-best", "latent_textcat", (REVIEW,)
PAIRS = "training/pairs_alignment_one_to_one/model-best", "latent_textcat", PAIR
TREES = "latent_encoder", (REVIEW,)
SOME: dict[str, Any] = {"threshold": 0.2}

SHOWN = {
    "spanning_tree": Shown(*PARSES, options=SOME),
    "projective_tree": Shown(
        *PARSES, {"@misc": "spacy-latent.ProjectiveTree.v1", "single_root": True}, SOME
    ),
    "budget_tree": Shown(*PARSES, {"@misc": "spacy-latent.BudgetTree.v1"}, SOME),
    "tag_sequence": Shown("training/english_calibrated", "crf_ner", (ATTEND,)),
    "linear_chain": Shown("training/sentiment_tags/model-best", *TREES),
    "constituency_tree": Shown(
        "training/nested_ewt/model-best", "tree_spancat", (CASE,), options=SOME
    ),
    "semi_markov": Shown("training/sentiment_segments/model-last", *TREES),
    "k_of_n": Shown(*WORDS),
    "one_of_n": Shown(*WORDS, {"@misc": "spacy-latent.OneOfN.v1"}),
    "runs": Shown(*WORDS, {"@misc": "spacy-latent.Runs.v1", "k": 4, "runs": 1}),
    "bits": Shown(*WORDS, {"@misc": "spacy-latent.Bits.v1", "parts": "items"}),
    "one_to_one_alignment": Shown(*PAIRS, options=SOME),
    "monotone_alignment": Shown(
        *PAIRS, {"@misc": "spacy-latent.MonotoneAlignment.v1"}, options=SOME
    ),
    "many_to_one_alignment": Shown(
        *PAIRS, {"@misc": "spacy-latent.ManyToOneAlignment.v1"}, options=SOME
    ),
}


def load(shown: Shown) -> Language:
    """Load the pipeline, with ``shown.structure`` in place of its structure if it is given."""
    path = ROOT / shown.pipeline
    if not shown.structure:
        return spacy.load(path)
    config = load_config(path / "config.cfg", interpolate=True)
    config["components"][shown.component]["model"]["structure"] = shown.structure
    return load_model_from_config(config, auto_fill=True).from_disk(path)


def at_most_two_modifiers(shown: Shown) -> Doc:
    """Annotate the text with trees of at most two modifiers a head, from a parser's arc scores.

    A parser cannot be trained with such trees, since their marginals are intractable.
    """
    from spacy_latent.models.labelled_parser import run_on_rows

    nlp = spacy.load(ROOT / shown.pipeline)
    (text,) = shown.texts
    pipe: Any = nlp.get_pipe(shown.component)
    doc = nlp(text)
    lengths = torch.tensor([len(doc)])
    calibration = pipe.calibration or ParseCalibration()

    def arcs(module: Any, rows: torch.Tensor) -> torch.Tensor:
        return module.read(rows[None], lengths)[0]

    scores, _ = run_on_rows(pipe.model, [doc], arcs, is_train=False)
    tree = BudgetTree(max_modifiers=2, single_root=True)
    scores = scores.detach().double() / calibration.temperature
    mean = tree.sparsemap(scores, lengths).mean[0].numpy()
    parts = np.argwhere(mean > 0.01)
    best = tree.decode(tree.map(scores, lengths)[0].numpy(), len(doc))
    found = SpanStructure(
        0, len(doc), tree.name, "heads", best, parts, mean[tuple(parts.T)].astype("float32")
    )
    write(doc, shown.component, [found])
    return doc


def find_structures(shown: Shown) -> dict[str, Any]:
    """Return the tokens of the text and its predicted structures, as JSON."""
    if shown.structure.get("@misc") == "spacy-latent.BudgetTree.v1":
        doc = at_most_two_modifiers(shown)
    else:
        nlp = load(shown)
        text = make_pair_doc(nlp, *shown.texts) if len(shown.texts) > 1 else shown.texts[0]
        (doc,) = annotated(nlp, [text], shown.component, shown.options.get("threshold"), 0)
    return {
        "words": [token.text for token in doc],
        "spaces": [bool(token.whitespace_) for token in doc],
        # Categories mean nothing if the classifier was trained with another structure.
        "cats": {} if shown.structure else {x: round(y, 3) for x, y in doc.cats.items()},
        "component": shown.component,
        "found": [to_json(one) for one in doc._.latent[shown.component].spans],
    }


def to_json(found: SpanStructure) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, value in vars(found).items():
        if isinstance(value, np.ndarray):
            said[name] = np.round(value.astype("float64"), 3).tolist()
            if value.dtype.kind in "iu":
                said[name] = value.tolist()
        elif value is not None and value != []:
            said[name] = value
    return said


def from_json(said: dict[str, Any]) -> SpanStructure:
    given: dict[str, Any] = {
        name: np.asarray(value) if isinstance(value, list) and name != "labels" else value
        for name, value in said.items()
    }
    if "labels" in given:
        given["labels"] = tuple(given["labels"])
    return SpanStructure(**given)


def pictures() -> dict[Path, str]:
    """Return the expected content of each picture file of the gallery."""
    found, vocab = json.loads(FOUND.read_text(encoding="utf8")), Vocab()
    made = {}
    for name, one in found.items():
        doc = Doc(vocab, words=one["words"], spaces=one["spaces"])
        doc.cats = one["cats"]
        write(doc, one["component"], [from_json(each) for each in one["found"]])
        picture = render_svg(doc, options=dict(SHOWN[name].options))
        made[IMAGES / f"gallery_{name}.svg"] = f"{picture.strip()}\n"
    return made


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    kept = json.loads(FOUND.read_text(encoding="utf8")) if FOUND.exists() else {}
    for name in names or SHOWN:
        kept[name] = find_structures(SHOWN[name])
    lines = [
        f"{json.dumps(name)}: {json.dumps(kept[name], ensure_ascii=False)}"
        for name in SHOWN
        if name in kept
    ]
    FOUND.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf8")


if __name__ == "__main__":
    main(sys.argv[1:])
