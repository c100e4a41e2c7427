"""Diagnosis of a pipeline with latent structures: its parts, and the gradients that reach them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spacy.language import Language
from spacy.training import Example
from spacy.util import registry
from thinc.api import Model, Optimizer

from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.estimators.target_difference import TargetDifference
from spacy_latent.pipeline.diagnostic import Diagnostic, error, note, warning
from spacy_latent.pipeline.inspection import latent_components
from spacy_latent.pipeline.training_settings import training_settings

PARTS = ("embedder", "scorer", "composer", "estimator", "output", "head")
# A gradient smaller than this share of the composer's hardly moves the scorer.
FAINT = 1e-5
# Largest number of further steps before a scorer counts as getting no gradient. Estimators that
# compare best structures, such as ImplicitMLE, only have a gradient in steps in which these differ:
# on a few short texts, in one step of ten.
FURTHER = 30


def describe(nlp: Language) -> dict[str, dict[str, Any]]:
    """Describe the parts of each latent layer, whose module must have been built."""
    from spacy_latent.models.inspection import latent_module, latent_shim

    found = {}
    rate = _learn_rate(nlp)
    for component in latent_components(nlp).values():
        pipe = component.pipe
        for key, node in component.layers.items():
            layer = latent_module(node).latent
            shim = latent_shim(node)
            listening = list(getattr(pipe, "listening_components", ()))
            parameters = _parameters(pipe.model, list(component.layers.values()), node)
            for name in listening:
                listener: Any = nlp.get_pipe(name)
                parameters["head"] += sum(_size(inner) for inner in listener.model.walk())
            scale = shim.learn_rates.get("latent.scorer.", 1.0)
            found[key] = {
                "component": component.name,
                "structure": repr(layer.structure),
                "estimator": layer.estimator.shown,
                "scorer": type(layer.scorer).__name__,
                "composer": type(layer.composer).__name__,
                "tractable": sorted(
                    {*layer.structure.tractable, *["map"] * layer.structure.has_map}
                ),
                "needed": sorted(layer.estimator.needed()),
                "hard in training": layer.estimator.hard,
                "hard at prediction": layer.estimator.hard_at_prediction,
                "temperature": shim.temperature,
                "parameters": parameters,
                "learn rate": {"scorer": rate * scale, "others": rate},
                "listeners": listening,
            }
    return found


def _map(structure: Any) -> set[str]:
    return {"map"} if structure.has_map else set()


def _learn_rate(nlp: Language) -> float:
    block = training_settings(nlp).get("optimizer")
    if not block:
        return math.nan
    return float(registry.resolve({"optimizer": block})["optimizer"].learn_rate)


def _part_of(name: str) -> str:
    """Return the part of the latent layer's module that has a weight of this name."""
    for part in ("scorer", "composer", "estimator"):
        if name.startswith(f"latent.{part}."):
            return part
    # A parser that composes while it parses has an encoder of its own for the scorer.
    return "scorer" if name.startswith("latent.") else "output"


def _owners(nodes: Sequence[Model]) -> dict[int, str]:
    """Map the ids of the Thinc nodes inside the embedders to parts."""
    return {inner.id: "embedder" for node in nodes for inner in node.layers[0].walk()}


def _parameters(model: Model, nodes: Sequence[Model], own: Model) -> dict[str, int]:
    from spacy_latent.models.inspection import latent_shim

    counts = dict.fromkeys(PARTS, 0)
    inside = {inner.id for node in nodes for inner in [*node.layers[0].walk(), *node.layers[1:2]]}
    for inner in own.layers[0].walk():
        counts["embedder"] += _size(inner)
    for name, parameter in latent_shim(own).module.named_parameters():
        counts[_part_of(name)] += parameter.numel()
    counts["head"] = sum(_size(inner) for inner in model.walk() if inner.id not in inside)
    return counts


