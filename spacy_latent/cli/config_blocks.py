"""Blocks of a config that ``spacy latent init`` reads and creates."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from spacy_latent.corpora.text_pairs import COMPOSED_PAIRS, PAIR_SPANS, PAIRS
from spacy_latent.errors import LatentError

Block = dict[str, Any]
LATENT = "spacy-latent.LatentTok2Vec.v1"
CLASSIFIER = "spacy-latent.LatentTextClassifier.v1"
# The parts of a latent layer, each a setting with a block.
LAYERS = ("structure", "estimator", "scorer", "composer")
LISTENER = "spacy-latent.LatentListener.v1"
ENCODER = "latent_encoder"
SHARED = ("tok2vec", "transformer", "curated_transformer")
TEXTCATS = ("textcat", "textcat_multilabel")
WITH_OWN_STRUCTURES = ("crf_ner", "latent_parser", "tree_spancat")
OWNERS = (ENCODER, *(f"latent_{name}" for name in TEXTCATS))
# An embedder of single words, so that information between words has to use the structure.
EMBEDDER: Block = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 96,
    "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
    "rows": [5000, 1000, 2500, 2500],
    "include_static_vectors": False,
}
OF_WORDS = ("spacy.MultiHashEmbed.", "spacy.CharacterEmbed.", "spacy-latent.MultiHashEmbed.")
CONTEXT: Block = {"@misc": "spacy-latent.BiLSTM.v1", "hidden_width": 64, "layers": 1}
# Tags of a sequence that chooses words: outside and inside.
TAGS = 2
# The share of words that a relaxed mask chooses.
RATE = 0.2
# Settings over a pre-trained encoder. Its learning rate has to be small, but a scorer begins with
# random weights. The configs with a transformer have the same value.
FASTER_SCORER: Block = {"scorer_learn_rate": 5.0}


def named(block: Block, argument: str) -> str:
    """Return the short registered name of an argument, or "the default" without a block."""
    part = block.get(argument)
    return short(str(part.get("@misc"))) if isinstance(part, dict) else "the default"


def short(name: str) -> str:
    """Return the short name of a registered name, as users write it."""
    return name.removeprefix("spacy-latent.").rpartition(".v")[0] or name


def path_of(component: Block, wanted: Block) -> str:
    """Return the path of a block inside a component, in the notation of config sections."""
    return next(path for path, block in outer_first(component) if block is wanted)


def outer_first(block: Block) -> Iterator[tuple[str, Block]]:
    """Yield a block and all blocks inside it, level by level, with their paths."""
    found = [("", block)]
    # The list grows while it is read.
    for path, each in found:
        yield path, each
        for key, value in each.items():
            if isinstance(value, dict):
                found.append((f"{path}.{key}".lstrip("."), value))


def latent_block(block: Block) -> Block | None:
    """Return the block of the latent layer in a model.

    It is the block with a structure and an estimator. Both may be null, for the defaults.
    """
    wanted = {"structure", "estimator", "scorer"}
    return next((each for _, each in outer_first(block) if wanted <= each.keys()), None)


def owner_of(components: dict[str, Block], pipeline: list[str], name: str) -> str | None:
    """Return the component with the structure of this one: itself, its upstream, or None."""
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
    """Return the upstream of a latent listener inside a block."""
    for _, each in outer_first(block):
        if each.get("@architectures") == LISTENER:
            return str(each.get("upstream", ENCODER))
    return None


def check_there(components: dict[str, Block], pipeline: list[str], name: str) -> None:
    """Raise an error if a component is not in the config, or not in its pipeline."""
    if name not in components or name not in pipeline:
        raise LatentError(
            f"There is no component {name!r}. The pipeline has {', '.join(pipeline)}."
        )


def has_latent(model: Block) -> bool:
    """Return whether there is a latent layer, or a listener to one, inside a model."""
    inner = (each for path, each in outer_first(model) if path)
    return any(each.get("@architectures") in (LATENT, LISTENER) for each in inner)


def embedder_of(component: Block) -> Block | None:
    """Return the block of the embedder in a component's model: the outermost tok2vec."""
    for _, block in outer_first(component.get("model", {})):
        found = block.get("tok2vec")
        if isinstance(found, dict) and "@architectures" in found:
            return found
    return None


