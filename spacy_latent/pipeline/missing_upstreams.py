"""Listeners to a latent encoder that the pipeline does not have."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from spacy.language import Language
from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.models.listener import LatentListener


def missing_upstreams(nlp: Language) -> Iterator[str]:
    """For each component with a ``LatentListener`` to a name that no component has, enabled or
    disabled, sentences. spaCy's own listeners are left to spaCy."""
    names = nlp.component_names
    encoders = [one for one in names if nlp.get_pipe_meta(one).factory == "latent_encoder"]
    for name, pipe in nlp.components:
        model = getattr(pipe, "model", None)
        nodes = model.walk() if isinstance(model, Model) else ()
        heard = {node.upstream_name for node in nodes if isinstance(node, LatentListener)}
        for upstream in sorted(heard - set(names)):
            near = get_close_matches(upstream, [one for one in encoders if one != name], n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            yield (
                f"{name} listens to {upstream!r}, and the pipeline has no such component (it has: "
                f"{', '.join(names)}). {hint}Set upstream, in the block of the "
                f"spacy-latent.LatentListener.v1 of {name}, to the name of a latent encoder."
            )


def refuse_missing_upstreams(nlp: Language | None) -> None:
    """Raise LatentError for the first one. For ``initialize``: a pipeline that is built step by
    step has all of its components only then."""
    for sentences in missing_upstreams(nlp) if nlp is not None else ():
        raise LatentError(sentences)


__all__ = ["missing_upstreams", "refuse_missing_upstreams"]
