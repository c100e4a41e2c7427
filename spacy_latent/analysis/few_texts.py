"""When texts are too few, or too easy, to tell anything by, and how that is said."""

from __future__ import annotations

from collections.abc import Iterable

from spacy_latent.analysis.task import UNSEEN
from spacy_latent.errors import number_of

# From fewer texts than this no absence of a difference is concluded, such as that structures do not
# help: what is so in 6 % of all texts may be in none of them.
FEW = 50
# From fewer, nothing is: what is so in 3 of 10 texts may be in none of them.
FEWEST = 10


def too_few(docs: int) -> str:
    """Of fewer than :data:`FEW`, in words."""
    return f"{number_of(docs, 'text')} {'is' if docs == 1 else 'are'} too few"


def why_undecided(ours: float, theirs: float, docs: int, differ: int | None) -> str:
    """Why texts do not tell that there is no difference of two scores, in words; empty where they
    may.

    docs: texts that count. differ: those whose own score differs, None where that is not known.
    """
    if min(ours, theirs) >= 1:
        everywhere = f"in all {docs} texts" if docs > 1 else "in the one text"
        return f"both are right {everywhere}, so that neither can be better. Take harder texts"
    if docs >= FEW:
        return ""
    if differ == 0:
        hidden = round(100 * min(1.0, UNSEEN / max(1, docs)))
        return (
            f"both are the same in {number_of(docs, 'text')}, which are too few. They may differ "
            f"in up to {hidden} % of all texts and in none of these"
        )
    return f"{too_few(docs)}. Take {FEW} or more"


def size_in_words(every: int, judged: Iterable[int]) -> str:
    """What is to be said of the number of texts; empty where they are not few.

    every: texts with structures. judged: for each comparison the texts that count in it.
    """
    least = min([every, *(docs for docs in judged if docs)])
    if least >= FEW:
        return ""
    said = f"Only {least} of {number_of(every, 'text')} have references to judge by"
    if least == every:
        there = "There is" if every == 1 else "There are"
        said = f"{there} only {number_of(every, 'text')} to judge from"
    consequence = "that is too few" if least < FEWEST else "what is not seen in them proves little"
    return f"{said}: {consequence}. Take {FEW} or more, better hundreds."


__all__ = ["FEW", "FEWEST", "size_in_words", "too_few", "why_undecided"]
