"""``spacy latent init``: a structure into a config that spaCy made."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TextIO

import typer
from wasabi import color, msg

from spacy_latent.cli.failure import fail

if TYPE_CHECKING:
    from spacy.language import Language
    from thinc.api import Config

    from spacy_latent.layers.rationale_reader import RationaleReader
    from spacy_latent.structures.base import Structure

STREAM = "-"
Block = dict[str, Any]
EXAMPLES = """
Examples:

  spacy init config base.cfg --pipeline textcat

  spacy latent init base.cfg config.cfg --structure projective-tree --estimator sparsemap

  spacy latent init base.cfg config.cfg -c ner -c textcat --shared

  spacy latent init config.cfg config.cfg --force --estimator implicit-mle

  spacy latent init base.cfg config.cfg --crf-ner

  spacy latent init base.cfg config.cfg --rationale
"""
LATENT = "spacy-latent.LatentTok2Vec.v1"
CLASSIFIER = "spacy-latent.LatentTextClassifier.v2"
RATIONALE = "spacy-latent.RationaleTextCat.v2"
LISTENER = "spacy-latent.LatentListener.v1"
ENCODER = "latent_encoder"
SHARED = ("tok2vec", "transformer", "curated_transformer")
TEXTCATS = ("textcat", "textcat_multilabel")
OWNERS = (ENCODER, *(f"latent_{name}" for name in TEXTCATS))
NERS = ("ner", "beam_ner")
# What a new one gets where the user names none.
STRUCTURE, ESTIMATOR = "spanning-tree", "marginals"
# Those of a rationale: so many words, and each with a weight of 1.
CHOICE, CHOOSING = "k-of-n", "sparsemap"
# Where its words are on a doc, and the tags of a sequence that chooses: outside and inside.
SPANS, TAGS = "rationale", 2
# Of single words: what one word should learn of another has to come over the structure.
EMBEDDER: Block = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 96,
    "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
    "rows": [5000, 1000, 2500, 2500],
    "include_static_vectors": False,
}
OF_WORDS = ("spacy.MultiHashEmbed.", "spacy.CharacterEmbed.", "spacy-latent.MultiHashEmbed.")
# Of a rationale: its selector may know the whole text, if nothing else is there to read it.
SELECTOR: Block = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 96,
    "depth": 2,
    "embed_size": 5000,
    "window_size": 1,
    "maxout_pieces": 3,
    "subword_features": True,
}
CONTEXT: Block = {"@misc": "spacy-latent.BiLSTM.v1", "hidden_width": 64, "layers": 1}


def init_cli(
    config: str = typer.Argument(..., help="Config, as 'spacy init config' makes one; - for stdin"),
    output: str = typer.Argument(..., help="Where to write the new one; - for standard output"),
    component: Optional[list[str]] = typer.Option(  # noqa: UP045 (typer < 0.12 on Python 3.10)
        None,
        "--component",
        "-c",
        help="Component to change; may be repeated. Not needed if one alone can be",
    ),
    structure: Optional[str] = typer.Option(  # noqa: UP045
        None,
        "--structure",
        "-s",
        help="What is latent; if not given, what the config has, or spanning-tree, or k-of-n "
        "with --rationale",
    ),
    estimator: Optional[str] = typer.Option(  # noqa: UP045
        None,
        "--estimator",
        "-e",
        help="How the loss's gradient reaches the structure; if not given, what the config has, "
        "or marginals, or sparsemap with --rationale",
    ),
    shared: bool = typer.Option(
        False,
        "--shared",
        help="One for all of them: a latent_encoder that they listen to",
    ),
    crf_ner: bool = typer.Option(
        False, "--crf-ner", help="Make a crf_ner of ner, over the same embedder; nothing is latent"
    ),
    rationale: bool = typer.Option(
        False, "--rationale", help="Make of textcat one that reads only the words that it chose"
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUTPUT"),
    code: Optional[Path] = typer.Option(None, "--code", help="Python file to import"),  # noqa: UP045
) -> None:
    """Put a latent structure into a config: around the embedder of components that have one. A
    component that has a structure already gets another structure or estimator. Prints what it
    changed."""
    from confection import ConfigValidationError
    from spacy.util import load_config
    from thinc.api import Config

    from spacy_latent.cli.corpus import import_code
    from spacy_latent.errors import LatentError
    from spacy_latent.pipeline.diagnosis import about_sentences

    import_code(code)
    if crf_ner and (rationale or shared or structure or estimator):
        fail(
            "--crf-ner goes with --component alone",
            "Its structure is a chain of tags, which it learns from annotated ones. Leave out "
            "--structure, --estimator, --shared and --rationale.",
        )
    if rationale and shared:
        fail(
            "--rationale and --shared exclude each other",
            "A rationale belongs to the one classifier that reads it. Leave out one of them.",
        )
    if output != STREAM and Path(output).exists() and not force:
        fail(f"{output} exists", "Give --force to overwrite it, or another name.")
    if config != STREAM and not Path(config).is_file():
        fail(f"{config} does not exist", "Make one with 'spacy init config'.")
    try:
        before = filled(
            Config().from_str(sys.stdin.read(), interpolate=False)
            if config == STREAM
            else load_config(Path(config), interpolate=False)
        )
        names = component or []
        if crf_ner:
            made = with_crf_ner(before, names)
        elif rationale:
            made = with_rationale(before, names, structure, estimator)
        else:
            made = with_structure(before, names, structure, estimator, shared)
        nlp = loaded(made)
        after = nlp.config
    except (LatentError, ConfigValidationError, ValueError, OSError) as error:
        fail("This config cannot be given a structure", str(error))
    if output == STREAM:
        print(after.to_str())
    else:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        after.to_disk(output)
    print_changes(before, after, to_stderr=output == STREAM)
    for finding in about_sentences(nlp):
        print(f"{finding.level.capitalize()}: {finding.text}", file=stream(output == STREAM))
    if output != STREAM:
        msg.good(f"Saved {output}", "Try it with 'spacy latent debug', then 'spacy train'.")


def filled(config: Config) -> Config:
    """With all defaults, as it is after the pipeline was made of it, which shows that it can be."""
    return loaded(config).config


def loaded(config: Config) -> Language:
    from spacy.util import load_model_from_config

    return load_model_from_config(config, auto_fill=True, validate=True)


def with_structure(
    config: Config,
    names: list[str],
    structure: str | None = None,
    estimator: str | None = None,
    shared: bool = False,
) -> Config:
    """A copy of a filled config in which the embedders of components stand under a structure. What
    has one already gets this structure and this estimator in their place.

    names: the components; empty for the only one that can be changed. One that listens to a
        ``latent_encoder`` stands for that.
    structure, estimator: registered names, or what :func:`registered_name` knows them by; None for
        what there is, in a component without a structure SpanningTree and Marginals.
    shared: one ``latent_encoder`` for all of them.
    """
    from spacy_latent.errors import LatentError

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
                f"{', '.join(having.values())} has a latent structure already, and "
                f"{', '.join(without)} has none. Change them in two steps."
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
        check_component(components, pipeline, name)
    blocks = layer_blocks(structure or STRUCTURE, estimator or ESTIMATOR)
    default = next(filter(None, (embedder_of(components[name]) for name in names)), EMBEDDER)
    embedders = [embedder_or_new(components[name], default) for name in names]
    if needs_loss(blocks) and not shared:
        for name, block in zip(names, embedders):
            with_own_loss(name, components[name], block, blocks)
        return changed
    if not shared:
        for block in embedders:
            around_embedder(block, blocks)
        return changed
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
    around_embedder(encoder["model"], blocks)
    width = below.get("width", below.get("encode", {}).get("width"))
    if width is None:
        # A transformer's is known when its weights are there, too late for listeners.
        width = encoder["model"]["width"] = EMBEDDER["width"]
    for block in embedders:
        block.clear()
        block.update({"@architectures": LISTENER, "width": width, "upstream": ENCODER})
    components[ENCODER] = encoder
    pipeline.insert(min(pipeline.index(name) for name in names), ENCODER)
    return changed


def with_other(name: str, component: Block, structure: str | None, estimator: str | None) -> None:
    """Give the latent layer of a component another structure or estimator. Its scorer and composer
    stay where they go with both."""
    from spacy_latent.errors import LatentError

    block = latent_block(component["model"])
    assert block is not None
    place = f"components.{name}.{path_of(component, block)}"
    if structure is None and estimator is None:
        raise LatentError(
            f"{name} has a latent structure already: {named(block, 'structure')}, with "
            f"{named(block, 'estimator')}. Name another with --structure or --estimator, which "
            f"replaces the whole block [{place}.structure] or [{place}.estimator]."
        )
    layers = replaced(block, structure, estimator)
    above = block["@architectures"]
    if needs_loss(layers) and above == LATENT:
        with_own_loss(name, component, block["tok2vec"], layers)
        return
    block.update(layers)


def replaced(block: Block, structure: str | None, estimator: str | None) -> dict[str, Block]:
    """Blocks of structure, estimator, scorer and, where there is one, composer for the block of a
    layer that has others."""
    from spacy.util import registry

    from spacy_latent.errors import IncompatiblePair
    from spacy_latent.layers.fitting import check_parts, fitting_layers

    layers = {
        argument: dict(block[argument])
        for argument in ("structure", "estimator", "scorer", "composer")
        if isinstance(block.get(argument), dict)
    }
    chooses = "composer" not in block
    if structure is not None:
        layers["structure"] = structure_block(structure, chooses)
    if estimator is not None:
        layers["estimator"] = estimator_block(estimator, chooses)
    for argument, name in zip(("structure", "estimator"), defaults(block)):
        layers.setdefault(argument, {"@misc": name})
    made = registry.resolve(layers)
    composer = reader(made["structure"]) if chooses else made.get("composer")
    if "scorer" in made and composer is not None:
        try:
            check_parts(made["structure"], made["estimator"], made["scorer"], composer)
        except IncompatiblePair:
            pass
        else:
            return layers
    fitting = fitting_layers(made["structure"], made["estimator"])
    scorer = tagged(fitting[0]) if chooses else {"@misc": fitting[0]}
    new: dict[str, Block] = {"scorer": scorer, "composer": {"@misc": fitting[1]}}
    new = over(block["tok2vec"], new)
    return {**layers, **{argument: new[argument] for argument in new if argument in block}}


def defaults(block: Block) -> tuple[str, str]:
    """Registered names of the structure and the estimator that a layer has where it names none."""
    kind = str(block["@architectures"]).split(".")[1]
    structure, estimator = {
        "RationaleTextCat": ("KOfN", "StraightThrough"),
        "LatentTextClassifier": ("SpanningTree", "ScoreFunction"),
        "AlignedPairTextCat": ("OneToOneAlignment", "SparseMAP"),
    }.get(kind, ("SpanningTree", "Marginals"))
    return f"spacy-latent.{structure}.v1", f"spacy-latent.{estimator}.v1"


def reader(structure: Structure) -> partial[RationaleReader]:
    """What has the place of a composer in a rationale."""
    from spacy_latent.layers.rationale_reader import RationaleReader

    return partial(RationaleReader, choice=structure.parts)


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


def with_crf_ner(config: Config, names: list[str]) -> Config:
    """A copy of a filled config in which ``crf_ner`` has the place and the embedder of ``ner``.

    names: the components; empty for every one of that kind.
    """
    from spacy_latent.errors import LatentError

    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    pipeline: list[str] = changed["nlp"]["pipeline"]
    names = names or [name for name in pipeline if components[name].get("factory") in NERS]
    if not names:
        raise LatentError(
            f"None of {', '.join(pipeline) or 'its components'} is an ner. Begin with 'spacy init "
            "config --pipeline ner'."
        )
    for name in names:
        check_there(components, pipeline, name)
        component = components[name]
        if component.get("factory") not in NERS:
            raise LatentError(
                f"{name} is {component.get('factory', 'taken from a trained pipeline')}; "
                "--crf-ner replaces ner alone."
            )
        embedder = embedder_of(component)
        if embedder is None:
            raise LatentError(f"The model of {name} has no block 'tok2vec' for crf_ner to read.")
        if has_latent(component["model"]):
            raise LatentError(
                f"{name} has a latent structure already. Give --crf-ner the config before that, "
                "and put a structure under crf_ner afterwards."
            )
        keys = ("incorrect_spans_key", "scorer")
        components[name] = {
            "factory": "crf_ner",
            # Confidences are made of them.
            "annotate": "probabilities",
            **{key: component[key] for key in keys if key in component},
            "model": {
                "@architectures": "spacy-latent.CrfTagger.v2",
                "hidden_width": 64,
                "tok2vec": dict(embedder),
            },
        }
    return changed


def with_rationale(
    config: Config, names: list[str], structure: str | None = None, estimator: str | None = None
) -> Config:
    """A copy of a filled config in which a text classifier reads only the words that it chose.

    names: the components; empty for the only ``textcat`` or ``textcat_multilabel``. Its embedder
        becomes the selector's; a bag of words gets one.
    structure, estimator: as of :func:`with_structure`; None for KOfN and SparseMAP.
    """
    from spacy_latent.errors import LatentError

    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    pipeline: list[str] = changed["nlp"]["pipeline"]
    able = [name for name in pipeline if components[name].get("factory") in TEXTCATS]
    if not names and len(able) > 1:
        options = ", ".join(f"--component {name}" for name in able)
        raise LatentError(f"Several components could give a rationale. Name one: {options}.")
    if not names and not able:
        raise LatentError(
            f"None of {', '.join(pipeline) or 'its components'} is a {' or a '.join(TEXTCATS)}. "
            "Begin with 'spacy init config --pipeline textcat'."
        )
    layers = {
        "structure": structure_block(structure or CHOICE, chooses=True),
        "estimator": estimator_block(estimator or CHOOSING, chooses=True),
    }
    for name in names or able:
        check_there(components, pipeline, name)
        component = components[name]
        if component.get("factory") not in TEXTCATS or has_latent(component.get("model", {})):
            raise LatentError(
                f"{name} is no {' or '.join(TEXTCATS)} as spaCy makes one, of which a rationale "
                "could be made."
            )
        components[name] = rationale_component(component, layers)
    changed["training"]["score_weights"]["rationale_rate"] = 0.0
    return changed


def rationale_component(component: Block, layers: dict[str, Block]) -> Block:
    from spacy.util import registry

    from spacy_latent.layers.fitting import fitting_layers

    structure = registry.resolve({"made": layers["structure"]})["made"]
    estimator = registry.resolve({"made": layers["estimator"]})["made"]
    which = TEXTCATS.index(component["factory"])
    return {
        "factory": OWNERS[1 + which],
        "threshold": component.get("threshold", 0.5 * which),
        "spans_key": SPANS,
        "scorer": {
            "@scorers": "spacy-latent.rationale_scorer.v1",
            "spans_key": SPANS,
            "cats_scorer": component.get(
                "scorer", {"@scorers": f"spacy.{TEXTCATS[which]}_scorer.v2"}
            ),
        },
        "model": {
            "@architectures": RATIONALE,
            "exclusive_classes": component["model"].get("exclusive_classes", not which),
            "tok2vec": deepcopy(dict(embedder_of(component) or SELECTOR)),
            # Of single words, for the reader, who may know nothing of those that were not chosen.
            "embed": deepcopy(EMBEDDER),
            **deepcopy(layers),
            "scorer": tagged(fitting_layers(structure, estimator)[0]),
        },
    }


def choose_component(components: dict[str, Block], pipeline: list[str]) -> str:
    """The only one that a structure can be put into, or that has one."""
    from spacy_latent.errors import LatentError

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
        raise LatentError(f"Several components could get a structure. Give one: {options}.")
    raise LatentError(
        f"None of {', '.join(pipeline) or 'its components'} has an embedder of tokens. Add one "
        "that does, such as textcat, ner, spancat or tagger."
    )


def check_there(components: dict[str, Block], pipeline: list[str], name: str) -> None:
    from spacy_latent.errors import LatentError

    if name not in components or name not in pipeline:
        raise LatentError(
            f"There is no component {name!r}. The pipeline has {', '.join(pipeline)}."
        )


def check_component(components: dict[str, Block], pipeline: list[str], name: str) -> None:
    from spacy_latent.errors import LatentError

    check_there(components, pipeline, name)
    why = refusal(name, components[name])
    if why is not None:
        raise LatentError(why)


def refusal(name: str, component: Block) -> str | None:
    """Why a component cannot be changed, or None."""
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
        "use_reduce_max": True,
        "use_reduce_mean": True,
        "tok2vec": deepcopy(dict(default)),
    }
    embedder: Block = component["model"]["tok2vec"]
    return embedder


def around_embedder(block: Block, layers: dict[str, Block]) -> None:
    """Make the block of an embedder that of a latent layer over it."""
    below = dict(block)
    block.clear()
    block.update({"@architectures": LATENT, "tok2vec": below, **over(below, layers)})
    if of_words(below):
        block["residual"] = False


def of_words(embedder: Block) -> bool:
    """Whether its vectors say nothing of the words around."""
    return str(embedder["@architectures"]).startswith(OF_WORDS)


def over(embedder: Block, layers: dict[str, Block]) -> dict[str, Block]:
    """Blocks of layers for this embedder: if it reads single words, the scorer sees the others."""
    made = deepcopy(layers)
    if of_words(embedder) and takes(made["scorer"]["@misc"], "encoder"):
        made["scorer"]["encoder"] = dict(CONTEXT)
    return made


def needs_loss(layers: dict[str, Block]) -> bool:
    """Whether the estimator asks for the loss of each structure."""
    from spacy.util import registry

    return bool(registry.misc.get(layers["estimator"]["@misc"]).needs_loss)


def with_own_loss(name: str, component: Block, embedder: Block, layers: dict[str, Block]) -> None:
    """Make a text classifier over this embedder that which has a loss for each structure."""
    from spacy_latent.errors import LatentError

    if component["factory"] not in TEXTCATS:
        raise LatentError(
            f"{name} cannot learn by {layers['estimator']['@misc']}, which needs the loss of each "
            f"structure. Of spaCy's components {' and '.join(TEXTCATS)} have one that does, with a "
            "structure of their own. Take another estimator for it, such as marginals, sparsemap "
            "or implicit-mle."
        )
    classes = component["factory"] == "textcat"
    model = component["model"]
    component["factory"] = OWNERS[1 + TEXTCATS.index(component["factory"])]
    component["model"] = {
        "@architectures": CLASSIFIER,
        "exclusive_classes": model.get("exclusive_classes", classes),
        "tok2vec": dict(embedder),
        **over(embedder, layers),
    }


def layer_blocks(structure: str, estimator: str) -> dict[str, Block]:
    """Blocks of a structure and an estimator of these names, with a scorer and a composer that go
    with both."""
    from spacy.util import registry

    from spacy_latent.layers.fitting import fitting_layers

    blocks = {"structure": structure_block(structure), "estimator": estimator_block(estimator)}
    made = registry.resolve(blocks)
    scorer, composer = fitting_layers(made["structure"], made["estimator"])
    return {**blocks, "scorer": {"@misc": scorer}, "composer": {"@misc": composer}}


def structure_block(given: str, chooses: bool = False) -> Block:
    """chooses: whether the structure is one of words for a rationale, of which the others are not
    read."""
    from spacy_latent.structures.base import Structure

    name = registered_name(given, "structure", Structure)
    return tagged(name) if chooses else {"@misc": name}


def tagged(name: str) -> Block:
    """The block of a structure or scorer that chooses words, by two tags if it is one of tags."""
    return {"@misc": name, **({"num_tags": TAGS} if takes(name, "num_tags") else {})}


def estimator_block(given: str, chooses: bool = False) -> Block:
    """chooses: as of :func:`structure_block`."""
    from spacy_latent.estimators.base import Estimator

    block: Block = {"@misc": registered_name(given, "estimator", Estimator)}
    if takes(block["@misc"], "control_variate"):
        # Without one the gradient of a single sample is mostly noise.
        block["control_variate"] = {"@misc": "spacy-latent.SelfCritical.v1"}
    if chooses and takes(block["@misc"], "prediction"):
        # Else words that hardly have a weight are read, too.
        block["prediction"] = "map"
    return block


def takes(name: str, setting: str) -> bool:
    """Whether a registered name has this setting."""
    from spacy.util import registry

    return setting in inspect.signature(registry.misc.get(name)).parameters


def registered_name(given: str, argument: str, base: type) -> str:
    """The full name of a structure or estimator: ``spacy-latent.SpanningTree.v1`` is found as
    SpanningTree, spanning-tree and spanning_tree, in its last version."""
    from spacy.util import registry

    from spacy_latent.errors import LatentError

    names = sorted(
        name
        for name in registry.misc.get_all()
        if isinstance(kind := registry.misc.get(name), type) and issubclass(kind, base)
    )
    if given in names:
        return given
    same = [name for name in names if short_name(name) == short_name(given)]
    if same:
        return max(same, key=lambda name: int(name.rpartition(".v")[2] or 0))
    known = {short_name(name): name.split(".")[-2] for name in names}
    near = difflib.get_close_matches(short_name(given), known, n=1)
    meant = f"Did you mean {known[near[0]]}? " if near else ""
    raise LatentError(
        f"There is no {argument} {given!r}. {meant}There are {', '.join(sorted(known.values()))}."
    )


def short_name(name: str) -> str:
    """What of a name tells it from others, without spelling."""
    return re.sub(r"[-_]", "", re.sub(r"^spacy-latent\.|\.v\d+$", "", name)).lower()


def print_changes(before: Config, after: Config, to_stderr: bool = False) -> None:
    """Lines that are gone or new, with the sections that they are in."""
    out = stream(to_stderr)
    colored = out.isatty()
    lines = difflib.unified_diff(
        before.to_str().splitlines(), after.to_str().splitlines(), "before", "after", lineterm=""
    )
    for line in lines:
        shade = {"+": "green", "-": "red"}.get(line[:1]) if colored else None
        print(color(line, fg=shade) if shade else line, file=out)


def stream(to_stderr: bool) -> TextIO:
    return sys.stderr if to_stderr else sys.stdout
