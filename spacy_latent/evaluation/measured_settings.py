"""Settings that did worse than others in measurements, for the notes of ``spacy latent debug``.

Each note gives its figures, most of them of one seed and one task. The figures come from
benchmarks/results, or from the raw rows from which it is written.
``tests/evaluation/test_measured_settings.py`` checks each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# The measured values start at this multiple, and end at this step.
FAST_SCORER = 3.0
SMALL_TARGET_STEP = 0.1
# Estimators that sample single trees without the loss of each tree.
SINGLE_TREES = ("StraightThrough", "PerturbAndMap")
# Baselines of the score function with which one word was chosen.
SAMPLED_WORD_BASELINES = ("MovingAverage", "LearnedConstant", "NetworkBaseline")
# Measurements, by the codes of the notes.
EVIDENCE = {
    "fast-scorer": (
        "In the demo, with another estimator before ScoreFunction as here, 12.2 % of the trees "
        "of lists with six levels were right with a rate of 3, and 100.0 % with 0.3 and 1 (one "
        "seed). In an earlier form of the demo a rate of 3 had 97.8 %, and 0.3 had 96.4 %."
    ),
    "single-trees-first": (
        "In ListOps without marginals before them StraightThrough found 44.8 % of the heads and "
        "PerturbAndMap 34.7 %, and ScoreFunction found 100.0 %; after marginals the two found "
        "99.1 % and 100.0 % of the demo's heads (all means of five seeds). To begin with "
        "Marginals, put both into an EstimatorSequence."
    ),
    "spigot-of-trees": (
        "It found 33.6 % of the demo's heads, with marginals before it, and 3.7 % of those of "
        "ListOps, without (one seed). ScoreFunction found 100.0 % in both."
    ),
    "sampled-word": (
        "In sentence polarity ScoreFunction had an accuracy of 62.7 with MovingAverage, 61.4 with "
        "LearnedConstant and 63.9 with NetworkBaseline, SparseMAP with marginalize = true 65.6, "
        "GumbelRao 67.6, and DenseMarginalization 68.3 in more than twice as long (means of five "
        "seeds)."
    ),
    "small-target-step": (
        "In sentence polarity, with four words chosen, 0.1 had an accuracy of 70.5 (one seed), and "
        "1 from 72.0 to 74.3 (five seeds)."
    ),
}


@dataclass(frozen=True)
class LayerSettings:
    """Settings of a latent layer that the notes depend on.

    Attributes:
        structure, estimator: structure and estimator at the end of training. Earlier ones are in
            their ``stages``.
        scorer_learn_rate: multiple of the learning rate for the scorer.
        supervised: whether the structure is learned, at least in part, from gold structures.
        chooses_words: whether the model only reads chosen words, as ``RationaleTextCat`` does.
        has_evidence: whether the model also learns from the words of texts.
    """

    structure: Any
    estimator: Any
    scorer_learn_rate: float = 1.0
    supervised: bool = False
    chooses_words: bool = False
    has_evidence: bool = False

    @property
    def is_latent_tree(self) -> bool:
        """True for trees of heads that are learned from the task only."""
        return self.structure.annotation == "heads" and not self.supervised

    @property
    def began_with_scores(self) -> bool:
        """True if another estimator trained the scorer first, as ``Marginals`` does in the demo."""
        return any(stage.uses_scores for _, stage in self.estimator.stages)


def measured_notes(layer: LayerSettings) -> Iterator[tuple[str, str]]:
    """Yield the code and the text of each note."""
    for code, setting in _found(layer):
        yield code, f"{setting} {EVIDENCE[code]}"


def _found(layer: LayerSettings) -> Iterator[tuple[str, str]]:
    """Yield the code of each note, and a sentence on the setting."""
    name = layer.estimator.name
    rate = layer.scorer_learn_rate
    if layer.is_latent_tree:
        if name == "ScoreFunction" and layer.began_with_scores and rate >= FAST_SCORER:
            yield "fast-scorer", f"scorer_learn_rate is {rate:g}."
        if name in SINGLE_TREES and not layer.began_with_scores:
            yield (
                "single-trees-first",
                f"{name} learns the trees, without another estimator before it.",
            )
        if name == "Spigot":
            yield "spigot-of-trees", "Spigot learns the trees from the task alone."
    structure = layer.structure.name
    if layer.chooses_words and not layer.has_evidence:
        if name == "ScoreFunction" and structure == "OneOfN":
            baseline = type(layer.estimator.control_variate).__name__
            if baseline in SAMPLED_WORD_BASELINES:
                yield "sampled-word", f"One word is chosen by ScoreFunction with {baseline}."
        if name == "ImplicitMLE" and structure == "KOfN":
            step = layer.estimator.target_step
            if step <= SMALL_TARGET_STEP:
                yield "small-target-step", f"target_step of ImplicitMLE is {step:g}."