def embedder_or_new(component: Block, default: Block) -> Block:
    """Return the block of the embedder; a component without one gets a copy of the default.

    A text classifier without an embedder, such as a bag of words, becomes one that reads the
    vectors of tokens.
    """
    found = embedder_of(component)
    if found is not None:
        return found
    component["model"] = {
        "@architectures": "spacy.TextCatReduce.v1",
        "exclusive_classes": exclusive_classes(component),
        "use_reduce_first": False,
        "use_reduce_last": False,
        # The maximum fails if one text of a batch is empty, which a bag of words accepts.
        "use_reduce_max": False,
        "use_reduce_mean": True,
        "tok2vec": deepcopy(dict(default)),
    }
    embedder: Block = component["model"]["tok2vec"]
    return embedder


def exclusive_classes(component: Block) -> Any:
    """Return the setting of this name of a text classifier of spaCy's, or its default."""
    return component["model"].get("exclusive_classes", component["factory"] == "textcat")


def around_embedder(block: Block, layers: dict[str, Block], stored_as: str | None = None) -> None:
    """Turn the block of an embedder, in place, into the block of a latent layer over it.

    Args:
        layers: The blocks of structure, estimator, scorer and composer.
        stored_as: Name under which predictions store the structures; None if a component does.
    """
    below = dict(block)
    block.clear()
    block.update({"@architectures": LATENT, "tok2vec": below})
    block.update({**over(below, layers), **rates(below)})
    if of_words(below):
        block["residual"] = False
    if stored_as is not None:
        block["stored_as"] = stored_as


def stored_name(name: str, factory: str) -> str:
    """Return the name of the structures inside a component, as ``inspect_docs`` has it.

    A component with structures of its own, such as ``crf_ner``, has these under its name.
    """
    return f"{name}#2" if factory in WITH_OWN_STRUCTURES else name


def of_words(embedder: Block) -> bool:
    """Return whether the vectors of an embedder do not depend on the surrounding words."""
    return str(embedder["@architectures"]).startswith(OF_WORDS)


def is_pretrained(embedder: Block) -> bool:
    """Return whether the embedder is a transformer or listens to one."""
    return "transformer" in str(embedder["@architectures"]).lower()


def rates(embedder: Block) -> Block:
    """Return the learning rates, other than the defaults, of a latent layer over this embedder."""
    return dict(FASTER_SCORER) if is_pretrained(embedder) else {}


def block_of(config: Block, name: str) -> Any:
    """Return the value of a config with a dotted name, or None."""
    block: Any = config
    for part in name.split("."):
        block = block.get(part) if isinstance(block, dict) else None
    return block


def over(embedder: Block, layers: dict[str, Block]) -> dict[str, Block]:
    """Return the blocks of layers; over an embedder of words the scorer gets an encoder."""
    made = deepcopy(layers)
    if of_words(embedder) and takes(made["scorer"]["@misc"], "encoder"):
        made["scorer"]["encoder"] = dict(CONTEXT)
    return made


def needs_loss(layers: dict[str, Block]) -> bool:
    """Return whether a stage of the estimator needs the loss of each structure."""
    from spacy.util import registry

    made = registry.resolve({"made": layers["estimator"]})["made"]
    return any(stage.needs_loss for stage in (made, *(stage for _, stage in made.stages)))


def layer_blocks(structure: str, estimator: str) -> dict[str, Block]:
    """Return the blocks of this structure and estimator, with a compatible scorer and composer."""
    from spacy.util import registry

    from spacy_latent.layers.compatibility import compatible_layers

    made_of = structure_block(structure)
    blocks = {"structure": made_of, "estimator": estimator_block(estimator, made_of)}
    made = registry.resolve(blocks)
    scorer, composer = compatible_layers(made["structure"], made["estimator"])
    return {**blocks, "scorer": {"@misc": scorer}, "composer": {"@misc": composer}}


