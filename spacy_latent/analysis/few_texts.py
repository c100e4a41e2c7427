"""Least numbers of texts for conclusions, and sentences about them."""

from __future__ import annotations

from collections.abc import Iterable

from spacy_latent.analysis.resampling import UNSEEN
from spacy_latent.errors import number_of

# With fewer texts than this, the absence of a difference is not proved, for example that structures
# do not help: none of the texts may have a property of 6 % of all texts.
FEW = 50
# Fewer texts than this prove nothing: none of them may have a property of 3 in 10 texts.
FEWEST = 10


def too_few(docs: int) -> str:
    """Say in words that a number of texts is less than :data:`FEW`."""
    return f"{number_of(docs, 'text')} {'is' if docs == 1 else 'are'} too few"


def why_undecided(ours: float, theirs: float, docs: int, differ: int | None) -> str:
    """Say why texts do not prove that two scores are equal, empty if they may prove it.

    Args:
        differ: number of texts whose own score differs, None if that is not known.
    """
    if min(ours, theirs) >= 1:
        everywhere = f"in all {docs} texts" if docs > 1 else "in the one text"
        return f"both are right {everywhere}, so neither can be better. Give harder texts"
    if docs >= FEW:
        return ""
    if differ == 0:
        hidden = round(100 * min(1.0, UNSEEN / max(1, docs)))
        return (
            f"both are equal in {number_of(docs, 'text')}, which are too few: they may differ "
            f"in up to {hidden} % of all texts and in none of these"
        )
    return f"{too_few(docs)}. Give {FEW} or more"


def size_in_words(every: int, judged: Iterable[int]) -> str:
    """Return the remark on the number of texts, empty if they are not few.

    Args:
        judged: for each comparison, the number of texts that count in it.
    """
    least = min([every, *(docs for docs in judged if docs)])
    if least >= FEW:
        return ""
    said = f"Only {least} of {number_of(every, 'text')} have references to evaluate on"
    if least == every:
        there = "There is" if every == 1 else "There are"
        said = f"{there} only {number_of(every, 'text')} to evaluate on"
    consequence = "that is too few" if least < FEWEST else "they may not show small effects"
    return f"{said}: {consequence}. Give {FEW} or more, better hundreds."
