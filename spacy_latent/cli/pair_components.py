"""Classifiers of pairs of texts with which ``spacy latent init`` replaces spaCy's classifiers."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from spacy_latent.cli.config_blocks import (
    COMPOSED_PAIRS,
    EMBEDDER,
    OWNERS,
    PAIRS,
    TEXTCATS,
    Block,
    check_texts,
    composed_by_hand,
    embedder_of,
    exclusive_classes,
    layer_blocks,
    rates,
    structure_block,
    takes,
)
from spacy_latent.cli.replaced_components import classifiers, no_classifier

if TYPE_CHECKING:
    from thinc.api import Config

ALIGNMENT, LEARNING = "one-to-one-alignment", "sparsemap"
READER: Block = {
    "@readers": "spacy-latent.TextPairs.v1",
    "path": None,
    "first": "text_a",
    "second": "text_b",
    "label": "label",
    "limit": 0,
}


def with_pairs(
    config: Config, names: list[str], structure: str | None = None, estimator: str | None = None
) -> Config:
    """Return a copy of a filled config whose text classifier and corpora are for pairs of texts.

    Args:
        names: The components; empty for the only ``textcat`` or ``textcat_multilabel``. A bag of
            words becomes an embedder of single words.
        structure, estimator: See :func:`~spacy_latent.cli.added_structures.with_structure`; None is
            OneToOneAlignment and SparseMAP.
    """
    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    names = classifiers(changed, names, "read pairs", no_pairs)
    aligning = structure_block(structure or ALIGNMENT)
    for name in names:
        check_texts(name, {"@architectures": f"{PAIRS}v1"}, aligning)
    layers = layer_blocks(structure or ALIGNMENT, estimator or LEARNING)
    if takes(layers["structure"]["@misc"], "unaligned"):
        # Sentences have words without a partner in the other sentence.
        layers["structure"]["unaligned"] = True
    for name in names:
        components[name] = pair_component(components[name], layers)
    for name, reader in changed["corpora"].items():
        if str(reader.get("@readers")).startswith("spacy.Corpus."):
            changed["corpora"][name] = {**READER, "path": reader.get("path")}
    return changed


def no_pairs(name: str, component: Block) -> str | None:
    """Return the reason why a component cannot become a classifier of pairs, or None."""
    factory, model = component.get("factory"), component.get("model", {})
    architecture = str(model.get("@architectures"))
    if architecture.startswith(COMPOSED_PAIRS):
        return composed_by_hand(name, architecture)
    if architecture.startswith(PAIRS):
        return (
            f"{name} is a {factory} that reads pairs already: leave out --for pairs (or --pairs). "
            "--structure and --estimator alone change how it aligns them."
        )
    return no_classifier(name, component, "a classifier of pairs")


def pair_component(component: Block, layers: dict[str, Block]) -> Block:
    """Return the block of a classifier of pairs in place of a text classifier."""
    which = TEXTCATS.index(component["factory"])
    embedder = deepcopy(dict(embedder_of(component) or EMBEDDER))
    return {
        "factory": OWNERS[1 + which],
        "threshold": component.get("threshold", 0.5 * which),
        **({"scorer": component["scorer"]} if "scorer" in component else {}),
        "model": {
            "@architectures": f"{PAIRS}v1",
            "exclusive_classes": exclusive_classes(component),
            "tok2vec": embedder,
            **deepcopy(layers),
            **rates(embedder),
        },
    }
