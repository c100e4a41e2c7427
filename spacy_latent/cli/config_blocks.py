"""Blocks of a config as ``spacy latent init`` reads and makes them."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from spacy_latent.corpora.text_pairs import PAIR_SPANS, PAIRS

Block = dict[str, Any]
LATENT = "spacy-latent.LatentTok2Vec.v1"
CLASSIFIER = "spacy-latent.LatentTextClassifier.v2"
# Of what a latent layer is made, as its settings are called.
LAYERS = ("structure", "estimator", "scorer", "composer")
LISTENER = "spacy-latent.LatentListener.v1"
ENCODER = "latent_encoder"
SHARED = ("tok2vec", "transformer", "curated_transformer")
TEXTCATS = ("textcat", "textcat_multilabel")
OWNERS = (ENCODER, *(f"latent_{name}" for name in TEXTCATS))
# Of single words: what one word should learn of another has to come over the structure.
EMBEDDER: Block = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 96,
    "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
    "rows": [5000, 1000, 2500, 2500],
    "include_static_vectors": False,
}
OF_WORDS = ("spacy.MultiHashEmbed.", "spacy.CharacterEmbed.", "spacy-latent.MultiHashEmbed.")
CONTEXT: Block = {"@misc": "spacy-latent.BiLSTM.v1", "hidden_width": 64, "layers": 1}
# Of a sequence of tags that chooses words: outside and inside.
TAGS = 2
# The share of words that a relaxed mask chooses.
RATE = 0.2
# Over a pre-trained encoder, whose learning rate has to be small: a scorer begins with random
# weights. As in the configs over a transformer.
FASTER_SCORER: Block = {"scorer_learn_rate": 5.0}


def named(block: Block, argument: str) -> str:
    part = block.get(argument)
    return short(str(part.get("@misc"))) if isinstance(part, dict) else "the default"


def short(name: str) -> str:
    """Of a registered name what users call it by."""
    return name.removeprefix("spacy-latent.").rpartition(".v")[0] or name


def path_of(component: Block, wanted: Block) -> str:
    """The name of a block inside a component, as sections of a config have it."""
    level = [("", component)]
    while level:
        for path, block in level:
            if block is wanted:
                return path
        level = [
            (f"{path}.{key}".lstrip("."), value)
            for path, block in level
            for key, value in block.items()
            if isinstance(value, dict)
        ]
    raise KeyError


def latent_block(block: Block) -> Block | None:
    """The block of the latent layer in a model: the one that has a structure and an estimator, be
    they null, for the defaults."""
    level = [block]
    while level:
        for each in level:
            if {"structure", "estimator", "scorer"} <= each.keys():
                return each
        level = [value for each in level for value in each.values() if isinstance(value, dict)]
    return None


def owner_of(components: dict[str, Block], pipeline: list[str], name: str) -> str | None:
    """The component that has the structure of this one: itself, or what it listens to; None where
    it has none."""
    if name not in components or name not in pipeline or "source" in components[name]:
        return None
    model = components[name].get("model", {})
    if latent_block(model) is not None:
        return name
    heard = listens_to(model)
    if heard in components and latent_block(components[heard].get("model", {})) is not None:
        return heard
    return None


def listens_to(block: Block) -> str | None:
    """The upstream of a latent listener inside a block."""
    if block.get("@architectures") == LISTENER:
        return str(block.get("upstream", ENCODER))
    inner = (listens_to(value) for value in block.values() if isinstance(value, dict))
    return next(filter(None, inner), None)


def check_there(components: dict[str, Block], pipeline: list[str], name: str) -> None:
    from spacy_latent.errors import LatentError

    if name not in components or name not in pipeline:
        raise LatentError(
            f"There is no component {name!r}. The pipeline has {', '.join(pipeline)}."
        )


def has_latent(block: Block) -> bool:
    return any(
        value.get("@architectures") in (LATENT, LISTENER) or has_latent(value)
        for value in block.values()
        if isinstance(value, dict)
    )


def embedder_of(component: Block) -> Block | None:
    """The block of the embedder in a component's model: the tok2vec that is nearest to the top."""
    level: list[Block] = [component.get("model", {})]
    while level:
        for block in level:
            found = block.get("tok2vec")
            if isinstance(found, dict) and "@architectures" in found:
                return found
        level = [value for block in level for value in block.values() if isinstance(value, dict)]
    return None