def _size(node: Model) -> int:
    total = sum(int(node.get_param(name).size) for name in node.param_names if node.has_param(name))
    for shim in node.shims:
        module: Any = getattr(shim, "_model", None)
        if hasattr(module, "parameters"):
            total += sum(parameter.numel() for parameter in module.parameters())
    return total


# -------------------------------------------------------------------- gradients


class _Recorder(Optimizer):
    """Recorder of the norms of gradients on their way to another optimizer."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.squares: dict[tuple[int, str], float] = {}

    def __call__(self, key: Any, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> Any:
        self.squares[key] = float((gradient**2).sum())
        return self.inner(key, weights, gradient, lr_scale=lr_scale)


def gradient_norms(
    nlp: Language,
    examples: Sequence[Example],
    steps: int = 3,
    progress: Progress = silent,
    optimizer: Optimizer | None = None,
) -> dict[str, dict[str, float]]:
    """Train some steps on the examples, and return the norms of the gradients of the last step.

    The norms are given for each component, and for each of :data:`PARTS` that has weights and
    received gradients. Frozen and annotating components of the config are respected. The weights of
    the pipeline change.

    In the first step output layers are 0, and so are the gradients of layers below them. Use two or
    more steps, and three or more if the learning rate warms up.

    Args:
        progress: see :class:`spacy_latent.analysis.progress.Progress`; it counts steps.
        optimizer: optimizer of earlier steps, to continue with; None for the config's.
    """
    training = training_settings(nlp)
    frozen = list(training.get("frozen_components") or ())
    annotating = list(training.get("annotating_components") or ())
    # Norms before the clipping of the config's optimizer.
    inner = optimizer or _optimizer_of(nlp)
    latent = latent_components(nlp)
    found: dict[str, dict[str, float]] = {}
    for _ in progress(range(steps), "Training steps", steps):
        batch = [Example(example.x.copy(), example.reference) for example in examples]
        nlp.update(batch, sgd=False, exclude=frozen, annotates=annotating)  # type: ignore[arg-type]
        for name, pipe in nlp.pipeline:
            if name in frozen or not getattr(pipe, "is_trainable", False):
                continue
            recorder = _Recorder(inner)
            pipe.finish_update(recorder)  # type: ignore[attr-defined]
            if isinstance(getattr(pipe, "model", None), Model):
                nodes = list(latent[name].layers.values()) if name in latent else []
                found[name] = _by_part(nodes, recorder.squares)
        # A learning rate that warms up is 0 in the first step.
        inner.step_schedules()
    return found


def _optimizer_of(nlp: Language) -> Optimizer:
    return registry.resolve({"optimizer": training_settings(nlp)["optimizer"]})["optimizer"]


def _by_part(nodes: Sequence[Model], squares: Mapping[tuple[int, str], float]) -> dict[str, float]:
    from spacy_latent.models.inspection import latent_shim

    owners = _owners(nodes)
    # Ids of shims and of nodes may be equal, so the names of weights distinguish them.
    shims = {
        (latent_shim(node).id, name)
        for node in nodes
        for name, _ in latent_shim(node).module.named_parameters()
    }
    total: dict[str, float] = {}
    for (identifier, name), square in squares.items():
        if (identifier, name) in shims:
            part = _part_of(name)
        else:
            part = owners.get(identifier, "head")
        total[part] = total.get(part, 0.0) + square
    for _, name in shims:
        total.setdefault(_part_of(name), 0.0)
    return {part: total[part] ** 0.5 for part in PARTS if part in total}


def judge_training(
    nlp: Language, examples: Sequence[Example], steps: int = 3, progress: Progress = silent
) -> tuple[dict[str, dict[str, float]], list[Diagnostic]]:
    """Train some steps on the examples, and judge the gradients of the last one.

    If a scorer gets no gradient in this step, up to :data:`FURTHER` steps follow, until all scorers
    have got one. The result then has a component's norms from the first step in which its scorer
    has a gradient, and a note with the number of this step. See :func:`gradient_norms` for the
    arguments.
    """
    optimizer = _optimizer_of(nlp)
    norms = gradient_norms(nlp, examples, steps, progress, optimizer)
    found = judge_gradients(nlp, norms)
    missing = {component for component in norms if _gets_nothing(nlp, norms, component)}
    late = []
    further = range(steps + 1, steps + FURTHER + 1) if missing else range(0)
    for step in progress(further, "Further steps", len(further)):
        later = gradient_norms(nlp, examples, steps=1, optimizer=optimizer)
        for component in [one for one in missing if later[one].get("scorer")]:
            missing.remove(component)
            norms[component] = later[component]
            text = (
                f"{component}: its scorer gets a gradient only in some steps, here first in step "
                f"{step}. This is so with estimators that compare best structures, such as "
                "ImplicitMLE, and with SparseMAP if one structure has all the weight. If the "
                "structure does not change in training, raise target_step or the temperature."
            )
            late.append(note("rare-gradient", text))
        if not missing:
            break
    return norms, judge_gradients(nlp, norms) + late if late else found


def _gets_nothing(nlp: Language, norms: Mapping[str, Mapping[str, float]], component: str) -> bool:
    judged = judge_gradients(nlp, {component: norms[component]})
    return any(diagnostic.code == "no-gradient-at-scorer" for diagnostic in judged)


def judge_gradients(nlp: Language, norms: Mapping[str, Mapping[str, float]]) -> list[Diagnostic]:
    """Return diagnostics about the norms of :func:`gradient_norms`."""
    found = (
        _judge(component, latent, norms[component])
        for component, latent in latent_components(nlp).items()
        if component in norms
    )
    return [diagnostic for diagnostic in found if diagnostic is not None]


def _judge(component: str, latent: Any, parts: Mapping[str, float]) -> Diagnostic | None:
    from spacy_latent.models.inspection import latent_module, latent_shim

    estimators = [
        latent_module(node).latent.estimator.at(latent_shim(node).updates)
        for node in latent.layers.values()
    ]
    learns = any(estimator.uses_scores for estimator in estimators)
    bad = [part for part, norm in parts.items() if not math.isfinite(norm)]
    if bad:
        return error(
            "not-finite",
            f"{component}: the gradient of its {', '.join(bad)} is not finite. Lower the "
            "learning rate or set training.optimizer.grad_clip.",
        )
    scorer = parts.get("scorer")
    if scorer is None:
        return None
    if not any(parts.values()):
        text = (
            f"{component}: it gets no gradient. No trained component depends on it. Add a "
            "component that listens to it, or remove it."
        )
        return error("no-gradient", text)
    if learns and scorer == 0.0 and any(isinstance(e, TargetDifference) for e in estimators):
        return warning(
            "no-gradient-at-scorer",
            f"{component}: no gradient reached the scorer in these steps: the step of its "
            "estimator never changed the best structure. With more texts, it may. If the "
            "structure does not change in training, set the estimator's scale_by_batch = true "
            "or raise its target_step (in BlackBox, interpolation), or use AdaptiveImplicitMLE "
            "or SparseMAP.",
        )
    if learns and scorer == 0.0:
        return error(
            "no-gradient-at-scorer",
            f"{component}: no gradient reaches the scorer, so the structure will not be learned. "
            "Use an estimator whose gradient is not zero for these scores, such as Marginals or "
            "SparseMAP, or check whether the task depends on the structure. If SparseMAP gives "
            "one structure all the weight, raise the temperature.",
        )
    if learns and scorer < FAINT * parts.get("composer", 0.0):
        return warning(
            "faint-gradient",
            f"{component}: the scorer's gradient ({scorer:.1e}) is tiny compared with the "
            f"composer's ({parts['composer']:.1e}). Raise scorer_learn_rate or the temperature, "
            "or use another estimator.",
        )
    return None
