"""Incomplete annotation, simulated from completely annotated texts.

It serves to measure the value of partial annotation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from spacy.tokens import Doc, Span
from spacy.util import filter_spans

from spacy_latent.errors import LatentError, number_of

PREFIX = "has_"


def keep_some(
    docs: Iterable[Doc], share: float, seed: int = 0, as_if_complete: bool = False
) -> Iterator[Doc]:
    """Keep a random share of all entities, and leave all other tokens without annotation.

    Args:
        as_if_complete: whether to annotate the other tokens as outside of entities, as a careless
            annotator would.
    """
    if not 0 <= share <= 1:
        raise LatentError(
            f"The share of entities to keep is {share}; expected a number from 0 to 1."
        )
    chance = random.Random(seed)
    for doc in docs:
        kept = [span for span in doc.ents if chance.random() < share]
        doc.set_ents(kept, default="outside" if as_if_complete else "missing")
        yield doc


def flag_all_but(
    docs: Iterable[Doc],
    complete: int,
    seed: int = 0,
    wrong: float = 0.0,
    as_if_complete: bool = False,
) -> Iterator[Doc]:
    """Keep the annotation of some random texts, and reduce it to flags in the others.

    A flag is a category such as "has_GPE" that is 1 or 0. It says whether there is an entity with
    this label.

    Args:
        complete: number of texts that keep their annotation.
        wrong: share of flags with the opposite value.
        as_if_complete: whether to leave out the other texts, which spaCy's ``ner`` cannot use.
    """
    docs = list(docs)
    if not 0 <= complete <= len(docs):
        raise LatentError(
            f"{number_of(complete, 'text')} of {len(docs)} are to keep their annotation; "
            f"expected a number from 0 to {len(docs)}."
        )
    if not 0 <= wrong < 0.5:
        raise LatentError(
            f"The share of wrong flags is {wrong}; expected a number from 0 to below 0.5."
        )
    chance = random.Random(seed)
    chosen = set(chance.sample(range(len(docs)), complete))
    labels = sorted({span.label_ for doc in docs for span in doc.ents})
    for number, doc in enumerate(docs):
        if number not in chosen:
            if as_if_complete:
                continue
            there = {span.label_ for span in doc.ents}
            for label in labels:
                is_right = not wrong or chance.random() >= wrong
                doc.cats[PREFIX + label] = float((label in there) == is_right)
            doc.set_ents([], default="missing")
        yield doc


def split_by_labels(
    docs: Iterable[Doc], sets: Sequence[Sequence[str]], seed: int = 0, as_if_complete: bool = False
) -> Iterator[Doc]:
    """Assign texts at random to sets of labels, in equal parts.

    Each text keeps the entities of its set. ``doc._.annotated_labels`` has the labels.

    Args:
        as_if_complete: whether to leave out ``doc._.annotated_labels``, so that entities with other
            labels count as outside.
    """
    docs = list(docs)
    there = {span.label_ for doc in docs for span in doc.ents}
    unknown = sorted({label for one in sets for label in one} - there)
    if unknown or len(sets) < 2:
        raise LatentError(
            f"The sets of labels are {[list(one) for one in sets]}; expected two or more, of the "
            f"labels of the texts: {', '.join(sorted(there)) or 'none'}."
        )
    order = list(range(len(docs)))
    random.Random(seed).shuffle(order)
    own = {number: sets[rank * len(sets) // len(docs)] for rank, number in enumerate(order)}
    for number, doc in enumerate(docs):
        labels = own[number]
        missing = [doc[token.i : token.i + 1] for token in doc if token.ent_iob == 0]
        kept = [span for span in doc.ents if span.label_ in labels]
        doc.set_ents(kept, missing=missing, default="outside")
        if not as_if_complete:
            doc._.annotated_labels = list(labels)
        yield doc


SOURCE = "source_"
Entity = tuple[int, int, str]


def simulate_sources(
    docs: Iterable[Doc], rights: Sequence[float], seed: int = 0, as_if_complete: bool = False
) -> Iterator[Doc]:
    """Simulate several sources of annotation with errors, and remove all other annotation.

    Their entities are in ``doc.spans["source_1"]`` and so on.

    Args:
        rights: for each source, the share of entities that it gives correctly. Otherwise one of
            three errors occurs, equally likely: the source misses the entity, gives another label,
            or gives one token more or less. The source also adds a wrong span of one or two tokens
            to a text, with half the probability of an error.
        as_if_complete: whether to take a majority vote on each span, and treat the result as
            complete annotation. The spans of the sources are not kept.
    """
    docs = list(docs)
    if not rights or not all(0 <= right <= 1 for right in rights):
        raise LatentError(
            f"The shares of correct entities of the sources are {list(rights)}; expected numbers "
            "from 0 to 1."
        )
    labels = sorted({span.label_ for doc in docs for span in doc.ents})
    chance = random.Random(seed)
    for doc in docs:
        gold = [(span.start, span.end, span.label_) for span in doc.ents]
        votes: Counter[Entity] = Counter()
        doc.set_ents([], default="missing")
        for number, right in enumerate(rights, 1):
            seen = {
                one for entity in gold if (one := _seen(entity, len(doc), labels, right, chance))
            }
            taken = {i for start, end, _ in gold for i in range(start, end)}
            free = [i for i in range(len(doc)) if i not in taken]
            if free and chance.random() < (1 - right) / 2:
                start = chance.choice(free)
                end = start + 1 + (start + 1 in free and chance.random() < 0.5)
                seen.add((start, end, chance.choice(labels)))
            votes.update(seen)
            if not as_if_complete:
                doc.spans[f"{SOURCE}{number}"] = [Span(doc, *one) for one in sorted(seen)]
        if as_if_complete:
            most = [Span(doc, *one) for one, count in votes.items() if 2 * count > len(rights)]
            doc.set_ents(filter_spans(most), default="outside")
        yield doc


def _seen(
    entity: Entity, size: int, labels: Sequence[str], right: float, chance: random.Random
) -> Entity | None:
    start, end, label = entity
    if chance.random() < right:
        return entity
    mistake = chance.choice(["missed", "label", "more or less"])
    if mistake == "missed":
        return None
    others = [one for one in labels if one != label]
    if mistake == "label" and others:
        return start, end, chance.choice(others)
    if end - start > 1 and chance.random() < 0.5:
        return start, end - 1, label
    return (start, end + 1, label) if end < size else (max(start - 1, 0), end, label)