def embedder_or_new(component: Block, default: Block) -> Block:
    """As :func:`embedder_of`. A text classifier without one, such as a bag of words, becomes
    one that reads the vectors of tokens.

    default: the embedder that it gets.
    """
    found = embedder_of(component)
    if found is not None:
        return found
    classes = component["factory"] == "textcat"
    component["model"] = {
        "@architectures": "spacy.TextCatReduce.v1",
        "exclusive_classes": component["model"].get("exclusive_classes", classes),
        "use_reduce_first": False,
        "use_reduce_last": False,
        # It fails where one text of a batch is empty, which a bag of words took.
        "use_reduce_max": False,
        "use_reduce_mean": True,
        "tok2vec": deepcopy(dict(default)),
    }
    embedder: Block = component["model"]["tok2vec"]
    return embedder


def around_embedder(block: Block, layers: dict[str, Block]) -> None:
    """Make the block of an embedder that of a latent layer over it."""
    below = dict(block)
    block.clear()
    made = {"tok2vec": below, **over(below, layers), **rates(below)}
    block.update({"@architectures": LATENT, **made})
    if of_words(below):
        block["residual"] = False


def of_words(embedder: Block) -> bool:
    """Whether its vectors say nothing of the words around."""
    return str(embedder["@architectures"]).startswith(OF_WORDS)


def is_pretrained(embedder: Block) -> bool:
    """Whether it is a transformer, or listens to one."""
    return "transformer" in str(embedder["@architectures"]).lower()


def rates(embedder: Block) -> Block:
    """Settings of learning rates in the block of a latent layer over this embedder, where they are
    not the default."""
    return dict(FASTER_SCORER) if is_pretrained(embedder) else {}


def block_of(config: Block, name: str) -> Any:
    """What a config has under a dot name; None for nothing."""
    block: Any = config
    for part in name.split("."):
        block = block.get(part) if isinstance(block, dict) else None
    return block


def over(embedder: Block, layers: dict[str, Block]) -> dict[str, Block]:
    """Blocks of layers for this embedder: if it reads single words, the scorer sees the others."""
    made = deepcopy(layers)
    if of_words(embedder) and takes(made["scorer"]["@misc"], "encoder"):
        made["scorer"]["encoder"] = dict(CONTEXT)
    return made


def needs_loss(layers: dict[str, Block]) -> bool:
    """Whether the estimator, or one before it in training, asks for the loss of each structure."""
    from spacy.util import registry

    made = registry.resolve({"made": layers["estimator"]})["made"]
    return any(stage.needs_loss for stage in (made, *(stage for _, stage in made.stages)))


def layer_blocks(structure: str, estimator: str) -> dict[str, Block]:
    """Blocks of a structure and an estimator of these names, with a scorer and a composer that go
    with both."""
    from spacy.util import registry

    from spacy_latent.layers.fitting import fitting_layers

    made_of = structure_block(structure)
    blocks = {"structure": made_of, "estimator": estimator_block(estimator, made_of)}
    made = registry.resolve(blocks)
    scorer, composer = fitting_layers(made["structure"], made["estimator"])
    return {**blocks, "scorer": {"@misc": scorer}, "composer": {"@misc": composer}}


