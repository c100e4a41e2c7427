"""Factories of components for spaCy, and the default embedder of their models."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from spacy.language import Language
from thinc.api import Config, Model

from spacy_latent.pipeline.trained_component import TrainedComponent

# Settings of the default embedder. The default configs of components only name its architecture.
EMBEDDER = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 96,
    "depth": 4,
    "embed_size": 2000,
    "window_size": 1,
    "maxout_pieces": 3,
    "subword_features": True,
}

# Arguments that spaCy gives each factory, and the model.
FIRST = {"nlp": Language, "name": str, "model": Model}


def default_config(component: type, name: str, text: str) -> dict[str, Any]:
    """Return the default config of a component: the defaults of its constructor, and its model.

    Args:
        text: config with a section ``name``: the model, and the settings that have another default
            in a config than in the constructor.
    """
    config: dict[str, Any] = Config().from_str(text)[name]
    config["model"]["tok2vec"] |= EMBEDDER
    return {one.name: one.default for one in _settings_of(component)} | config


def _settings_of(component: type) -> list[Parameter]:
    """Return the settings of a constructor, and of those to which it passes ``**settings``."""
    found: dict[str, Parameter] = {}
    for base in component.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = signature(vars(base)["__init__"]).parameters.values()
        named = {one.name: one for one in parameters if one.kind is Parameter.KEYWORD_ONLY}
        found = {**named, **found}
        if all(one.kind is not Parameter.VAR_KEYWORD for one in parameters):
            break
    return list(found.values())


def factory_of(component: type[TrainedComponent], name: str) -> Callable[..., TrainedComponent]:
    """Return the factory of a component, with the settings of its constructor as arguments.

    spaCy checks the types of a config against the signature of the factory.

    Args:
        component: class whose constructor has the vocab, the model and the name of the component,
            then settings by keyword.
    """

    def make(nlp: Language, name: str, model: Model, **settings: object) -> TrainedComponent:
        made = component(nlp.vocab, model, name, **settings)
        if component.output_for_each_label:
            made.configured_outputs = model.maybe_get_dim("nO")
        return made

    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(key, kind, annotation=of) for key, of in FIRST.items()]
    parameters += _settings_of(component)
    make.__signature__ = Signature(parameters, return_annotation=component)  # type: ignore[attr-defined]
    typed = [one for one in parameters if one.annotation is not Parameter.empty]
    make.__annotations__ = {**{one.name: one.annotation for one in typed}, "return": component}
    make.__name__ = make.__qualname__ = f"make_{name}"
    make.__module__ = component.__module__
    return make