def check_texts(name: str, block: Block, structure: Block) -> None:
    """Check that the structure and the component need the same number of texts.

    Args:
        block: Block of its latent layer, or of the embedder that gets one.

    Raises:
        LatentError: If the structure aligns two texts and the component has one, the structure is
            over one text and the model aligns two, or the model composes two texts apart.
    """
    from spacy.util import registry

    from spacy_latent.kinds import find_kind

    if str(block["@architectures"]).startswith(COMPOSED_PAIRS):
        raise LatentError(composed_by_hand(name, str(block["@architectures"])))
    made = registry.resolve({"made": structure})["made"]
    aligns = any(place == "others" for _, place in find_kind(made.kind).axes)
    is_of_pairs = str(block["@architectures"]).startswith(PAIRS)
    if is_of_pairs and not aligns:
        raise LatentError(
            f"{name} aligns two texts, and {made.name} is a structure of one text. Give an "
            "alignment, such as one-to-one-alignment, many-to-one-alignment or "
            "monotone-alignment."
        )
    getter = (block.get("span_getter") or {}).get("@misc", "")
    if aligns and not is_of_pairs and not getter.startswith(PAIR_SPANS):
        raise LatentError(
            f"{made.name} aligns two texts, and {name} reads one. Give a structure of one text. "
            "For docs of two texts, first make a classifier of pairs with --pairs; then "
            "--structure changes its alignment."
        )


def composed_by_hand(name: str, architecture: str) -> str:
    """Return why ``init`` does not change a model that composes two texts separately."""
    return (
        f"{name} reads pairs already, and composes both texts by {architecture}. Change its layers "
        "by hand: write structure, estimator, scorer and composer under its model in the config."
    )


def structure_block(given: str, chooses: bool = False) -> Block:
    """Return the block of a structure with a name as users write it.

    Args:
        chooses: Whether it chooses the words of a rationale, and other words are not read.
    """
    from spacy_latent.structures.base import Structure

    name = registered_name(given, "structure", Structure)
    return tagged(name) if chooses else {"@misc": name}


def tagged(name: str) -> Block:
    """Return the block of a structure or scorer that chooses words."""
    return {"@misc": name, **({"num_tags": TAGS} if takes(name, "num_tags") else {})}


def estimator_block(given: str, structure: Block, chooses: bool = False) -> Block:
    """Return the block of an estimator; see :func:`structure_block`."""
    from spacy.util import registry

    from spacy_latent.estimators.base import Estimator
    from spacy_latent.estimators.stochastic_mask import StochasticMask

    name = registered_name(given, "estimator", Estimator)
    block: Block = {"@misc": name}
    if takes(name, "control_variate"):
        # Without a control variate, the gradient of a single sample is mostly noise.
        block["control_variate"] = {"@misc": "spacy-latent.SelfCritical.v1"}
    if chooses and takes(name, "prediction"):
        # Otherwise words with a weight close to 0 are read, too.
        block["prediction"] = "map"
    if chooses and issubclass(registry.misc.get(name), StochasticMask):
        # Otherwise nothing prevents the mask from choosing all words.
        block["rate"] = RATE
    if takes(name, "noise") and takes(name, "k") and takes(structure["@misc"], "k"):
        # The k of the noise is the size of a typical structure, which is known here.
        default = inspect.signature(registry.misc.get(structure["@misc"])).parameters["k"].default
        block["k"] = structure.get("k", default)
    return block


def takes(name: str, setting: str) -> bool:
    """Return whether a registered name has this setting."""
    from spacy.util import registry

    return setting in inspect.signature(registry.misc.get(name)).parameters


def registered_name(given: str, argument: str, base: type) -> str:
    """Return the full name of a structure or estimator, in its last version.

    ``spacy-latent.SpanningTree.v1`` is found as SpanningTree, spanning-tree and spanning_tree.
    """
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
    """Return the sorted registered names of the subclasses of a class."""
    from spacy.util import registry

    return sorted(
        name
        for name in registry.misc.get_all()
        if isinstance(kind := registry.misc.get(name), type) and issubclass(kind, base)
    )


def nearest(given: str, names: Iterable[str]) -> str | None:
    """Return the most similar name in its last version, or None if no name is similar."""
    by_short: dict[str, list[str]] = {}
    for name in names:
        by_short.setdefault(short_name(name), []).append(name)
    near = difflib.get_close_matches(short_name(given), by_short, n=1)
    return max(by_short[near[0]], key=_version) if near else None


def _version(name: str) -> int:
    found = re.search(r"\.v(\d+)$", name)
    return int(found[1]) if found else 0


def short_name(name: str) -> str:
    """Return a normalized name for comparisons, without prefix, version, hyphens and case."""
    return re.sub(r"[-_]", "", re.sub(r"^spacy-latent\.|\.v\d+$", "", name)).lower()
