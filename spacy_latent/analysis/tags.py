"""Scores of a tagger: accuracy, F1 by tag, whole docs, and length of the right prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spacy.training import Example

from spacy_latent.analysis.scores import ExampleScorer, Scores


def score_tags(examples: Iterable[Example], **options: object) -> Scores:
    """Return four scores of tags.

    ``tag_acc`` is the accuracy, as in spaCy. ``tag_macro_f`` is the mean F1 over the tags of the
    reference. ``tag_whole`` is the share of docs without a wrong tag. ``tag_prefix`` is the mean
    share of a doc's tags before its first wrong one (Kim et al. 2017, section 4.1: "average length
    to failure"). All are None if no reference has a tag.

    Tokens whose reference has no tag are left out. If the tokens of both docs differ, spaCy aligns
    them. Tokens that it cannot align are left out too.
    """
    right, gold, found = Counter[str](), Counter[str](), Counter[str]()
    shares: list[float] = []
    for example in examples:
        truths = example.get_aligned("TAG", as_string=True)
        pairs = [(truth, token.tag_) for truth, token in zip(truths, example.predicted) if truth]
        if not pairs:
            continue
        gold.update(truth for truth, _ in pairs)
        found.update(tag for _, tag in pairs)
        right.update(truth for truth, tag in pairs if truth == tag)
        wrong = (place for place, (truth, tag) in enumerate(pairs) if truth != tag)
        shares.append(next(wrong, len(pairs)) / len(pairs))
    if not gold:
        return dict.fromkeys(("tag_acc", "tag_macro_f", "tag_whole", "tag_prefix"))
    each = [2 * right[tag] / (gold[tag] + found[tag]) for tag in gold]
    return {
        "tag_acc": right.total() / gold.total(),
        "tag_macro_f": sum(each) / len(each),
        "tag_whole": sum(share == 1.0 for share in shares) / len(shares),
        "tag_prefix": sum(shares) / len(shares),
    }


def build_tag_scorer_v1() -> ExampleScorer:
    """Build a scorer of ``tagger`` for spaCy's ``scorers`` registry, see :func:`score_tags`."""
    return score_tags
