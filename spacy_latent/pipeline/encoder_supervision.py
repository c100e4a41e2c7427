"""Supervision of a ``latent_encoder``, which learns from gold structures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from spacy.language import Language
from spacy.training import Example
from thinc.types import Floats2d

from spacy_latent.errors import (
    IncompatiblePair,
    LatentError,
    LatentWarning,
    check_not_negative,
    number_of,
)
from spacy_latent.pipeline.training_settings import training_reader

if TYPE_CHECKING:
    from spacy_latent.layers.latent_module import LatentModule


# Number of first examples, at least one of which should have a gold structure.
SEARCHED = 1000


def check_supervision(name: str, cfg: Mapping[str, Any]) -> None:
    """Raise LatentError for settings that are invalid with any model."""
    from spacy_latent.structures.fenchel_young import check_loss_settings

    check_not_negative(name, supervision=cfg["supervision"])
    check_loss_settings(
        name,
        cfg["supervision_loss"],
        cfg["supervision_margin"],
        cfg["supervision_noise"],
        cfg["supervision_samples"],
        prefix="supervision_",
    )
    if cfg["teacher_forcing"] and not cfg["supervision"]:
        raise LatentError(
            f"{name}: teacher_forcing needs gold structures. Set supervision above 0."
        )


def refuse_supervision(name: str, layer: LatentModule, loss: str) -> None:
    """Raise LatentError for a layer that cannot learn from gold structures with this loss."""
    from spacy_latent.structures.fenchel_young import check_loss

    structure = layer.structure
    stages = [*(stage for _, stage in layer.estimator.stages), layer.estimator]
    blind = [stage for stage in stages if not stage.uses_scores]
    if blind:
        raise IncompatiblePair(
            f"{name} with supervision",
            blind[0].name,
            "supervision trains the scorer, and this estimator does not use its scores",
            "supervision = 0.0, or an estimator that computes structures from the scores",
        )
    for each in (*(stage for _, stage in structure.stages), structure):
        check_loss(each, loss)


def warn_without_gold(pipe: Any, examples: Iterable[Example], nlp: Language | None) -> None:
    """Warn in initialize() if none of the first examples has a gold structure to learn.

    Also warn if the first one is annotated in ``doc._.latent`` and the reader has an augmenter.
    """
    from spacy_latent.models.latent_tok2vec import latent_layer
    from spacy_latent.models.supervision import gold_structures

    structure = latent_layer(pipe.model).structure
    spans_of = pipe.model.attrs["span_getter"]
    count = 0
    for example in islice(examples, SEARCHED):
        spans = spans_of([example.predicted])
        try:
            found = gold_structures([example], spans, pipe.name, structure)
        except LatentError:
            # The first update raises this error for annotation of another kind.
            return
        if any(one is not None for one in found[0]):
            if pipe.name in example.reference._.latent and _has_augmenter(nlp):
                warnings.warn(
                    f"{pipe.name}: the training corpus has an augmenter, and texts that it changes "
                    "lose their gold structures in doc._.latent: they are not learned. Set "
                    "augmenter = null; to augment, change the texts before they are annotated.",
                    LatentWarning,
                    stacklevel=3,
                )
            return
        count += 1
    heads = "token.head and token.dep, or " if structure.kind == "heads" else ""
    warnings.warn(
        f"{pipe.name}: supervision is {pipe.cfg['supervision']}, and there is no gold structure in "
        f"the first {number_of(count, 'text')} of the training data. References need {heads}"
        f"structures of {structure.name} in doc._.latent under the name {pipe.name!r} "
        "(spacy_latent.annotations.write). DocBin keeps these with store_user_data=True; spaCy's "
        "reader drops them if it augments docs or splits them (max_length, gold_preproc).",
        LatentWarning,
        stacklevel=3,
    )


def _has_augmenter(nlp: Language | None) -> bool:
    return nlp is not None and bool(training_reader(nlp).get("augmenter"))


def begin_supervised_update(
    pipe: Any, examples: list[Example], losses: dict[str, float]
) -> tuple[list[Floats2d], Callable]:
    """Compute the vectors of a batch, and add the loss of its gold structures to ``losses``.

    Returns:
        The vectors of each doc, and the callback for their gradients.
    """
    from spacy_latent.models.latent_tok2vec import latent_layer, run
    from spacy_latent.models.supervision import Supervision, gold_structures

    name, cfg = pipe.name, pipe.cfg
    layer = latent_layer(pipe.model)
    made: list[Supervision] = []

    def supervision(spans: list[list[tuple[int, ...]]]) -> Supervision:
        # Training may begin with a smaller set, whose arcs may not cross.
        gold = gold_structures(examples, spans, name, layer.present_structure)
        made.append(
            Supervision(
                gold,
                weight=cfg["supervision"],
                teacher_forcing=cfg["teacher_forcing"],
                loss=cfg["supervision_loss"],
                margin=cfg["supervision_margin"],
                noise=cfg["supervision_noise"],
                num_samples=cfg["supervision_samples"],
            )
        )
        return made[0]

    docs = [example.predicted for example in examples]
    batch, backprop = run(pipe.model, docs, is_train=True, supervision=supervision)
    key = f"{name}_supervision"
    losses[key] = losses.get(key, 0.0) + sum(one.mean for one in made)
    # spaCy's logger shows only losses under the names of components.
    losses[name] += sum(one.weight * one.mean for one in made)
    if any(one.left_out for one in made):
        warnings.warn(
            f"{name}: some gold structures are not in the set of {layer.present_structure!r}, and "
            "are left out. Check its settings: a set of trees may exclude arcs by their "
            "direction or length.",
            LatentWarning,
            stacklevel=4,
        )
    return batch.vectors, backprop
