"""Initialization of a latent encoder with the trees of a trained ``latent_parser``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.util import load_model
from thinc.api import Model

from spacy_latent.errors import LatentError


def build_start_from_parser_v1(
    path: str | Path, parser: str = "latent_parser", encoder: str = "latent_encoder"
) -> Callable[[Language], Language]:
    """Copy the embedder and the arc scorer of a trained parser to an encoder.

    It is a callback for ``[initialize.after_init]``. The encoder begins with the parser's trees,
    and its task may change them. Both components need the same scorer and the same tok2vec, which
    must not be shared with other components.

    Args:
        path: directory of a trained pipeline, or the name of its package.
        parser: name of the parser in that pipeline.
        encoder: name of the encoder in the pipeline that is initialized.
    """
    return partial(start_from_parser, path=path, parser=parser, encoder=encoder)


def start_from_parser(nlp: Language, path: str | Path, parser: str, encoder: str) -> Language:
    """Copy the weights of the parser to the encoder.

    Raises:
        LatentError: if a component is missing, or if the weights do not fit.
    """
    from spacy_latent.models.labelled_parser import module_of
    from spacy_latent.models.latent_tok2vec import latent_layer

    source = _model(load_model(path), str(path), parser, "labelled_parser", "a latent_parser")
    target = _model(nlp, "this one", encoder, "latent_tok2vec", "a latent_encoder with a scorer")
    embedders = source.get_ref("tok2vec"), target.get_ref("embedder")
    for name, embedder in zip((parser, encoder), embedders):
        if any(isinstance(node, Tok2VecListener) for node in embedder.walk()):
            raise LatentError(
                f"{name!r} listens to another component and has no embedder of its own, from or "
                "to which weights could be copied. Call nlp.replace_listeners, or give it a "
                "tok2vec of its own."
            )
    scorer = latent_layer(target).scorer
    try:
        embedders[1].from_bytes(embedders[0].to_bytes())
        scorer.load_state_dict(module_of(source).scorer.state_dict())
    except (ValueError, KeyError, RuntimeError) as error:
        raise LatentError(
            f"The weights of {parser!r} in {path} do not fit {encoder!r}: {error}. Give both the "
            "same model.tok2vec and the same model.scorer."
        ) from error
    return nlp


def _model(nlp: Language, place: str, name: str, kind: str, wanted: str) -> Model:
    pipe: Any = nlp.get_pipe(name) if name in nlp.pipe_names else None
    model = getattr(pipe, "model", None)
    if not isinstance(model, Model) or model.name != kind:
        raise LatentError(
            f"The pipeline {place} has no {name!r} that is {wanted}; its components are "
            f"{', '.join(nlp.pipe_names) or 'none'}."
        )
    return model
