"""Checks for stages of training that a config's training never reaches."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from spacy.language import Language
from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.training_settings import last_step, training_settings
from spacy_latent.stages import unreached

# Text for messages: the block of a config that adds this check.
CALLBACK = {"@callbacks": "spacy-latent.RefuseUnreachedStages.v1"}


def unreached_stages(name: str, model: Model, nlp: Language) -> Iterator[str]:
    """Yield a sentence for each last stage that training does not reach.

    Stages belong to structures, estimators and choices of candidates. A last stage that begins
    after ``training.max_steps`` updates would only be used in prediction. The model need not be
    initialized.

    Args:
        name: name of the component that has the model.
    """
    max_steps = last_step(training_settings(nlp))
    parts = chain.from_iterable(shim.staged for shim in latent_shims(model))
    for staged in parts if max_steps > 0 else ():
        clause = unreached(staged, max_steps)
        if clause:
            settings = nlp.config.interpolate()["components"].get(name)
            setting = (staged.end_setting, staged.stages[-1][0])
            key = next(_keys_of(setting, settings, f"components.{name}"), staged.end_setting)
            yield (
                f"training.max_steps is {max_steps}, and {clause}, so that it would predict "
                f"untrained. Lower {key}, or raise training.max_steps."
            )


def _keys_of(setting: tuple[str, int], settings: Any, place: str) -> Iterator[str]:
    """Yield the full keys of a setting with this value."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if (key, value) == setting:
            yield f"{place}.{key}"
        yield from _keys_of(setting, value, f"{place}.{key}")


def latent_shims(model: Model) -> list[Any]:
    """Return the shims of all latent modules in a model."""
    from spacy_latent.models.latent_shim import LatentShim

    return [s for node in model.walk() for s in node.shims if isinstance(s, LatentShim)]


def refuse_unreached_stages(name: str, model: Model, nlp: Language | None) -> None:
    """Raise LatentError if training ends before a last stage."""
    if nlp is None:
        return
    for sentence in unreached_stages(name, model, nlp):
        raise LatentError(f"{name}: {sentence}")


def build_refuse_unreached_stages_v1() -> Callable[[Language], Language]:
    """Return a callback that refuses a config whose training ends before a model's last stage.

    Under ``[nlp.after_pipeline_creation]`` it raises an error when a config is loaded, if
    ``training.max_steps`` comes before the last stage of a structure, an estimator or candidates.
    Trained pipelines load from disk with any ``max_steps``.

    Under ``[initialize.after_init]`` it raises the same error when the pipeline is initialized. The
    components of this package do this without the callback. spaCy's own components with a
    ``LatentTok2Vec`` need it.
    """
    return refuse_in_pipeline


# Models of spaCy's components have no access to training.max_steps: not in initialize, not in an
# update, and not through the optimizer. A factory gets the pipeline before it has its config. So
# only a callback in the config can check it when a config is loaded. LatentShim.from_bytes also
# warns, in whatever way the training ended: by steps, epochs or patience.
def refuse_in_pipeline(nlp: Language) -> Language:
    """Raise LatentError for the first component whose last stage training does not reach."""
    if _comes_from_disk(nlp):
        return nlp
    frozen = training_settings(nlp).get("frozen_components") or ()
    for name, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        # A component that is sourced from another pipeline was trained before, and is accepted.
        if isinstance(model, Model) and name not in frozen:
            if not any(shim.updates for shim in latent_shims(model)):
                refuse_unreached_stages(name, model, nlp)
    return nlp


def _comes_from_disk(nlp: Language) -> bool:
    """Return whether the pipeline was created for weights on disk, which spaCy has yet to read.

    spaCy creates such a pipeline with the ``meta.json`` of the weights, and others without meta.
    But the property ``meta`` fills in values, and spaCy reads it for the first sourced component.
    So the config must also have no sourced components. ``nlp._config`` has them until
    ``nlp.config`` replaces them by factories. A pipeline that was saved after sourcing, without
    initialization, has only factories. After ``initialize`` there is an optimizer, and callbacks
    then check any pipeline.

    ``Lang.from_config(config)`` before ``from_bytes`` cannot be distinguished from loading a config
    to train it. Pass ``meta`` there, as ``spacy.load`` does.
    """
    components = nlp._config.get("components") or {}
    sourced = any("source" in settings for settings in components.values())
    return bool(nlp._meta) and not sourced and nlp._optimizer is None
