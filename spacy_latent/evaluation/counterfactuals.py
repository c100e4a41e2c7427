"""Predictions of a pipeline for structures that are changed by the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spacy.language import Language
from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.interventions import Intervention, intervening


@contextmanager
def counterfactual(nlp: Language, asked: Mapping[str, Intervention]) -> Iterator[None]:
    """Change the structures of ``nlp`` as requested, for its predictions in a ``with`` block.

    All values that are computed from the structures change, too. The change only applies to this
    thread, and the models are not modified.

    Process one text at a time, since the places of parts are tokens of a doc. Processing raises
    LatentError if a requested part is impossible in the structures, and
    :class:`spacy_latent.errors.NothingLeft` if no structure is left.

    Args:
        asked: interventions by the names under which structures are stored, the keys of
            ``doc._.latent``.

    Raises:
        LatentError: if a name is unknown, or a value is no Intervention.
    """
    models = editable_models(nlp)
    unknown = [name for name in asked if name not in models]
    if unknown:
        raise LatentError(
            f"An intervention is for {unknown[0]!r}; expected a key of doc._.latent whose "
            f"structures can be edited: {', '.join(models) or 'none'}."
        )
    for name, one in asked.items():
        if not isinstance(one, Intervention):
            raise LatentError(f"{name!r} is given {one!r}; expected an Intervention.")
    with intervening({models[name].id: one for name, one in asked.items()}):
        yield


def editable_models(nlp: Language) -> dict[str, Model]:
    """Return the model that scores the structures of each key of ``doc._.latent``."""
    from spacy_latent.models.latent_shim import LatentShim
    from spacy_latent.pipeline.inspection import latent_components

    found: dict[str, Model] = {}
    for component in latent_components(nlp, annotating=True).values():
        if component.own_kind is not None:
            found[component.name] = component.pipe.model
        for key, node in component.layers.items():
            found[key] = next(
                layer
                for layer in node.layers
                if any(isinstance(shim, LatentShim) and shim.has_layer for shim in layer.shims)
            )
    return found


def uneditable(nlp: Language) -> dict[str, str]:
    """Return the reasons why structures cannot be edited, by the keys of ``doc._.latent``.

    Editable structures are not listed.
    """
    from spacy_latent.models.inspection import latent_module
    from spacy_latent.models.interventions import why_not_constrainable
    from spacy_latent.pipeline.inspection import latent_components

    found = {}
    for component in latent_components(nlp).values():
        for key, node in component.layers.items():
            reason = why_not_constrainable(latent_module(node).latent)
            if reason:
                found[key] = reason
    return found


__all__ = ["Intervention", "counterfactual", "editable_models", "uneditable"]
