"""What a pipeline with latent structures is made of, whether gradients reach all of it, and
mistakes that make it learn nothing without an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.training import Example
from spacy.util import registry
from thinc.api import Model, Optimizer

from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.models.listener import LatentListener
from spacy_latent.pipeline.inspection import latent_components
from spacy_latent.pipeline.measured_settings import LayerSettings, measured_notes
from spacy_latent.pipeline.missing_upstreams import missing_upstreams
from spacy_latent.pipeline.unreached_stages import unreached_stages

PARTS = ("embedder", "scorer", "composer", "estimator", "output", "head")
# Components that set the boundaries that SentenceSpans looks for.
SETS_SENTENCES = ("token.sent_start", "token.is_sent_start", "doc.sents", "token.dep", "token.head")
# Components of spaCy that others may listen to.
SHARED = ("tok2vec", "transformer", "curated_transformer")
# A gradient smaller than this share of the composer's hardly moves the scorer.
FAINT = 1e-5


@dataclass(frozen=True)
class Finding:
    """level: "error" for what will not learn or not work, "warning" for what likely is a mistake,
    "note" for what is good to know. code: a name for scripts. text: sentences."""

    level: Literal["error", "warning", "note"]
    code: str
    text: str


def describe(nlp: Language) -> dict[str, dict[str, Any]]:
    """For each latent layer what it is made of. Its module must have been built."""
    from spacy_latent.models.inspection import latent_module

    found = {}
    rate = _learn_rate(nlp)
    for component in latent_components(nlp).values():
        pipe = component.pipe
        for key, node in component.layers.items():
            layer = latent_module(node).latent
            shim = _shim(node)
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
                "tractable": sorted(layer.structure.tractable | _map(layer.structure)),
                "needed": sorted(layer.estimator.needed()),
                "hard in training": layer.estimator.hard,
                "hard at prediction": layer.estimator.hard_at_prediction,
                "temperature": shim.temperature,
                "parameters": parameters,
                "learn rate": {"scorer": rate * scale, "others": rate},
                "listeners": listening,
            }
    return found


def training_settings(nlp: Language) -> dict[str, Any]:
    """The config's [training], with what its variables stand for."""
    return dict(nlp.config.interpolate().get("training") or {})


def _map(structure: Any) -> set[str]:
    return {"map"} if structure.has_map else set()


def _shim(node: Model) -> Any:
    from spacy_latent.models.latent_shim import LatentShim

    return next(s for layer in node.layers for s in layer.shims if isinstance(s, LatentShim))


def _learn_rate(nlp: Language) -> float:
    block = training_settings(nlp).get("optimizer")
    if not block:
        return math.nan
    return float(registry.resolve({"optimizer": block})["optimizer"].learn_rate)


def _part_of(name: str) -> str:
    """Of the latent layer's module, by the name of a weight."""
    for part in ("scorer", "composer", "estimator"):
        if name.startswith(f"latent.{part}."):
            return part
    # A parser that composes while it parses has a scorer's context of its own.
    return "scorer" if name.startswith("latent.") else "output"


def _owners(nodes: Sequence[Model]) -> dict[int, str]:
    """Parts by id of the Thinc nodes inside the embedders."""
    return {inner.id: "embedder" for node in nodes for inner in node.layers[0].walk()}


