"""Stages of training that a config's training never comes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spacy.language import Language
from thinc.api import Model

from spacy_latent.errors import LatentError


def unreached_stages(model: Model, max_steps: int) -> Iterator[str]:
    """For each structure and estimator in a component's initialized model that is only used in
    prediction, since training ends after ``max_steps`` updates (0 for no such end), a sentence."""
    from spacy_latent.models.latent_shim import LatentShim

    shims = [s for node in model.walk() for s in node.shims if isinstance(s, LatentShim)]
    for shim in shims if max_steps > 0 else ():
        if not shim.is_built:
            continue
        layer: Any = shim.module.latent
        for staged, setting, show in (
            (layer.structure, "release_at", repr),
            (layer.estimator, "switch_at", lambda each: each.name),
        ):
            if staged.stages and staged.stages[-1][0] >= max_steps:
                end, last = staged.stages[-1]
                yield (
                    f"training.max_steps is {max_steps}, and {show(staged)} follows {show(last)} "
                    f"only after {end} updates, so that it would predict untrained. Lower "
                    f"{setting}, or raise training.max_steps."
                )


def refuse_unreached_stages(name: str, model: Model, nlp: Language | None) -> None:
    """Raise LatentError where there is one; name: of the component."""
    from spacy_latent.pipeline.diagnosis import training_settings

    if nlp is None:
        return
    max_steps = training_settings(nlp).get("max_steps") or 0
    for sentence in unreached_stages(model, int(max_steps)):
        raise LatentError(f"{name}: {sentence}")
