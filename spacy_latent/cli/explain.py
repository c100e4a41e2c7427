"""Command ``spacy latent explain``: words that suffice for a pipeline's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.characters import escaped_lines
from spacy_latent.cli.corpus import STDIN, typed_texts
from spacy_latent.cli.messages import failing, msg
from spacy_latent.cli.options import Code, GpuId, Html, Model, Seed, Text, TextsAsJson
from spacy_latent.cli.output import check_output, write_page
from spacy_latent.cli.pipelines import load, made_doc, prepare
from spacy_latent.errors import number_of

if TYPE_CHECKING:
    from spacy_latent.evaluation.explanation import Explanation, Faithfulness, NoSuchEntity

EXAMPLES = """
Examples:

  spacy latent explain training/model-best "a film that is great fun"

  spacy latent explain training/model-best - --label bad --html page.html < texts.txt

  spacy latent explain training/model-best "They met in Berlin ." -c ner --entity 0 --json
"""


def explain_cli(
    model: Model,
    text: Text = STDIN,
    component: str | None = typer.Option(
        None,
        "--component",
        "-c",
        help="Name of the text classifier or entity recognizer; needed if there are several",
    ),
    label: str | None = typer.Option(
        None,
        "--label",
        help="Category to explain. Default: the most probable. For ner: explain only entities with "
        "this label",
    ),
    entity: int = typer.Option(
        0, "--entity", min=0, help="Index of the entity to explain among those found, from 0"
    ),
    margin: float = typer.Option(
        0.1,
        "--margin",
        help="Allowed fall of the probability if all words except the explanation are hidden",
    ),
    steps: int = typer.Option(80, "--steps", min=1, help="Optimization steps of the mask"),
    seed: Seed = 0,
    html: Html = None,
    as_json: TextsAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Show which words suffice for the prediction of a trained textcat or ner.

    The component can be spaCy's own or one of this package. A mask over the words is learned for
    each text. The result is compared with leave-one-out and with random words. The pipeline is not
    changed.
    """
    import srsly

    from spacy_latent.cli.progress import progress
    from spacy_latent.evaluation.explanation import NoSuchEntity, explain

    check_output(html)
    every: list[Explanation] = []
    with failing("The text could not be explained", OSError):
        prepare(code, gpu_id)
        nlp = load(model)
        for line in typed_texts(text):
            try:
                found = explain(
                    nlp,
                    made_doc(nlp, line),
                    component,
                    label=label,
                    entity=entity,
                    steps=steps,
                    margin=margin,
                    seed=seed,
                    progress=partial(progress, unit="step"),
                )
            except NoSuchEntity as error:
                # A text without entities must not end the command if there are other texts.
                if text != STDIN:
                    raise
                if as_json:
                    print(srsly.json_dumps(without_entity(error)))
                else:
                    msg.divider(error.component)
                    print(escaped_lines(error.doc.text))
                    msg.info(str(error))
                continue
            if as_json:
                print(srsly.json_dumps(to_json(found)))
            else:
                print_explanation(found)
            if html is not None or not as_json:
                every.append(found)
        if not as_json:
            having_words = [found for found in every if len(found.doc)]
            if len(having_words) > 1:
                print_mean(having_words)
            if any(found.chosen.any() for found in having_words):
                msg.text(legend(having_words))
        if html is not None:
            from spacy_latent.visualize.explanation import render_explanations

            write_page(html, render_explanations(every))
            if not as_json:
                msg.good(f"Drawings saved to {html}")


def print_explanation(found: Explanation) -> None:
    """Print the text with the chosen words marked, with cautions on their meaning."""
    if not len(found.doc):
        msg.divider(found.component)
        msg.text("There are no words in this text.")
        return
    msg.divider(f"{found.component}: {found.what} {found.probability:.2f}")
    print(marked(found))
    if found.advice is not None:
        msg.info(found.advice)
    if found.from_falls:
        msg.info(
            "The mask keeps no single word reliably: with all words hidden, the probability of "
            f"{found.label} is {found.without:.2f}, little below the margin. So words were added "
            "in the order of leave-one-out. Each has the fall of the probability without it "
            "alone."
        )
    elif found.chosen.any() and found.weights.max() < HALF:
        msg.info(
            "The mask keeps no word in half of its draws. It keeps the best word in "
            f"{found.weights.max():.0%}: several words can replace each other. The words in "
            "brackets suffice together, and others may, too."
        )
    if found.hidden == "text":
        msg.info(
            "The embedder of the model has no vector for each single word, so words were "
            "removed from the text instead of hidden."
        )
    if found.chosen.any():
        print_faithfulness(f"{number_of(int(found.chosen.sum()), 'word')} by", [found])


