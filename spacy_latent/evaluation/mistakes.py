"""Mistakes in a pipeline or its config that cause no error, but prevent or reduce learning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from spacy.language import Language
from spacy.pipeline import TextCategorizer
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.training import Example
from thinc.api import Model

from spacy_latent.annotations.settings import cfg_of
from spacy_latent.errors import number_of
from spacy_latent.evaluation.annotation_mistakes import (
    about_categories,
    about_incomplete_entities,
    about_missing_labels,
    about_other_tokens,
    about_rejected_spans,
)
from spacy_latent.evaluation.listening import listeners_in, listening_mistakes
from spacy_latent.evaluation.measured_settings import LayerSettings, measured_notes
from spacy_latent.models.text_cat_reduce import refuses_empty_texts
from spacy_latent.pipeline.diagnostic import Diagnostic, Level, error, note, warning
from spacy_latent.pipeline.inspection import latent_components
from spacy_latent.pipeline.latent_encoder import LatentEncoder
from spacy_latent.pipeline.missing_upstreams import missing_upstreams
from spacy_latent.pipeline.scores_given import about_scores
from spacy_latent.pipeline.scores_of_range import judged_as_labels, weighed_as_labels
from spacy_latent.pipeline.training_settings import training_settings
from spacy_latent.pipeline.unreached_stages import unreached_stages

# Components that set the sentence boundaries that SentenceSpans needs.
SETS_SENTENCES = ("token.sent_start", "token.is_sent_start", "doc.sents", "token.dep", "token.head")
FROZEN = "{} is frozen: its structure does not learn."
# Components of spaCy that others may listen to.
SHARED = ("tok2vec", "transformer", "curated_transformer")

# Number of examples that are predicted and scored.
SCORED = 50


def spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Return at most ``count`` examples, from all parts of the corpus."""
    kept = min(count, len(examples))
    return [examples[number * len(examples) // kept] for number in range(kept)]


def find_traps(nlp: Language, examples: Sequence[Example] = ()) -> list[Diagnostic]:
    """Return the mistakes that are visible in the pipeline and its config.

    Args:
        examples: some of the training examples, as the corpus provides them.
    """
    from spacy_latent.models.inspection import latent_shim

    found: list[Diagnostic] = []
    training = training_settings(nlp)
    frozen = set(training.get("frozen_components") or ())
    annotating = set(training.get("annotating_components") or ())
    for component, latent in latent_components(nlp).items():
        if hasattr(latent.pipe, "listener_map"):
            found += _of_encoder(nlp, component, latent.pipe, frozen, annotating)
        elif component in frozen:
            found.append(note("frozen", FROZEN.format(component)))
        for key, node in latent.layers.items():
            found += _of_layer(key, node)
            layer = settings_of(latent.pipe, node)
            found += [note(code, f"{key}: {text}") for code, text in measured_notes(layer)]
        for sentence in unreached_stages(component, latent.pipe.model, nlp):
            found.append(error("unreached-stage", f"{component}: {sentence}"))
    found += [error("no-upstream", text) for text in missing_upstreams(nlp)]
    found += _of_names(nlp)
    found += listening_mistakes(nlp)
    found += about_sentences(nlp, examples)
    ranges = about_score_ranges(nlp)
    found += ranges
    mentioned = ["cats_score"] if ranges else []
    found += about_scores(nlp, spread(examples, SCORED), mentioned)
    found += about_missing_labels(nlp, examples, frozen)
    found += about_other_tokens(nlp, examples, frozen)
    found += about_categories(nlp, examples, frozen)
    found += about_incomplete_entities(nlp, examples)
    found += about_rejected_spans(nlp, examples, frozen)
    found += _of_stored_names(nlp)
    found += _of_wildcards(nlp)
    found += _of_own_embedders(nlp, frozen)
    found += _of_empty_texts(nlp)
    nodes = [node for one in latent_components(nlp).values() for node in one.layers.values()]
    if any(latent_shim(node).device.type == "cuda" for node in nodes):
        found += _of_kernels()
    order = ("error", "warning", "note")
    return sorted(found, key=lambda diagnostic: order.index(diagnostic.level))


def _of_names(nlp: Language) -> Iterable[Diagnostic]:
    """Yield settings for components that the pipeline lacks.

    spaCy ignores such names, except in ``frozen_components``.
    """
    config = nlp.config.interpolate()
    training, names = config.get("training") or {}, nlp.component_names
    initialized = (config.get("initialize") or {}).get("components")
    settings: list[tuple[Level, str, Iterable[str] | None]] = [
        ("error", "[training] frozen_components", training.get("frozen_components")),
        ("warning", "[training] annotating_components", training.get("annotating_components")),
        ("warning", "[initialize.components]", initialized),
    ]
    for level, setting, given in settings:
        for name in given or ():
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                yield Diagnostic(
                    level,
                    "no-component",
                    f"{setting}: the pipeline has no component {name!r}.{hint} It has "
                    f"{', '.join(names)}.",
                )


def frozen_without_weights(nlp: Language) -> list[str]:
    """Return the names of frozen components without weights.

    Training does not initialize frozen components, so they cannot run. Call this once the others
    are initialized.
    """
    frozen = training_settings(nlp).get("frozen_components") or ()
    pipes = {name: pipe for name, pipe in nlp.pipeline if name in frozen}
    return [name for name, pipe in pipes.items() if _is_without_weights(pipe)]


def _is_without_weights(pipe: Any) -> bool:
    model = getattr(pipe, "model", None)
    if not isinstance(model, Model):
        return False
    # A transformer has no Thinc weights, and no width before its weights are loaded.
    if hasattr(pipe, "listener_map") and model.has_dim("nO") is None:
        return True
    return any(node.has_param(name) is None for node in model.walk() for name in node.param_names)


def _of_encoder(
    nlp: Language, component: str, pipe: Any, frozen: set[str], annotating: set[str]
) -> Iterable[Diagnostic]:
    listening = list(pipe.listening_components)
    supervised = bool(pipe.cfg.get("supervision"))
    names = nlp.pipe_names
    # spaCy offers a component only the components after it.
    early = any(
        component in _upstream(other) for _, other in nlp.pipeline[: names.index(component)]
    )
    if not listening and not supervised and not early:
        yield error(
            "no-listener",
            f"{component}: no component listens to it, so it learns nothing. Give a component "
            '@architectures = "spacy-latent.LatentListener.v1" with upstream = '
            f'"{component}", or set its supervision above 0.',
        )
    awake = [name for name in listening if name not in frozen]
    if component in frozen and (not awake or component in annotating):
        yield note("frozen", FROZEN.format(component))
    if pipe.cfg.get("set_heads") and "parser" in names:
        yield warning(
            "set-heads",
            f"{component} and the parser both set heads; parsed docs keep the heads of the "
            "parser. Set set_heads = false, or remove the parser.",
        )


def _upstream(pipe: Any, kind: type[Model] = Model) -> set[str]:
    """Return the names that the listeners of a kind inside a component listen to."""
    return {name for node, name in listeners_in(pipe) if isinstance(node, kind)}


def _of_layer(key: str, node: Model) -> Iterable[Diagnostic]:
    from spacy_latent.models.inspection import latent_module, latent_shim

    module = latent_module(node)
    estimator = module.latent.estimator
    if not estimator.uses_scores:
        before = [stage.name for _, stage in estimator.stages if stage.uses_scores]
        since = f" after {', '.join(before)}" if before else ""
        learned = "learned scores are not used" if before else "learns nothing"
        yield note(
            "given-trees",
            f"{key}: its trees are given by {estimator.name}{since}, so its scorer is not run "
            f"and {learned}. Use it only as a control.",
        )
    if getattr(module, "gain", None) is not None:
        yield note(
            "residual",
            f"{key}: the embedder's vectors are added to the output (residual), so the task may "
            "be learned without the structure. To prevent this, set residual = false.",
        )
    if any(inner.name == "expand_window" for inner in node.layers[0].walk()):
        yield note(
            "context-below",
            f"{key}: the vectors of its embedder depend on neighbouring tokens, so the task may "
            "be learned without the structure. To prevent this, use an embedder of single "
            "words, and let only the scorer read the context.",
        )
    if latent_shim(node).learn_rates.get("latent.scorer.", 1.0) == 0.0:
        yield warning(
            "scorer-still",
            f"{key}: scorer_learn_rate is 0, so the scorer never learns. Set it above 0, as 1.0.",
        )


def settings_of(pipe: Any, node: Model) -> LayerSettings:
    """Return the settings of a latent layer in a component, whose module must have been built."""
    from spacy_latent.layers.rationale_layer import RationaleLayer
    from spacy_latent.models.inspection import latent_module, latent_shim

    module = latent_module(node)
    layer = module.latent
    return LayerSettings(
        layer.structure,
        layer.estimator,
        scorer_learn_rate=latent_shim(node).learn_rates.get("latent.scorer.", 1.0),
        supervised=bool(cfg_of(pipe).get("supervision")),
        chooses_words=isinstance(layer, RationaleLayer),
        has_evidence=getattr(module, "evidence", None) is not None,
    )


def about_sentences(nlp: Language, examples: Sequence[Example] = ()) -> Iterator[Diagnostic]:
    """Check that sentence boundaries are set for structures of sentences, in training as well.

    The pipeline need not be initialized.

    Args:
        examples: training examples. A reader such as ``spacy-latent.ParsedOnce.v1`` may have set
            their sentences already.
    """
    from spacy_latent.models.span_getters import DocSpans, SentenceSpans

    given = [example.predicted for example in examples if len(example.predicted) > 1]
    if given and all(doc.has_annotation("SENT_START") for doc in given):
        return
    annotating = set(training_settings(nlp).get("annotating_components") or ())
    for component, latent in latent_components(nlp).items():
        getters = [node.attrs["span_getter"] for node in latent.layers.values()]
        lengths = [
            getter.max_length
            for getter in getters
            if isinstance(getter, SentenceSpans) and not isinstance(getter, DocSpans)
        ]
        if lengths:
            yield from _of_sentences(nlp, component, max(lengths), annotating)


def _of_sentences(
    nlp: Language, component: str, longest: int, annotating: set[str]
) -> Iterator[Diagnostic]:
    before = nlp.pipe_names[: nlp.pipe_names.index(component)]
    setters = [
        name for name in before if set(nlp.get_pipe_meta(name).assigns) & set(SETS_SENTENCES)
    ]
    late = [name for name in setters if name not in annotating]
    if not setters:
        yield note(
            "no-sentences",
            f"No component before {component} sets sentence boundaries: one structure spans a "
            f"whole text, up to {number_of(longest, 'token')}. For a structure of each sentence, "
            "put a sentencizer before it, and add its name to training.annotating_components.",
        )
    elif late:
        yield warning(
            "sentences-in-training",
            f"{', '.join(late)} sets sentence boundaries at prediction but not in training, so "
            f"{component} would read whole docs in training. Add {', '.join(late)} to "
            "training.annotating_components.",
        )


def about_score_ranges(nlp: Language) -> list[Diagnostic]:
    """Return diagnostics about numbers that would be scored as labels.

    The pipeline need not be initialized.
    """
    weights = training_settings(nlp).get("score_weights") or {}
    classifiers = [pipe for _, pipe in nlp.pipeline if isinstance(pipe, TextCategorizer)]
    of_numbers = [pipe for pipe in classifiers if pipe.cfg.get("score_range") is not None]
    found = []
    for pipe in of_numbers:
        if text := judged_as_labels(pipe):
            found.append(warning("range-scorer", text))
        # Another classifier may provide the score of labels.
        elif len(of_numbers) == len(classifiers) and (text := weighed_as_labels(pipe, weights)):
            found.append(warning("range-weights", text))
    return found


def _of_kernels() -> Iterable[Diagnostic]:
    from spacy_latent.models.latent_shim import why_no_gpu_kernels

    reason = why_no_gpu_kernels()
    if reason is not None:
        yield note(
            "no-gpu-kernels",
            "Structures are computed on the CPU, since kernels for the GPU cannot be launched: "
            f"{reason}. To use the GPU, install CuPy: pip install 'spacy-latent[gpu]', for CUDA "
            "13 'spacy-latent[gpu13]'.",
        )


def _of_stored_names(nlp: Language) -> Iterable[Diagnostic]:
    """Yield names in ``doc._.latent`` to which several layers write; only the last remains."""
    writers: dict[str, list[str]] = {}
    for component, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        nodes = model.walk() if isinstance(model, Model) else ()
        for name in filter(None, [node.attrs.get("stored_as") for node in nodes]):
            writers.setdefault(name, []).append(f"the LatentTok2Vec of {component}")
        if cfg_of(pipe).get("annotate", "none") != "none":
            writers.setdefault(component, []).append(component)
    for name, found in writers.items():
        if len(found) > 1:
            yield warning(
                "stored-twice",
                f"{' and '.join(found)} write structures to doc._.latent[{name!r}], so only the "
                "last ones are kept. Set another name as stored_as.",
            )


def _of_wildcards(nlp: Language) -> Iterable[Diagnostic]:
    encoders = 0
    for name, pipe in nlp.pipeline:
        # Before the first latent encoder, "*" can only match a tok2vec or transformer of spaCy.
        if encoders and "*" in _upstream(pipe, Tok2VecListener):
            yield warning(
                "wildcard",
                f'{name} listens to "*", to which no latent encoder sends vectors. Set its '
                "upstream to the name of the encoder.",
            )
        encoders += isinstance(pipe, LatentEncoder)


def _of_own_embedders(nlp: Language, frozen: set[str]) -> Iterable[Diagnostic]:
    """Yield components with an embedder of their own in a pipeline with a shared embedder.

    ``spacy init config`` writes such configs, since its templates only know spaCy's components.
    """
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
            yield note("own-embedder", f"{names} {has} beside {shared}. {share}.")
        else:
            yield warning(
                "idle-embedder",
                f"No component listens to {shared}, so it learns nothing, and {names} {has}. "
                f"{share}; else remove {shared} from the pipeline.",
            )


def _of_empty_texts(nlp: Language) -> Iterable[Diagnostic]:
    for name, pipe in nlp.pipeline:
        if not isinstance(pipe, TextCategorizer):
            continue
        if settings := refuses_empty_texts(pipe.model):
            yield note(
                "empty-texts",
                f"{name} fails on a batch with an empty text, as spaCy's classifiers do with "
                f'{", ".join(settings)}. Use @architectures = "spacy-latent.TextCatReduce.v1", '
                "which is otherwise the same, or leave out empty texts.",
            )
