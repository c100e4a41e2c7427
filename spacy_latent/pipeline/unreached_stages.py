"""Stages of training that a config's training never comes to."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from spacy.language import Language
from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.training_settings import last_step, training_settings
from spacy_latent.stages import unreached

# The block of a config that refuses it, and changes nothing where there is nothing to refuse.
CALLBACK = {"@callbacks": "spacy-latent.RefuseUnreachedStages.v1"}


def unreached_stages(model: Model, max_steps: int) -> Iterator[str]:
    """For each structure, estimator and choice of candidates in a component's model, initialized or
    not, that is only used in prediction, since training ends after ``max_steps`` updates (0 for no
    such end), a sentence."""
    parts = chain.from_iterable(shim.staged for shim in latent_shims(model))
    for staged in parts if max_steps > 0 else ():
        clause = unreached(staged, max_steps)
        if clause:
            yield (
                f"training.max_steps is {max_steps}, and {clause}, so that it would predict "
                f"untrained. Lower {staged.end_setting}, or raise training.max_steps."
            )


def latent_shims(model: Model) -> list[Any]:
    from spacy_latent.models.latent_shim import LatentShim

    return [s for node in model.walk() for s in node.shims if isinstance(s, LatentShim)]


def refuse_unreached_stages(name: str, model: Model, nlp: Language | None) -> None:
    """Raise LatentError where there is one; name: of the component."""
    if nlp is None:
        return
    for sentence in unreached_stages(model, last_step(training_settings(nlp))):
        raise LatentError(f"{name}: {sentence}")


def build_refuse_unreached_stages_v1() -> Callable[[Language], Language]:
    """For ``[nlp.after_pipeline_creation]``: refuses a config, when it is loaded, whose training
    ends, by ``training.max_steps``, before the last stage of a structure, an estimator or
    candidates begins, in any component's model. A trained pipeline is loaded from disk whatever
    its ``max_steps``.

    In ``[initialize.after_init]`` it refuses the same when the pipeline is initialized. There the
    components of this package do so without it; spaCy's own with a ``LatentTok2Vec`` inside need
    it.
    """
    return refuse_in_pipeline


# spaCy's components keep the pipeline from their models, and nothing else tells a model of
# training.max_steps: neither initialize nor an update of Thinc's, nor the optimizer. Nor does a
# factory see it, which is given the pipeline before that has its config. A callback of the config
# is the only place that is told when a config is loaded, and only the config can put it there.
# Beside it LatentShim.from_bytes warns, whatever ended the training: steps, epochs or patience.
def refuse_in_pipeline(nlp: Language) -> Language:
    """Raise LatentError for the first component that training does not bring to its last stage."""
    if _comes_from_disk(nlp):
        return nlp
    frozen = training_settings(nlp).get("frozen_components") or ()
    for name, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        # What is sourced from another pipeline has updates behind it, and goes on.
        if isinstance(model, Model) and name not in frozen:
            if not any(shim.updates for shim in latent_shims(model)):
                refuse_unreached_stages(name, model, nlp)
    return nlp


def _comes_from_disk(nlp: Language) -> bool:
    """Whether it has just been made for weights that are on disk and not read yet.

    spaCy then makes it with the ``meta.json`` beside them, and else with nothing; its property
    ``meta`` would fill in what is not there, and does for the first component that is sourced.
    The ``meta.json`` of a pipeline that was saved after sourcing and not initialized holds all the
    same. But its config names factories alone; so it is the config that tells of what was sourced
    just now, until ``nlp.config`` is asked, which writes factories there. An optimizer is there
    from ``initialize`` on, whose callbacks are asked of any pipeline.

    ``Lang.from_config(config)`` before ``from_bytes`` cannot be told from the loading of a config
    that is to be trained; give it ``meta``, as ``spacy.load`` does.
    """
    components = nlp._config.get("components") or {}
    sourced = any("source" in settings for settings in components.values())
    return bool(nlp._meta) and not sourced and nlp._optimizer is None
