"""Check that the scores on which training depends exist.

If no scorer gives a score, spaCy takes it as 0 at every evaluation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.annotations.settings import cfg_of
from spacy_latent.errors import LatentWarning
from spacy_latent.pipeline.diagnostic import Diagnostic, warning
from spacy_latent.pipeline.training_settings import training_settings

WEIGHTS = "[training.score_weights]"
# Consequence if all weighted scores are missing.
CONSEQUENCE = (
    "Every evaluation then scores 0: training ends when its patience does, and its last state is "
    "kept as the best."
)


class ScoreNotGiven(LatentWarning):
    """Warning for a score of training that no scorer gives."""


def weighed_scores(nlp: Language) -> dict[str, float]:
    """Return the weights of scores that count in training."""
    given = training_settings(nlp).get("score_weights") or {}
    return {name: weight for name, weight in given.items() if weight}


def follow_settings(pipe: Any, nlp: Language | None) -> None:
    """Move the weights of a component's default scores to the scores of its settings.

    It is called in initialize(). It moves nothing if some component gives one of the default
    scores.

    Args:
        pipe: component with ``score_names``, a mapping from default names to names by its settings.
            The changes are stored in its ``renamed_scores``.
    """
    if nlp is None or pipe.name not in nlp.pipe_names:
        return
    weights = dict(nlp.config["training"].get("score_weights") or {})
    renamed = {
        usual: own
        for usual, own in pipe.score_names.items()
        if usual != own and weights.get(usual) is not None
    }
    given = _names_given(nlp) if renamed else None
    if given is None or set(renamed) & set().union(*given.values()):
        return
    for usual, own in renamed.items():
        weight, weights[usual] = weights[usual], None
        if weights.get(own) is None:
            weights[own] = weight
    nlp.config["training"]["score_weights"] = weights
    pipe.renamed_scores = renamed


def warn_not_given(pipe: Any, nlp: Language | None) -> None:
    """Warn in initialize() if training depends on a default score that no component gives.

    This happens if the settings of the component change the names of its scores.
    """
    if nlp is None or pipe.name not in nlp.pipe_names or pipe.scorer is None:
        return
    usual = nlp.get_pipe_meta(pipe.name).default_score_weights or {}
    weights = weighed_scores(nlp)
    given = _names_given(nlp) if set(usual) & set(weights) else None
    if given is None:
        return
    names = set().union(*given.values())
    lost = [name for name in usual if name in weights and name not in names]
    # A constant 0 changes no choice of the best model if the component gives another score.
    if not lost or given[pipe.name] & set(weights):
        return
    own = ", ".join(sorted(given[pipe.name])) or "none"
    rest = "" if set(weights) - set(lost) else f" {CONSEQUENCE}"
    warnings.warn(
        f"{pipe.name}: {WEIGHTS} has {_weights_of(lost, weights)}, which no component computes. "
        f"This one computes {own}: set one of these there, and the others to null.{rest}",
        ScoreNotGiven,
        stacklevel=3,
    )


def about_scores(
    nlp: Language, examples: Sequence[Example] = (), mentioned: Iterable[str] = ()
) -> list[Diagnostic]:
    """Return messages about weights of scores that no component gives for these examples.

    Missing weights are reported, too. Without examples, or before the pipeline is initialized,
    scores are not checked.

    Args:
        mentioned: names of scores that another message reports already.
    """
    weights, given = weighed_scores(nlp), _evaluated(nlp, examples)
    found = [diagnostic for name, pipe in nlp.pipeline for diagnostic in _of_settings(name, pipe)]
    if given is None:
        return found
    if not weights:
        return [_no_weights(nlp)]
    lost = [name for name in weights if name not in given and name not in set(mentioned)]
    lost = [name for name in lost if not _is_replaced(nlp, name, weights)]
    if not lost:
        return found
    numbers = sorted(
        name for name, value in given.items() if isinstance(value, float) and name != "speed"
    )
    near = [match for name in lost for match in get_close_matches(name, numbers, n=2)]
    there = ", ".join(dict.fromkeys(near)) or ", ".join(numbers) or "no other"
    rest = "" if set(weights) - set(lost) else f" {CONSEQUENCE}"
    return [
        *found,
        warning(
            "score-not-given",
            f"{WEIGHTS} has {_weights_of(lost, weights)}, which no component computes for these "
            f"texts. Available: {there}. Use one of these instead, or give a component a scorer "
            f"that has it.{rest}",
        ),
    ]


def _of_settings(component: str, pipe: Any) -> Iterator[Diagnostic]:
    for usual, own in list(getattr(pipe, "renamed_scores", {}).items())[:1]:
        yield warning(
            "score-renamed",
            f"{WEIGHTS} has {usual}, which no component computes: with its settings {component} "
            f"computes {own}, and training uses that. Write {own} there, and null for {usual}.",
        )
    scorer = getattr(pipe, "scorer", None)
    if isinstance(scorer, partial) and "rationale_key" in scorer.keywords:
        read, written = scorer.keywords["rationale_key"], cfg_of(pipe).get("spans_key")
        if read != written:
            yield warning(
                "rationale-key",
                f"{component}: its scorer reads rationales from doc.spans[{read!r}], and the "
                f"component writes {'none' if written is None else f'them to {written!r}'}: all "
                "scores of rationales are 0. Give both the same spans_key.",
            )


def _no_weights(nlp: Language) -> Diagnostic:
    from spacy_latent.pipeline.latent_encoder import LatentEncoder

    encoders = [
        name
        for name, pipe in nlp.pipeline
        if isinstance(pipe, LatentEncoder) and pipe.cfg["supervision"]
    ]
    advice = ""
    if encoders:
        advice = (
            f' For the trees of {encoders[0]}: @scorers = "spacy-latent.attachment_scorer.v2" and '
            f'component = "{encoders[0]}" under [components.{encoders[0]}.scorer], and '
            f"latent_uas = 1.0 under {WEIGHTS}."
        )
    return warning(
        "no-score",
        f"{WEIGHTS} gives no score a weight. {CONSEQUENCE} Add a score of a component there, "
        f"with 1.0.{advice}",
    )


def _weights_of(names: Sequence[str], weights: dict[str, float]) -> str:
    return ", ".join(f"{name} = {weights[name]:g}" for name in names)


def _evaluated(nlp: Language, examples: Sequence[Example]) -> dict[str, Any] | None:
    """Return the scores on copies of the examples; None without examples, or after an error."""
    copies = [Example(example.x.copy(), example.reference) for example in examples]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nlp.evaluate(copies) if copies else None
    except Exception:
        # Training will raise the same error, which does not concern scores.
        return None


def _names_given(nlp: Language) -> dict[str, set[str]] | None:
    """Return the names of the scores of each component that has a scorer.

    The scorers run on a doc without annotation, for which most return their names with None. Return
    None if a scorer fails.
    """
    example = Example(Doc(nlp.vocab, words=["a"]), Doc(nlp.vocab, words=["a"]))
    scored = {name: pipe for name, pipe in nlp.pipeline if hasattr(pipe, "score")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {name: set(pipe.score([example])) for name, pipe in scored.items()}
    except Exception:
        return None


def _is_replaced(nlp: Language, name: str, weights: dict[str, float]) -> bool:
    """Return whether all components with this default score give another score with a weight."""
    owners = [
        pipe
        for pipe in nlp.pipe_names
        if name in (nlp.get_pipe_meta(pipe).default_score_weights or {})
    ]
    given = _names_given(nlp) if owners else None
    return given is not None and all(given.get(pipe, set()) & set(weights) for pipe in owners)
