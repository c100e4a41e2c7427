"""Configs to which ``spacy latent init`` adds a structure, or in which it changes one."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from spacy_latent.cli.config_blocks import (
    CLASSIFIER,
    EMBEDDER,
    ENCODER,
    LATENT,
    LAYERS,
    LISTENER,
    OWNERS,
    SHARED,
    TEXTCATS,
    Block,
    around_embedder,
    check_texts,
    check_there,
    embedder_of,
    embedder_or_new,
    estimator_block,
    exclusive_classes,
    has_latent,
    latent_block,
    layer_blocks,
    named,
    needs_loss,
    over,
    owner_of,
    path_of,
    rates,
    stored_name,
    structure_block,
    tagged,
)
from spacy_latent.errors import IncompatiblePair, LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from thinc.api import Config

# Defaults of a new latent layer.
STRUCTURE, ESTIMATOR = "spanning-tree", "marginals"


def filled(config: Config) -> Config:
    """Return the config with all defaults; raise an error if no pipeline can be created from it."""
    return loaded(config).config


def loaded(config: Config) -> Language:
    """Load the pipeline of a config; an error names the block that causes it."""
    from spacy.util import load_model_from_config

    from spacy_latent.cli.config_errors import errors_with_blocks

    with errors_with_blocks(config):
        return load_model_from_config(config, auto_fill=True, validate=True)


def with_refusal(config: Config) -> Config:
    """Return a copy with a callback that refuses trainings that are too short.

    Such a training would end before the last stage of the structure or estimator. The check runs
    when the config is loaded. An existing callback is not replaced.
    """
    from spacy_latent.pipeline.unreached_stages import CALLBACK

    changed = config.copy()
    if changed["nlp"].get("after_pipeline_creation") is None:
        changed["nlp"]["after_pipeline_creation"] = dict(CALLBACK)
    return changed


def with_structure(
    config: Config,
    names: list[str],
    structure: str | None = None,
    estimator: str | None = None,
    shared: bool = False,
) -> Config:
    """Return a copy of a filled config with a structure over the embedders of components.

    A component that has a structure already gets this structure and this estimator instead.

    Args:
        names: The components; empty for the only component that can be changed. A component that
            listens to a ``latent_encoder`` selects that encoder.
        structure, estimator: Registered names, or names that :func:`registered_name` accepts. None
            keeps the current one. In a component without a structure, None is SpanningTree and
            Marginals.
        shared: Use one ``latent_encoder`` for all components.
    """
    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    pipeline: list[str] = changed["nlp"]["pipeline"]
    names = names or [choose_component(components, pipeline)]
    owners = {name: owner_of(components, pipeline, name) for name in names}
    having = {owner: name for name, owner in owners.items() if owner is not None}
    if having:
        without = [name for name, owner in owners.items() if owner is None]
        if without:
            raise LatentError(
                f"{', '.join(having.values())} already has a latent structure, and "
                f"{', '.join(without)} has none. Change them in two steps, with --component."
            )
        if shared and set(having) != {ENCODER}:
            raise LatentError(
                f"{', '.join(having)} has a structure of its own. Leave out --shared to change it, "
                f"or begin with the config that it was made of for one {ENCODER}."
            )
        for name in having:
            with_other(name, components[name], structure, estimator)
        return changed
    for name in names:
        check_there(components, pipeline, name)
        if why := refusal(name, components[name]):
            raise LatentError(why)
    default = next(filter(None, (embedder_of(components[name]) for name in names)), EMBEDDER)
    embedders = [embedder_or_new(components[name], default) for name in names]
    for name, block in zip(names, embedders):
        # Check this before the search for compatible layers, which is useless otherwise.
        check_texts(name, block, structure_block(structure or STRUCTURE))
    blocks = layer_blocks(structure or STRUCTURE, estimator or ESTIMATOR)
    if shared:
        share_encoder(components, pipeline, names, embedders, blocks)
        return changed
    has_own_loss = needs_loss(blocks)
    for name, block in zip(names, embedders):
        if has_own_loss:
            with_own_loss(name, components[name], block, blocks)
        else:
            around_embedder(block, blocks, stored_name(name, components[name]["factory"]))
    return changed


def share_encoder(
    components: dict[str, Block],
    pipeline: list[str],
    names: list[str],
    embedders: list[Block],
    layers: dict[str, Block],
) -> None:
    """Put a ``latent_encoder`` over the embedder of components, which then listen to it."""
    if ENCODER in components:
        raise LatentError(
            f"The config has a {ENCODER} already, and {', '.join(names)} does not listen to it. "
            f"In place of all blocks that begin with [components.{names[0]}.model.tok2vec] put one "
            f'with @architectures = "{LISTENER}", upstream = "{ENCODER}" and its width.'
        )
    below = deepcopy(dict(embedders[0]))
    if any(dict(block) != below for block in embedders[1:]):
        raise LatentError(
            f"{', '.join(names)} have different embedders, and one {ENCODER} has one. Leave out "
            "--shared, or give them the same."
        )
    encoder: Block = {"factory": ENCODER, "model": dict(below)}
    around_embedder(encoder["model"], layers)
    width = below.get("width", below.get("encode", {}).get("width"))
    if width is None:
        # The width of a transformer is known only with its weights, too late for listeners.
        width = encoder["model"]["width"] = EMBEDDER["width"]
    for block in embedders:
        block.clear()
        block.update({"@architectures": LISTENER, "width": width, "upstream": ENCODER})
    components[ENCODER] = encoder
    pipeline.insert(min(pipeline.index(name) for name in names), ENCODER)


def with_other(name: str, component: Block, structure: str | None, estimator: str | None) -> None:
    """Give the latent layer of a component another structure or estimator.

    The scorer and the composer are kept if they are compatible with both.
    """
    block = latent_block(component["model"])
    assert block is not None
    place = f"components.{name}.{path_of(component, block)}"
    if structure is None and estimator is None:
        raise LatentError(
            f"{name} has a latent structure already: {named(block, 'structure')}, with "
            f"{named(block, 'estimator')}. Give another one with --structure or --estimator, "
            f"which replaces the whole block [{place}.structure] or [{place}.estimator]."
        )
    if structure is not None:
        check_texts(name, block, structure_block(structure, "composer" not in block))
    layers = replaced(block, structure, estimator)
    if needs_loss(layers) and block["@architectures"] == LATENT:
        with_own_loss(name, component, block["tok2vec"], layers)
    else:
        block.update(layers)


def replaced(block: Block, structure: str | None, estimator: str | None) -> dict[str, Block]:
    """Return the new blocks of structure, estimator, scorer and possibly composer of a layer."""
    from spacy.util import registry

    from spacy_latent.layers.compatibility import check_parts, compatible_layers
    from spacy_latent.layers.rationale_reader import RationaleReader

    layers = {part: dict(block[part]) for part in LAYERS if isinstance(block.get(part), dict)}
    chooses = "composer" not in block
    for argument, name in zip(("structure", "estimator"), defaults(block)):
        layers.setdefault(argument, {"@misc": name})
    if structure is not None:
        layers["structure"] = structure_block(structure, chooses)
    if estimator is not None:
        layers["estimator"] = estimator_block(estimator, layers["structure"], chooses)
    made = registry.resolve(layers)
    composer: Any = made.get("composer")
    if chooses:
        # A rationale has its reader in the place of a composer.
        composer = partial(RationaleReader, choice=made["structure"].parts)
    if "scorer" in made and composer is not None:
        try:
            check_parts(made["structure"], made["estimator"], made["scorer"], composer)
        except IncompatiblePair:
            pass
        else:
            return layers
    fitting = compatible_layers(made["structure"], made["estimator"])
    scorer = tagged(fitting[0]) if chooses else {"@misc": fitting[0]}
    new = over(block["tok2vec"], {"scorer": scorer, "composer": {"@misc": fitting[1]}})
    return {**layers, **{argument: new[argument] for argument in new if argument in block}}


def defaults(block: Block) -> tuple[str, str]:
    """Return the registered names of the default structure and estimator of a layer."""
    kind = str(block["@architectures"]).split(".")[1]
    structure, estimator = {
        "RationaleTextCat": ("KOfN", "StraightThrough"),
        "LatentTextClassifier": ("SpanningTree", "ScoreFunction"),
        "AlignedPairTextCat": ("OneToOneAlignment", "SparseMAP"),
    }.get(kind, ("SpanningTree", "Marginals"))
    return f"spacy-latent.{structure}.v1", f"spacy-latent.{estimator}.v1"


def choose_component(components: dict[str, Block], pipeline: list[str]) -> str:
    """Return the only component that has a structure or can get one."""
    able = [
        name
        for name in pipeline
        if owner_of(components, pipeline, name) == name
        or refusal(name, components.get(name, {})) is None
    ]
    if len(able) == 1:
        return able[0]
    if able:
        options = ", ".join(f"--component {name}" for name in able)
        raise LatentError(f"Several components could get a structure. Name one: {options}.")
    raise LatentError(
        f"None of {', '.join(pipeline) or 'its components'} has an embedder of tokens. Add a "
        "component that has one, such as textcat, ner, spancat or tagger."
    )


def refusal(name: str, component: Block) -> str | None:
    """Return the reason why a component cannot be changed, or None."""
    if "source" in component:
        return f"{name} is taken from a trained pipeline as it is. Train one of its own."
    if name in SHARED or component.get("factory") in SHARED:
        return f"{name} is what others listen to. Name these, with --shared for one structure."
    model = component.get("model", {})
    if component.get("factory") in OWNERS or has_latent(model):
        return f"{name} has a latent structure already, in blocks that 'init' does not know."
    if embedder_of(component) is None and component.get("factory") not in TEXTCATS:
        return f"The model of {name} has no block 'tok2vec', which a structure could stand on."
    return None


def with_own_loss(name: str, component: Block, embedder: Block, layers: dict[str, Block]) -> None:
    """Replace a text classifier over this embedder by the one with a loss for each structure."""
    if component["factory"] not in TEXTCATS:
        raise LatentError(
            f"{name} cannot learn with {layers['estimator']['@misc']}, which needs the loss of "
            f"each structure. Of spaCy's components {' and '.join(TEXTCATS)} can compute it, if "
            "each has a structure of its own. Use another estimator, such as marginals, "
            "sparsemap or implicit-mle."
        )
    component["model"] = {
        "@architectures": CLASSIFIER,
        "exclusive_classes": exclusive_classes(component),
        "tok2vec": dict(embedder),
        **over(embedder, layers),
        **rates(embedder),
    }
    component["factory"] = OWNERS[1 + TEXTCATS.index(component["factory"])]
