"""Components and annotated texts of a calibration."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.analysis.progress import Progress
from spacy_latent.errors import LatentError
from spacy_latent.pipeline.calibrated_components import (
    entity_components,
    parse_components,
    span_components,
)
from spacy_latent.pipeline.inspection import applied, refuse_lost
from spacy_latent.pipeline.open_tags import blocked_tokens

# Examples, or a function that returns them as for nlp.initialize.
Examples = Iterable[Example] | Callable[[], Iterable[Example]]
# Kinds of predictions whose probabilities can be calibrated.
ENTITIES, ARCS, SPANS = "entities", "arcs", "spans"
# By the factory of components, the kind of their probabilities, and a function of their names.
CALIBRATED: dict[str, tuple[str, Callable[[Language], list[str]]]] = {
    "crf_ner": (ENTITIES, entity_components),
    "tree_spancat": (SPANS, span_components),
    "latent_parser": (ARCS, parse_components),
}


def kind_of(nlp: Language, component: str | None) -> str:
    """Return the kind of prediction whose probabilities a component has.

    Args:
        component: name of the component; None for the only one that can be calibrated.

    Returns:
        ENTITIES, ARCS or SPANS. It is ENTITIES if no component can be calibrated.

    Raises:
        LatentError: if there are components of several kinds and none is named, or if the named one
            cannot be calibrated and others can.
    """
    kinds = {name: kind for kind, names in CALIBRATED.values() for name in names(nlp)}
    if component is not None:
        if kinds and component not in kinds:
            listed = ", ".join(kinds)
            raise LatentError(
                f"{component!r} cannot be calibrated. Name one of these (component, --component): "
                f"{listed}."
            )
        return kinds.get(component, ENTITIES)
    if len(kinds) > 1 and set(kinds.values()) != {ENTITIES}:
        raise LatentError(
            f"Several components can be calibrated: {', '.join(kinds)}. Name one of these as "
            "component."
        )
    return next(iter(kinds.values()), ENTITIES)


def choose_component(nlp: Language, component: str | None, factory: str) -> str:
    """Return the name of the component to calibrate, which may be None for the only one.

    Args:
        factory: one of :data:`CALIBRATED`.
    """
    known = CALIBRATED[factory][1](nlp)
    if component is None and len(known) == 1:
        return known[0]
    if component in known:
        return str(component)
    if not known:
        there = ", ".join(nlp.pipe_names) or "none"
        raise LatentError(
            "The pipeline has no component that this function can calibrate. Its "
            f"components are {there}; expected a {factory}."
        )
    asked = (
        "Several can be calibrated"
        if component is None
        else f"{component!r} cannot be calibrated so"
    )
    raise LatentError(f"{asked}. Name one of these (component, --component): {', '.join(known)}.")


def given_examples(asked: str, given: Examples) -> list[Example]:
    """Return the examples as a list, and refuse other objects and an empty list.

    Args:
        asked: name of the function that was given the examples.
    """
    made: object = given() if callable(given) else given
    if not isinstance(made, Iterable):
        source = "given a function that returned" if callable(given) else "given"
        raise LatentError(
            f"{asked}: it was {source} {reprlib.repr(made)}; expected a list of Examples, as for "
            "nlp.evaluate, or a function that returns one."
        )
    found = list(made)
    if not found:
        raise LatentError(
            f"{asked}: there are no texts. Give annotated Examples, and no iterator that was read "
            "before."
        )
    wrong = [example for example in found if not isinstance(example, Example)]
    if wrong:
        advice = ""
        if isinstance(wrong[0], Doc):
            advice = " For an annotated doc, give Example(nlp.make_doc(doc.text), doc)."
        raise LatentError(
            f"{asked}: the examples hold a {type(wrong[0]).__name__}; expected Examples, each with "
            f"a doc that is not processed yet and an annotated doc.{advice}"
        )
    return found


def examples_up_to(
    asked: str, nlp: Language, name: str, given: Examples, progress: Progress
) -> list[Example]:
    """Return examples with tokens, processed by the components before one.

    Args:
        asked: name of the function that was given the examples.
    """
    examples = given_examples(asked, given)
    docs = [example.predicted for example in examples]
    for before, pipe in nlp.pipeline:
        if before == name:
            break
        docs = list(progress(applied(pipe, docs, nlp.batch_size), before, len(docs)))
    advice = "Calibrate it without one, or leave these docs out."
    refuse_lost(len(examples), len(docs), "doc", advice)
    made = [Example(doc, example.reference) for doc, example in zip(docs, examples)]
    return [example for example in made if len(example.predicted)]


def without_entities_of_others(
    nlp: Language, name: str, examples: Sequence[Example]
) -> list[Example]:
    """Return the examples, without gold entities of labels that only other components find.

    Args:
        name: name of the component that is calibrated. Its own labels stay.
    """
    own: Any = nlp.get_pipe(name)
    others: set[str] = set()
    for other, pipe in nlp.pipeline:
        if other != name and "doc.ents" in nlp.get_pipe_meta(other).assigns:
            others.update(getattr(pipe, "labels", None) or ())
    others.difference_update(own.labels)
    made = []
    for example in examples:
        reference = example.reference
        kept = [span for span in reference.ents if span.label_ not in others]
        if len(kept) < len(reference.ents):
            missing = [reference[token.i : token.i + 1] for token in reference if not token.ent_iob]
            # The user's own doc keeps its entities.
            reference = reference.copy()
            reference.set_ents(
                kept, missing=missing, blocked=blocked_tokens(reference), default="outside"
            )
            example = Example(example.predicted, reference)
        made.append(example)
    return made


def prepared(
    asked: str,
    nlp: Language,
    component: str | None,
    factory: str,
    given: Examples,
    progress: Progress,
) -> tuple[str, Any, list[Example]]:
    """Return the name of the component to calibrate, the component, and its examples."""
    name = choose_component(nlp, component, factory)
    return name, nlp.get_pipe(name), examples_up_to(asked, nlp, name, given, progress)