def check_texts(name: str, block: Block, structure: Block) -> None:
    """Refuse a structure over two texts where the component gives one, and one over a single text
    in a model that aligns two.

    name: of the component. block: of its latent layer, or of the embedder that gets one.
    structure: its block. Raises LatentError.
    """
    from spacy.util import registry

    from spacy_latent.errors import LatentError
    from spacy_latent.kinds import find_kind

    made = registry.resolve({"made": structure})["made"]
    aligns = any(place == "others" for _, place in find_kind(made.kind).axes)
    is_of_pairs = str(block["@architectures"]).startswith(PAIRS)
    if is_of_pairs and not aligns:
        raise LatentError(
            f"{name} aligns two texts, and {made.name} is over one. Take an alignment, such as "
            "one-to-one-alignment, many-to-one-alignment or monotone-alignment."
        )
    getter = (block.get("span_getter") or {}).get("@misc", "")
    if aligns and not is_of_pairs and not getter.startswith(PAIR_SPANS):
        raise LatentError(
            f"{made.name} aligns two texts, and {name} reads one. Take a structure over one text; "
            "or, for docs of two texts, make a classifier of pairs with --pairs, in which "
            "--structure then changes the alignment."
        )


def structure_block(given: str, chooses: bool = False) -> Block:
    """chooses: whether the structure is one of words for a rationale, of which the others are not
    read."""
    from spacy_latent.structures.base import Structure

    name = registered_name(given, "structure", Structure)
    return tagged(name) if chooses else {"@misc": name}


def tagged(name: str) -> Block:
    """The block of a structure or scorer that chooses words, by two tags if it is one of tags."""
    return {"@misc": name, **({"num_tags": TAGS} if takes(name, "num_tags") else {})}


def estimator_block(given: str, structure: Block, chooses: bool = False) -> Block:
    """structure: the block of what it is for. chooses: as of :func:`structure_block`."""
    from spacy.util import registry

    from spacy_latent.estimators.base import Estimator
    from spacy_latent.estimators.stochastic_mask import StochasticMask

    name = registered_name(given, "estimator", Estimator)
    block: Block = {"@misc": name}
    if takes(name, "control_variate"):
        # Without one the gradient of a single sample is mostly noise.
        block["control_variate"] = {"@misc": "spacy-latent.SelfCritical.v1"}
    if chooses and takes(name, "prediction"):
        # Else words that hardly have a weight are read, too.
        block["prediction"] = "map"
    if chooses and issubclass(registry.misc.get(name), StochasticMask):
        # Else nothing keeps it from choosing all words.
        block["rate"] = RATE
    if takes(name, "noise") and takes(name, "k") and takes(structure["@misc"], "k"):
        # That of the noise is the size of a typical structure, which is known here.
        default = inspect.signature(registry.misc.get(structure["@misc"])).parameters["k"].default
        block["k"] = structure.get("k", default)
    return block


def takes(name: str, setting: str) -> bool:
    """Whether a registered name has this setting."""
    from spacy.util import registry

    return setting in inspect.signature(registry.misc.get(name)).parameters


def registered_name(given: str, argument: str, base: type) -> str:
    """The full name of a structure or estimator: ``spacy-latent.SpanningTree.v1`` is found as
    SpanningTree, spanning-tree and spanning_tree, in its last version."""
    from spacy_latent.errors import LatentError

    names = names_of(base)
    if given in names:
        return given
    near = nearest(given, names)
    if near and short_name(near) == short_name(given):
        return near
    meant = f"Did you mean {short(near)}? " if near else ""
    known = sorted({short(name) for name in names})
    raise LatentError(f"There is no {argument} {given!r}. {meant}There are {', '.join(known)}.")


def names_of(base: type) -> list[str]:
    """Registered names of the classes of a kind, sorted."""
    from spacy.util import registry

    return sorted(
        name
        for name in registry.misc.get_all()
        if isinstance(kind := registry.misc.get(name), type) and issubclass(kind, base)
    )


def nearest(given: str, names: Iterable[str]) -> str | None:
    """Of names the one that is spelt most alike, in its last version; None where none is."""
    by_short: dict[str, list[str]] = {}
    for name in names:
        by_short.setdefault(short_name(name), []).append(name)
    near = difflib.get_close_matches(short_name(given), by_short, n=1)
    return max(by_short[near[0]], key=_version) if near else None


def _version(name: str) -> int:
    found = re.search(r"\.v(\d+)$", name)
    return int(found[1]) if found else 0


def short_name(name: str) -> str:
    """What of a name tells it from others, without spelling."""
    return re.sub(r"[-_]", "", re.sub(r"^spacy-latent\.|\.v\d+$", "", name)).lower()