def _parameters(model: Model, nodes: Sequence[Model], own: Model) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    inside = {inner.id for node in nodes for inner in [*node.layers[0].walk(), *node.layers[1:2]]}
    for inner in own.layers[0].walk():
        counts["embedder"] += _size(inner)
    for name, parameter in _shim(own).module.named_parameters():
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
    """Takes note of the norms of gradients on their way to another optimizer."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.squares: dict[tuple[int, str], float] = {}

    def __call__(self, key: Any, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> Any:
        self.squares[key] = float((gradient**2).sum())
        return self.inner(key, weights, gradient, lr_scale=lr_scale)


def gradient_norms(
    nlp: Language, examples: Sequence[Example], steps: int = 3, progress: Progress = silent
) -> dict[str, dict[str, float]]:
    """Norms of the gradients of the last of some training steps on the examples, for each component
    and each of :data:`PARTS` that has weights there and got any; the config's frozen and annotating
    components are respected. The weights of the pipeline are changed.

    In the first step output layers are zero, and so are the gradients below them: take two or more.

    progress: see :class:`spacy_latent.analysis.progress.Progress`; of steps.
    """
    training = training_settings(nlp)
    frozen = list(training.get("frozen_components") or ())
    annotating = list(training.get("annotating_components") or ())
    # By those of the config, whose clipping is a part of what one wants to see undone.
    inner = registry.resolve({"optimizer": training["optimizer"]})["optimizer"]
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
                found[name] = _by_part(pipe, nodes, recorder.squares)
    return found


def _by_part(
    pipe: Any, nodes: Sequence[Model], squares: Mapping[tuple[int, str], float]
) -> dict[str, float]:
    owners = _owners(nodes)
    # Shims and nodes count their ids apart, so the names of weights tell which is meant.
    shims = {
        (_shim(node).id, name)
        for node in nodes
        for name, _ in _shim(node).module.named_parameters()
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


def judge_gradients(nlp: Language, norms: Mapping[str, Mapping[str, float]]) -> list[Finding]:
    """What the norms of :func:`gradient_norms` say."""
    from spacy_latent.models.inspection import latent_module

    found = []
    for component, latent in latent_components(nlp).items():
        if component not in norms:
            continue
        parts = norms[component]
        learns = any(
            latent_module(node).latent.estimator.at(_shim(node).updates).uses_scores
            for node in latent.layers.values()
        )
        bad = [part for part, norm in parts.items() if not math.isfinite(norm)]
        if bad:
            found.append(
                Finding(
                    "error",
                    "not-finite",
                    f"{component}: the gradient of its {', '.join(bad)} is not finite. Lower the "
                    "learning rate or set training.optimizer.grad_clip.",
                )
            )
            continue
        scorer = parts.get("scorer")
        if scorer is None:
            continue
        if not any(parts.values()):
            found.append(
                Finding(
                    "error",
                    "no-gradient",
                    f"{component}: no gradient arrives. Nothing that is trained depends on it.",
                )
            )
        elif not learns:
            continue
        elif scorer == 0.0:
            found.append(
                Finding(
                    "error",
                    "no-gradient-at-scorer",
                    f"{component}: no gradient reaches the scorer, so the structure will not be "
                    "learned. Take an estimator whose gradient is not zero for these scores, such "
                    "as Marginals or SparseMAP, or look whether the task sees the structure. Where "
                    "SparseMAP gives one structure all the weight, raise the temperature.",
                )
            )
        elif scorer < FAINT * parts.get("composer", 0.0):
            found.append(
                Finding(
                    "warning",
                    "faint-gradient",
                    f"{component}: the scorer's gradient ({scorer:.1e}) is tiny beside the "
                    f"composer's ({parts['composer']:.1e}). Raise scorer_learn_rate or the "
                    "temperature, or take another estimator.",
                )
            )
    return found


# -------------------------------------------------------------------- mistakes


def find_traps(nlp: Language) -> list[Finding]:
    """Mistakes that can be told from the pipeline and its config."""
    found: list[Finding] = []
    training = training_settings(nlp)
    frozen = set(training.get("frozen_components") or ())
    annotating = set(training.get("annotating_components") or ())
    for component, latent in latent_components(nlp).items():
        if hasattr(latent.pipe, "listener_map"):
            found += _of_listeners(nlp, component, latent.pipe, frozen, annotating)
        elif component in frozen:
            found.append(
                Finding("note", "frozen", f"{component} is frozen: its structure does not learn.")
            )
        for key, node in latent.layers.items():
            found += _of_layer(key, node)
            layer = settings_of(latent.pipe, node)
            found += [
                Finding("note", code, f"{key}: {text}") for code, text in measured_notes(layer)
            ]
        for sentence in unreached_stages(latent.pipe.model, int(training.get("max_steps") or 0)):
            found.append(Finding("error", "unreached-stage", f"{component}: {sentence}"))
    found += [Finding("error", "no-upstream", text) for text in missing_upstreams(nlp)]
    found += about_sentences(nlp)
    found += _of_wildcards(nlp)
    found += _of_own_embedders(nlp, frozen)
    nodes = [node for one in latent_components(nlp).values() for node in one.layers.values()]
    if any(_shim(node).device.type == "cuda" for node in nodes):
        found += _of_kernels()
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def _of_listeners(
    nlp: Language, component: str, pipe: Any, frozen: set[str], annotating: set[str]
) -> Iterable[Finding]:
    listening = list(pipe.listening_components)
    supervised = bool(pipe.cfg.get("supervision"))
    names = nlp.pipe_names
    # spaCy tells a component only of those after it.
    early = [
        name
        for name, other in nlp.pipeline[: names.index(component)]
        if component in _upstream(other, LatentListener)
    ]
    if not listening and not supervised and not early:
        yield Finding(
            "error",
            "no-listener",
            f"{component}: nothing listens to it, so it learns nothing. Give a component "
            '@architectures = "spacy-latent.LatentListener.v1" with '
            f'upstream = "{component}", or set its supervision above 0.',
        )
    if early:
        yield Finding(
            "error",
            "listener-first",
            f"{', '.join(early)} listens to {component} and stands before it in the pipeline, so "
            f"it gets no vectors. Put {component} first.",
        )
    awake = [name for name in listening if name not in frozen]
    if component in frozen:
        if awake and component not in annotating:
            yield Finding(
                "error",
                "frozen-encoder",
                f"{component} is frozen and {', '.join(awake)}, which listens to it, is not: it "
                f"would get no vectors in training. Add {component} to "
                "training.annotating_components, or give the listener a copy of its own with "
                "replace_listeners.",
            )
        else:
            yield Finding("note", "frozen", f"{component} is frozen: its structure does not learn.")
    elif listening and not awake and not supervised:
        yield Finding(
            "error",
            "frozen-listeners",
            f"All that listens to {component} is frozen ({', '.join(listening)}), so it gets no "
            "gradient. Freeze it too, or leave one of them free.",
        )
    if pipe.cfg.get("set_heads") and "parser" in names:
        yield Finding(
            "warning",
            "set-heads",
            f"{component} sets heads and so does the parser; docs that are parsed keep theirs.",
        )


def _upstream(pipe: Any, kind: type[Model] = Model) -> set[str]:
    """Whom the listeners of this kind, or of any, inside a component listen to."""
    model = getattr(pipe, "model", None)
    nodes = model.walk() if isinstance(model, Model) else ()
    return {
        node.upstream_name
        for node in nodes
        if isinstance(node, kind) and hasattr(node, "upstream_name")
    }


def _of_layer(key: str, node: Model) -> Iterable[Finding]:
    from spacy_latent.models.inspection import latent_module

    module = latent_module(node)
    estimator = module.latent.estimator
    if not estimator.uses_scores:
        before = [stage.name for _, stage in estimator.stages if stage.uses_scores]
        since = f" after {', '.join(before)}" if before else ""
        learned = (
            "what was learned of them has no part in it"
            if before
            else ("nothing is learned of them")
        )
        yield Finding(
            "note",
            "given-trees",
            f"{key}: its trees are given by {estimator.name}{since}, so its scorer is not run and "
            f"{learned}. It is a control.",
        )
    if getattr(module, "gain", None) is not None:
        yield Finding(
            "note",
            "residual",
            f"{key}: the embedder's vectors go around the structure (residual), so the task may be "
            "learned without it. Set residual = false to close this way.",
        )
    if any(inner.name == "expand_window" for inner in node.layers[0].walk()):
        yield Finding(
            "note",
            "context-below",
            f"{key}: its embedder mixes neighbouring tokens, so the task may be learned without "
            "the structure. An embedder of single words, with context in the scorer alone, leaves "
            "no other way.",
        )
    if _shim(node).learn_rates.get("latent.scorer.", 1.0) == 0.0:
        yield Finding(
            "warning", "scorer-still", f"{key}: scorer_learn_rate is 0, so the scorer never learns."
        )


def settings_of(pipe: Any, node: Model) -> LayerSettings:
    """Of a latent layer inside a component; its module must have been built."""
    from spacy_latent.layers.rationale_layer import RationaleLayer
    from spacy_latent.models.inspection import latent_module

    module = latent_module(node)
    layer = module.latent
    return LayerSettings(
        layer.structure,
        layer.estimator,
        scorer_learn_rate=_shim(node).learn_rates.get("latent.scorer.", 1.0),
        supervised=bool(getattr(pipe, "cfg", {}).get("supervision")),
        chooses_words=isinstance(layer, RationaleLayer),
        has_evidence=getattr(module, "evidence", None) is not None,
    )


def about_sentences(nlp: Language) -> list[Finding]:
    """Where structures are of sentences, whether anything sets these, and in training too. The
    pipeline need not be initialized."""
    annotating = set(training_settings(nlp).get("annotating_components") or ())
    return [
        finding
        for component, latent in latent_components(nlp).items()
        for finding in _of_sentences(nlp, component, list(latent.layers.values()), annotating)
    ]


def _of_sentences(
    nlp: Language, component: str, nodes: Sequence[Model], annotating: set[str]
) -> Iterable[Finding]:
    from spacy_latent.models.span_getters import DocSpans, SentenceSpans

    lengths = [
        getter.max_length
        for getter in (node.attrs["span_getter"] for node in nodes)
        if isinstance(getter, SentenceSpans) and not isinstance(getter, DocSpans)
    ]
    if not lengths:
        return
    before = nlp.pipe_names[: nlp.pipe_names.index(component)]
    setters = [
        name for name in before if set(nlp.get_pipe_meta(name).assigns) & set(SETS_SENTENCES)
    ]
    late = [name for name in setters if name not in annotating]
    if not setters:
        yield Finding(
            "note",
            "no-sentences",
            f"No component before {component} sets sentences: one structure spans a whole text, "
            f"up to {max(lengths)} tokens of it. For one of each sentence put a sentencizer before "
            "it, and its name into training.annotating_components.",
        )
    elif late:
        yield Finding(
            "warning",
            "sentences-in-training",
            f"{', '.join(late)} sets sentences at prediction but not in training, where "
            f"{component} would see whole docs. Add {', '.join(late)} to "
            "training.annotating_components.",
        )


def _of_kernels() -> Iterable[Finding]:
    from spacy_latent.models.latent_shim import why_no_gpu_kernels

    reason = why_no_gpu_kernels()
    if reason is not None:
        yield Finding(
            "note",
            "no-gpu-kernels",
            "Structures are solved on the CPU and sent back, since kernels for the GPU cannot be "
            f"launched: {reason}. CuPy launches them: pip install 'spacy-latent[gpu]', for CUDA "
            "13 'spacy-latent[gpu13]'.",
        )


def _of_wildcards(nlp: Language) -> Iterable[Finding]:
    if all(nlp.get_pipe_meta(name).factory != "latent_encoder" for name in nlp.pipe_names):
        return
    for name, pipe in nlp.pipeline:
        if "*" in _upstream(pipe, Tok2VecListener):
            yield Finding(
                "warning",
                "wildcard",
                f'{name} listens to "*", which no latent encoder answers. Name the one that '
                "is meant as its upstream.",
            )


def _of_own_embedders(nlp: Language, frozen: set[str]) -> Iterable[Finding]:
    """Beside an embedder that components may share. ``spacy init config`` writes such configs:
    its templates know no components but spaCy's."""
    upstream = {name: _upstream(pipe) for name, pipe in nlp.pipeline}
    own = [
        name
        for name in latent_components(nlp, annotating=True)
        if not upstream[name] and name not in frozen
    ]
    for shared in nlp.pipe_names:
        factory = nlp.get_pipe_meta(shared).factory
        if not own or shared in frozen or factory not in SHARED:
            continue
        names, listener = ", ".join(own), ""
        has = "has an embedder of its own" if len(own) == 1 else "have embedders of their own"
        if factory == "tok2vec":
            width = nlp.get_pipe(shared).model.maybe_get_dim("nO")  # type: ignore[attr-defined]
            listener = (
                ' the block of the embedder @architectures = "spacy.Tok2VecListener.v1", '
                f'width = {width}, upstream = "{shared}"'
            )
        share = f"To share it, give{listener or ' them a listener to it'}"
        if any(heard & {shared, "*"} for heard in upstream.values()):
            yield Finding("note", "own-embedder", f"{names} {has} beside {shared}. {share}.")
        else:
            yield Finding(
                "warning",
                "idle-embedder",
                f"Nothing listens to {shared}, so it learns nothing, and {names} {has}. {share}; "
                f"else take {shared} out of the pipeline.",
            )
