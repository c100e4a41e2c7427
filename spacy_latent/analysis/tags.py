"""How right the tags of a tagger are, beside their share: by tag, by doc, and up to the first wrong
one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spacy_latent.analysis.scores import ExampleScorer, Scores

if TYPE_CHECKING:
    from spacy.training import Example


def score_tags(examples: Iterable[Example], **options: object) -> Scores:
    """``tag_acc``, as spaCy has it; ``tag_macro_f``, the mean over the reference's tags of their
    F1; ``tag_whole``, the share of docs with no wrong tag; ``tag_prefix``, the mean share of a
    doc's tags that come before its first wrong one (Kim et al. 2017, section 4.1: "average length
    to failure"). None where no reference has a tag.

    Tokens of the reference without a tag are left out. Both docs have to have the same tokens for
    a token to count; where they have not, spaCy's alignment decides, and what it cannot align is
    left out too.
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
    """A scorer of spaCy's ``scorers`` registry for ``tagger``, see :func:`score_tags`."""
    return score_tags
