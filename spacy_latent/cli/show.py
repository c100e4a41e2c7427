"""Command ``spacy latent show``: structures of a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from spacy_latent.cli.corpus import STDIN, typed_text, typed_texts
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import (
    Alternatives,
    Code,
    Component,
    GpuId,
    Html,
    Model,
    Text,
    TextsAsJson,
    Threshold,
)
from spacy_latent.cli.output import check_output, write_page
from spacy_latent.cli.pipelines import annotated, load, not_calibrated, prepare

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

# Greatest number of categories that are printed, the most probable first.
CATEGORIES = 5


def show_cli(
    model: Model,
    text: Text = STDIN,
    second: str | None = typer.Argument(
        None, help="The second text, for a pipeline that reads pairs of texts"
    ),
    component: Component = None,
    html: Html = None,
    threshold: Threshold = None,
    alternatives: Alternatives = 0,
    as_json: TextsAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Show the latent structures of a text: in the terminal, as JSON, or drawn on an HTML page."""
    from spacy_latent.corpora.text_pairs import make_pair_doc
    from spacy_latent.pipeline.inspection import latent_components

    check_output(html)
    prepare(code, gpu_id)
    nlp = load(model)
    check_number_of_texts(nlp, second)
    docs: list[Doc] = []
    with failing("The text could not be shown"):
        # The kinds of all structures that the pipeline may write, by their stored names.
        layers = latent_components(nlp, annotating=True).values()
        kinds = {key: kind for component in layers for key, kind in component.kinds.items()}
        texts: Iterable[str | Doc]
        if second is not None:
            texts = [make_pair_doc(nlp, typed_text(text), typed_text(second))]
        else:
            texts = typed_texts(text)
        for doc in annotated(nlp, texts, component, threshold, alternatives):
            names = [component] if component else list(doc._.latent)
            if as_json:
                print_json(doc, names, kinds, threshold)
            else:
                print_doc(nlp, doc, names, threshold)
            if html is not None:
                docs.append(doc)
        # Without a text, of which a warning has told, no page is written.
        if html is not None and docs:
            from spacy_latent.visualize import render

            options = {"threshold": threshold, "alternatives": alternatives}
            note = not_calibrated(nlp, docs, [component] if component else nlp.pipe_names)
            page = render(docs, component, page=True, jupyter=False, options=options, note=note)
            write_page(html, page)
            if not as_json:
                msg.good(f"Drawings saved to {html}")


def check_number_of_texts(nlp: Language, second: str | None) -> None:
    """Exit with an error if the pipeline reads pairs and one text is given, or the other way."""
    from spacy_latent.pipeline.inspection import reads_pairs

    if reads_pairs(nlp) and second is None:
        fail(
            "The pipeline reads pairs of texts, and one text is given",
            "Give both: 'spacy latent show MODEL FIRST SECOND'; or draw the pairs of a file with "
            "'spacy latent render MODEL FILE PAGE'.",
        )
    if second is not None and not reads_pairs(nlp):
        fail(
            "The pipeline reads single texts, and two texts are given",
            "Put a text of several words into quotation marks.",
        )


def print_json(doc: Doc, names: list[str], kinds: dict[str, str], threshold: float | None) -> None:
    """Print the words, categories and structures of a doc as one JSON object."""
    import srsly

    from spacy_latent.annotations import to_json

    cats = {"cats": doc.cats} if doc.cats else {}
    words = [token.text for token in doc]
    found = to_json(doc, names, kinds, threshold)
    print(srsly.json_dumps({"text": doc.text, "tokens": words, **cats, "latent": found}))


def print_doc(nlp: Language, doc: Doc, names: list[str], threshold: float | None) -> None:
    """Print the structures of these components, and the scores of categories."""
    from spacy_latent.visualize.drawing import has_alternatives
    from spacy_latent.visualize.picture import WEIGHTS

    for name in names:
        if name in doc._.latent:
            msg.divider(name)
            weights = WEIGHTS if has_alternatives([doc], [name]) else ""
            notes = [not_calibrated(nlp, [doc], [name]), weights]
            print_structures(doc, name, threshold, " ".join(filter(None, notes)))
    if doc.cats:
        msg.text(f"Scores of categories: {categories(doc)}")


def print_structures(doc: Doc, name: str, threshold: float | None, note: str = "") -> None:
    """Print a note on the figures, a heading of the columns, and the structures."""
    from spacy_latent.visualize.terminal import format_annotation, format_heading

    annotation = doc._.latent[name]
    structures = format_annotation(annotation, threshold)
    if not structures:
        print(f"There {'is no structure over' if len(doc) else 'are no words in'} this text.")
        return
    if note:
        msg.text(note)
    if heading := format_heading(annotation):
        print(heading)
    print(structures)


def categories(doc: Doc) -> str:
    """Return the most probable categories as text."""
    found = sorted(doc.cats.items(), key=lambda each: (-each[1], each[0]))
    more = f" and {len(found) - CATEGORIES} more" if len(found) > CATEGORIES else ""
    return ", ".join(f"{label} {value:.2f}" for label, value in found[:CATEGORIES]) + more
