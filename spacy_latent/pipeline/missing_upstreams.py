"""Listeners to a name that is no component of the pipeline, or no latent encoder."""

from __future__ import annotations

from collections.abc import Iterator

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2Vec
from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.models.listener import LatentListener, no_such_component


def missing_upstreams(nlp: Language) -> Iterator[str]:
    """Yield sentences about each ``LatentListener`` to a name that no component has.

    Enabled and disabled components count. spaCy itself checks its own listeners.
    """
    from spacy_latent.pipeline.latent_encoder import LatentEncoder

    names = nlp.component_names
    encoders = [one for one, pipe in nlp.components if isinstance(pipe, LatentEncoder)]
    for name in names:
        for upstream in sorted({node.upstream_name for node in _listeners(nlp, name)} - set(names)):
            others = [one for one in encoders if one != name]
            yield no_such_component(name, upstream, ", ".join(names), others)


def _listeners(nlp: Language, name: str) -> list[LatentListener]:
    pipe = dict(nlp.components)[name]
    model = getattr(pipe, "model", None)
    nodes = model.walk() if isinstance(model, Model) else ()
    return [node for node in nodes if isinstance(node, LatentListener)]


def refuse_missing_upstreams(nlp: Language | None) -> None:
    """Raise LatentError for the first missing component, and for one that cannot answer.

    A ``tok2vec`` sends its vectors to a ``LatentListener`` in training, since spaCy's listener is
    the base class, but not in prediction.

    It is called in ``initialize``, since a pipeline that is built step by step may lack components
    before.
    """
    if nlp is None:
        return
    for sentences in missing_upstreams(nlp):
        raise LatentError(sentences)
    for name in nlp.component_names:
        for listener in _listeners(nlp, name):
            upstream = listener.upstream_name
            if upstream == name:
                raise LatentError(
                    f"{name} listens to itself. Set upstream, in the block of its "
                    "spacy-latent.LatentListener.v1, to the name of a latent encoder before it."
                )
            # Disabled components are not missing.
            if isinstance(dict(nlp.components)[upstream], Tok2Vec):
                raise LatentError(
                    f"{name} has a spacy-latent.LatentListener.v1 to {upstream!r}, which is a "
                    "tok2vec of spaCy and sends it no vectors after training. Use "
                    '@architectures = "spacy.Tok2VecListener.v1".'
                )
            listener.meet(upstream, name)
