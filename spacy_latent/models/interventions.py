"""Conversion of an intervention on a model to interventions on groups of its spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thinc.api import Model

from spacy_latent.errors import LatentError
from spacy_latent.interventions import Intervention, Place, intervention_on
from spacy_latent.kinds import find_kind
from spacy_latent.layers.batch_interventions import BatchInterventions, Index
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.base import Structure

if TYPE_CHECKING:
    from spacy_latent.models.span_groups import Group, Spans


def interventions_of_layer(
    model: Model, groups: Sequence[Group], spans: Spans
) -> list[BatchInterventions] | None:
    """Return the intervention on each group of spans, None without an intervention on the node.

    Raises:
        LatentError: if the layer has no scores that can be edited, or a part of it is in no
            structure of a span.
    """
    found = intervention_on(model)
    if found is None:
        return None
    shim: Any = model.shims[0]
    layer = shim.module.latent
    reason = why_not_constrainable(layer)
    if reason:
        raise LatentError(
            f"The structures of {layer.structure.name} cannot be edited: {reason}. Remove the "
            "edits and the temperature."
        )
    members = [group.members for group in groups]
    return interventions_of(found, members, spans, layer.structure, layer.structure.kind)


def why_not_constrainable(layer: Any) -> str:
    """Return why interventions on a layer's scores cannot work; "" if they can."""
    if not isinstance(layer, LatentLayer) or layer.scorer.decides or not layer.structure.linear:
        return "its scorer scores decisions while they are taken, not parts"
    if not layer.estimator.uses_scores:
        return "they are given, not chosen by scores"
    return ""


def interventions_of(
    found: Intervention,
    groups: Sequence[Sequence[tuple[int, int]]],
    spans: Spans,
    structure: Structure,
    kind: str,
) -> list[BatchInterventions]:
    """Return the intervention on each group of spans with structures of this set.

    Args:
        groups: for each span its doc and its place among the doc's spans.
    """
    starts = {span[0] for doc_spans in spans for span in doc_spans}
    for start, part in (*found.forbidden, *found.forced):
        if start not in starts:
            raise LatentError(
                f"The edit of the part {list(part)} is for a structure that begins at token "
                f"{start}; expected one of {', '.join(map(str, sorted(starts)[:10])) or 'none'}. "
                "Remove the edit or correct its token."
            )
    made = []
    for group in groups:
        own = [spans[d][s][0] for d, s in group]
        forbidden = [_places(found.forbidden, start, structure, kind) for start in own]
        forced = [_places(found.forced, start, structure, kind) for start in own]
        made.append(BatchInterventions(forbidden, forced, found.temperature))
    return made


def _places(asked: Sequence[Place], start: int, structure: Structure, kind: str) -> list[Index]:
    axes, place = find_kind(kind).axes, find_kind(kind).place
    found = []
    for begin, part in asked:
        if begin != start:
            continue
        size = len(axes) or structure.part_axes
        if len(part) != size:
            named = f" ({', '.join(name for name, _ in axes)})" if axes else ""
            raise LatentError(
                f"The part {list(part)} of {structure.name} has {len(part)} number(s); expected "
                f"{size}{named}."
            )
        found.append(place(part, structure.part_axes))
    return found
