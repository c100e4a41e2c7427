"""The pictures of the documentation that are drawn by the package itself.

python docs/pictures.py                    docs/images/three_answers.svg
python docs/pictures.py film STRIP-1.svg   docs/images/training_film.svg, from a training's drawings
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import spacy
import torch

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.visualize import render
from spacy_latent.visualize.film import CAPTION, SVG, _size

IMAGES = Path(__file__).parent / "images"
WORDS = "They saw the tree"
# Row: head, the root first. Column: modifier. "tree" may hang on "saw" or, a little less, on the
# root.
SCORES = [
    [0.0, 0.0, 3.0, -2.0, 1.2],
    [0.0, 0.0, 0.5, -1.0, -0.5],
    [0.0, 3.0, 0.0, 0.8, 2.0],
    [0.0, -1.0, -1.0, 0.0, -1.0],
    [0.0, 0.5, 1.0, 1.6, 0.0],
]


def three_answers() -> str:
    """The best tree, the arcs' marginals, and the trees that SparseMAP mixes, below each other."""
    nlp = spacy.blank("en")
    tree = SpanningTree(single_root=True)
    scores, lengths = torch.tensor([SCORES]), torch.tensor([4])
    best = tree.map(scores, lengths)
    solution = tree.sparsemap(scores, lengths)
    drawings = []
    for caption, soft, threshold in (
        ("best tree: one structure, hard", best, None),
        ("marginals: all trees, weighed by how probable they are", None, 0.02),
        ("SparseMAP: few trees, all others weigh exactly 0", solution.mean, 0.001),
    ):
        z = tree.marginals(scores, lengths) if soft is None else soft
        doc = nlp(WORDS)
        parts = np.argwhere(z[0].numpy() > 1e-6).astype("int32")
        probabilities = z[0].numpy()[tuple(parts.T)].astype("float32")
        known = threshold is not None
        span = SpanStructure(
            0,
            4,
            tree.name,
            "heads",
            tree.decode(best[0].numpy(), 4),
            parts if known else None,
            probabilities if known else None,
        )
        write(doc, "tree", [span])
        drawn = render(doc, "tree", jupyter=False, options={"threshold": threshold})
        drawings.append((caption, SVG.findall(drawn)[0]))
    return _below_each_other(drawings)


def _below_each_other(drawings: list[tuple[str, str]]) -> str:
    placed, across, down = [], 0.0, 0.0
    for caption, drawing in drawings:
        width, height = _size(drawing)
        placed.append(f'<text x="16" y="{down + 26:.0f}" font-size="17">{caption}</text>')
        placed.append(f'<g transform="translate(0,{down + CAPTION:.0f})">{drawing}</g>')
        across, down = max(across, width, 560), down + CAPTION + height
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {across:.0f} {down:.0f}" width="{across:.0f}" height="{down:.0f}" '
        f'font-family="Arial, sans-serif"><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(placed)}</svg>\n"
    )


def stable(markup: str) -> str:
    """With the same identifiers each time, so that a file changes only with its picture."""
    found = dict.fromkeys(re.findall(r"[0-9a-f]{32}", markup))
    for i, name in enumerate(found):
        markup = markup.replace(name, f"drawing-{i}")
    return markup


if __name__ == "__main__":
    if sys.argv[1:2] == ["film"]:
        film = Path(sys.argv[2]).read_text(encoding="utf8")
        (IMAGES / "training_film.svg").write_text(stable(film), encoding="utf8")
    else:
        (IMAGES / "three_answers.svg").write_text(stable(three_answers()), encoding="utf8")
