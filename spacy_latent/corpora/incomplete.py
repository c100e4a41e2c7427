"""Annotation taken away from texts that are annotated completely, to see what half of it would have
been worth."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.tokens import Doc

PREFIX = "has_"


def keep_some(
    docs: Iterable[Doc], share: float, seed: int = 0, as_if_complete: bool = False
) -> Iterator[Doc]:
    """Keep a random share of all entities. Of other tokens nothing is known.

    as_if_complete: say that they are outside of entities, as is done where nobody thinks of it.
    """
    if not 0 <= share <= 1:
        raise LatentError(f"The share of entities to keep is {share}; expected one from 0 to 1.")
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
    """Leave so many random texts as they are; of others say only whether there is an entity of each
    label, as a category such as "has_GPE" that is 1 or 0.

    wrong: the share of flags that say the contrary.
    as_if_complete: leave out those others, of which spaCy's ``ner`` could read nothing.
    """
    docs = list(docs)
    if not 0 <= complete <= len(docs):
        raise LatentError(
            f"{number_of(complete, 'text')} are to stay complete, of {len(docs)}; expected from 0 "
            "to all of them."
        )
    if not 0 <= wrong < 0.5:
        raise LatentError(
            f"The share of flags that are wrong is {wrong}; expected from 0 to below one half."
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
    docs: Iterable[Doc],
    sets: Sequence[Sequence[str]],
    seed: int = 0,
    as_if_complete: bool = False,
) -> Iterator[Doc]:
    """Deal texts at random to sets of labels, in equal parts, and keep of each text the entities of
    its set, which ``doc._.annotated_labels`` then says.

    as_if_complete: do not say so, so that entities of other labels seem to be outside.
    """
    docs = list(docs)
    there = {span.label_ for doc in docs for span in doc.ents}
    unknown = sorted({label for one in sets for label in one} - there)
    if unknown or len(sets) < 2:
        raise LatentError(
            f"The sets of labels are {[list(one) for one in sets]}; expected two or more, with "
            f"labels of the texts, which are {', '.join(sorted(there)) or 'none'}."
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


__all__ = ["PREFIX", "flag_all_but", "keep_some", "split_by_labels"]