def print_mean(every: Sequence[Explanation]) -> None:
    """Print the means of the texts whose prediction needs words."""
    msg.divider(f"{len(every)} texts")
    chosen = [found for found in every if found.chosen.any()]
    if not chosen:
        msg.text(
            "In all of them the probability falls by at most the margin if all words are hidden."
        )
    elif len(chosen) < len(every):
        msg.text(
            f"In {len(every) - len(chosen)} of them the probability falls by at most the margin "
            "if all words are hidden. The figures are means of the others."
        )
    if chosen:
        words = sum(found.chosen.sum() for found in chosen) / len(chosen)
        tokens = sum(len(found.doc) for found in chosen) / len(chosen)
        print_faithfulness(f"{words:.1f} of {tokens:.1f} words by", chosen)


def print_faithfulness(title: str, every: Sequence[Explanation]) -> None:
    """Print the mean faithfulness of explanations."""
    rows = []
    for name in every[0].faithfulness:
        hidden = _figures([found.faithfulness[name] for found in every])
        erased = _figures([found.erased[name] for found in every])
        rows.append((name, *hidden, *erased))
    header = (title, "compr. %", "suff. %", "compr. (cut) %", "suff. (cut) %")
    msg.table(rows, header=header)


def legend(every: Sequence[Explanation]) -> str:
    """Return what the numbers of these explanations mean."""
    from_falls = [found.from_falls for found in every if found.chosen.any()]
    if all(from_falls):
        return f"{OF_FALLS} {OF_FIGURES}"
    return " ".join([OF_DRAWS, *([OF_BOTH] if any(from_falls) else []), OF_FIGURES])


OF_DRAWS = (
    "A number in brackets is the share of draws in which the mask keeps the word. Words without "
    "a number were added in the order of leave-one-out, until the words in brackets sufficed."
)
OF_FALLS = (
    "A number in brackets is the fall of the probability if the word alone is left out. Words "
    "were added in this order, until the words in brackets sufficed."
)
OF_BOTH = (
    "If the mask keeps no word reliably, it is the fall of the probability if the word alone is "
    "left out."
)
OF_FIGURES = (
    "compr. (comprehensiveness): fall of the probability without these words; suff. "
    "(sufficiency): fall with these words alone; both in percentage points. A good explanation "
    "has a high compr. and a low suff. (cut): words are removed from the text, not hidden from "
    "the model."
)
# A converged mask has a weight above this value.
HALF = 0.5
# Texts of more than LONG words show only AROUND words on each side of the chosen ones.
LONG, AROUND, LEFT_OUT = 200, 10, "... "


def marked(found: Explanation) -> str:
    """Return the text with each chosen word in brackets, followed by its weight in the mask.

    If leave-one-out ranked the words, the number is the fall of the probability. A number of 0.00
    is left out. Long texts show only the context of the chosen words.
    """
    import numpy as np

    count = len(found.doc)
    shown = np.ones(count, dtype=bool)
    if count > LONG:
        near = np.arange(-AROUND, AROUND + 1)
        places = np.flatnonzero(found.chosen)[:, None] + near
        shown = np.zeros(count, dtype=bool)
        shown[np.unique(places[(places >= 0) & (places < count)])] = True
    pieces = []
    for token, number, chosen, here in zip(found.doc, found.numbers, found.chosen, shown):
        if here:
            text = escaped_lines(token.text)
            word = f"[{f'{text} {number}'.rstrip()}]" if chosen else text
            pieces.append(word + token.whitespace_)
        elif not pieces or pieces[-1] != LEFT_OUT:
            pieces.append(LEFT_OUT)
    return "".join(pieces)


def _figures(found: Sequence[Faithfulness]) -> tuple[str, str]:
    # In percent, as in 'spacy latent evaluate rationale'. Adding 0 turns −0 into 0.
    means = (
        sum(getattr(each, name) for each in found) / len(found)
        for name in ("comprehensiveness", "sufficiency")
    )
    first, second = (f"{round(100 * mean, 1) + 0:.1f}" for mean in means)
    return first, second


def to_json(found: Explanation) -> dict[str, Any]:
    """Return an explanation as plain values, with the indices of the chosen words."""
    from dataclasses import asdict

    made: dict[str, Any] = {
        "text": found.doc.text,
        "tokens": [token.text for token in found.doc],
        "component": found.component,
        "label": found.label,
        "entity": found.entity,
        "probability": found.probability,
        "without": found.without,
        "weights": found.weights.tolist(),
        "leave_one_out": found.falls.tolist(),
        "chosen": found.chosen.nonzero()[0].tolist(),
        "hidden": found.hidden,
    }
    for name in ("faithfulness", "erased"):
        made[name] = {key: asdict(value) for key, value in getattr(found, name).items()}
    return made


def without_entity(error: NoSuchEntity) -> dict[str, Any]:
    """Return the keys of :func:`to_json` for a text with nothing to explain."""
    return {
        "text": error.doc.text,
        "tokens": [token.text for token in error.doc],
        "component": error.component,
        **dict.fromkeys(("label", "entity", "probability", "without", "hidden")),
        **{key: [] for key in ("weights", "leave_one_out", "chosen")},
        **{key: {} for key in ("faithfulness", "erased")},
    }
