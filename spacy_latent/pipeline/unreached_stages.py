"""Stages of training that a config's training never comes to."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from spacy.language import Language
from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.stages import unreached


def unreached_stages(model: Model, max_steps: int) -> Iterator[str]:
    """For each structure, estimator and choice of candidates in a component's initialized model
    that is only used in prediction, since training ends after ``max_steps`` updates (0 for no such
    end), a sentence."""
    parts = chain.from_iterable(shim.staged() for shim in latent_shims(model))
    for staged, setting in parts if max_steps > 0 else ():
        clause = unreached(staged, max_steps)
        if clause:
            yield (
                f"training.max_steps is {max_steps}, and {clause}, so that it would predict "
                f"untrained. Lower {setting}, or raise training.max_steps."
            )


def latent_shims(model: Model) -> list[Any]:
    from spacy_latent.models.latent_shim import LatentShim

    return [s for node in model.walk() for s in node.shims if isinstance(s, LatentShim)]


def refuse_unreached_stages(name: str, model: Model, nlp: Language | None) -> None:
    """Raise LatentError where there is one; name: of the component."""
    from spacy_latent.pipeline.diagnosis import training_settings

    if nlp is None:
        return
    max_steps = training_settings(nlp).get("max_steps") or 0
    for sentence in unreached_stages(model, int(max_steps)):
        raise LatentError(f"{name}: {sentence}")


def build_refuse_unreached_stages_v1() -> Callable[[Language], Language]:
    """For ``[initialize.after_init]``: refuses a training that ends, by ``training.max_steps``,
    before the last stage of a structure or an estimator begins, in any component's model.

    ``latent_encoder`` and ``latent_textcat`` refuse it without. spaCy's own components with a
    ``LatentTok2Vec`` inside need it.
    """
    return refuse_in_pipeline


# spaCy's components keep the pipeline from their models, and nothing else tells a model of
# training.max_steps: neither initialize nor an update of Thinc's, nor the optimizer. A callback of
# the config is the only place that is told, and only the user can put it there. Beside it
# LatentShim.from_bytes warns, whatever ended the training: steps, epochs or patience.
def refuse_in_pipeline(nlp: Language) -> Language:
    """Raise LatentError for the first component that training does not bring to its last stage."""
    from spacy_latent.pipeline.diagnosis import training_settings

    frozen = training_settings(nlp).get("frozen_components") or ()
    for name, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        # What is sourced from another pipeline has updates behind it, and goes on.
        if isinstance(model, Model) and name not in frozen:
            if not any(shim.updates for shim in latent_shims(model)):
                refuse_unreached_stages(name, model, nlp)
    return nlp
