"""``spacy latent init``: a structure into a config that spaCy made."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer
from wasabi import color, msg

from spacy_latent.cli.failure import fail

if TYPE_CHECKING:
    from thinc.api import Config

STREAM = "-"
Block = dict[str, Any]
EXAMPLES = """
Examples:

  spacy init config base.cfg --pipeline textcat

  spacy latent init base.cfg config.cfg --structure projective-tree --estimator sparsemap

  spacy latent init base.cfg config.cfg -c ner -c textcat --shared
"""
LATENT = "spacy-latent.LatentTok2Vec.v1"
CLASSIFIER = "spacy-latent.LatentTextClassifier.v2"
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


def init_cli(
    config: str = typer.Argument(..., help="Config, as 'spacy init config' makes one; - for stdin"),
    output: str = typer.Argument(..., help="Where to write the new one; - for standard output"),
    component: Optional[list[str]] = typer.Option(  # noqa: UP045 (typer < 0.12 on Python 3.10)
        None,
        "--component",
        "-c",
        help="Component to change; may be repeated. Not needed if one alone can be",
    ),
    structure: str = typer.Option("spanning-tree", "--structure", "-s", help="What is latent"),
    estimator: str = typer.Option(
        "marginals", "--estimator", "-e", help="How the loss's gradient reaches the structure"
    ),
    shared: bool = typer.Option(
        False,
        "--shared",
        help="One for all of them: a latent_encoder that they listen to",
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUTPUT"),
    code: Optional[Path] = typer.Option(None, "--code", help="Python file to import"),  # noqa: UP045
) -> None:
    """Put a latent structure into a config: around the embedder of components that have one. Prints
    what it changed."""
    from confection import ConfigValidationError
    from spacy.util import load_config
    from thinc.api import Config

    from spacy_latent.cli.corpus import import_code
    from spacy_latent.errors import LatentError

    import_code(code)
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
        made = with_structure(before, component or [], structure, estimator, shared)
        after = filled(made)
    except (LatentError, ConfigValidationError, ValueError, OSError) as error:
        fail("This config cannot be given a structure", str(error))
    if output == STREAM:
        print(after.to_str())
    else:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        after.to_disk(output)
    print_changes(before, after, to_stderr=output == STREAM)
    if output != STREAM:
        msg.good(f"Saved {output}", "Try it with 'spacy latent debug', then 'spacy train'.")


def filled(config: Config) -> Config:
    """With all defaults, as it is after the pipeline was made of it, which shows that it can be."""
    from spacy.util import load_model_from_config

    return load_model_from_config(config, auto_fill=True, validate=True).config


def with_structure(
    config: Config, names: list[str], structure: str, estimator: str, shared: bool = False
) -> Config:
    """A copy of a filled config in which the embedders of components stand under a structure.

    names: the components; empty for the only one that can be changed.
    structure, estimator: registered names, or what :func:`registered_name` knows them by.
    shared: one ``latent_encoder`` for all of them.
    """
    from spacy_latent.errors import LatentError

    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    pipeline: list[str] = changed["nlp"]["pipeline"]
    names = names or [choose_component(components, pipeline)]
    for name in names:
        check_component(components, pipeline, name)
    blocks = layer_blocks(structure, estimator)
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
        raise LatentError(f"The config has a {ENCODER} already. Change its blocks by hand.")
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


def choose_component(components: dict[str, Block], pipeline: list[str]) -> str:
    """The only one that a structure can be put into."""
    from spacy_latent.errors import LatentError

    able = [name for name in pipeline if refusal(name, components.get(name, {})) is None]
    if len(able) == 1:
        return able[0]
    if able:
        options = ", ".join(f"--component {name}" for name in able)
        raise LatentError(f"Several components could get a structure. Give one: {options}.")
    raise LatentError(
        f"None of {', '.join(pipeline) or 'its components'} has an embedder of tokens. Add one "
        "that does, such as textcat, ner, spancat or tagger."
    )


def check_component(components: dict[str, Block], pipeline: list[str], name: str) -> None:
    from spacy_latent.errors import LatentError

    if name not in components or name not in pipeline:
        raise LatentError(
            f"There is no component {name!r}. The pipeline has {', '.join(pipeline)}."
        )
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
        return f"{name} has a latent structure already. Change its blocks by hand."
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
    from spacy.util import registry

    made = deepcopy(layers)
    build = registry.misc.get(made["scorer"]["@misc"])
    if of_words(embedder) and "encoder" in inspect.signature(build).parameters:
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
            f"structure. Of spaCy's components {' and '.join(TEXTCATS)} have one that does. Take "
            "another estimator for it, such as marginals, sparsemap or implicit-mle."
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

    from spacy_latent.estimators.base import Estimator
    from spacy_latent.layers.fitting import fitting_layers
    from spacy_latent.structures.base import Structure

    names = {
        "structure": registered_name(structure, "structure", Structure),
        "estimator": registered_name(estimator, "estimator", Estimator),
    }
    made = {argument: registry.misc.get(name)() for argument, name in names.items()}
    names["scorer"], names["composer"] = fitting_layers(made["structure"], made["estimator"])
    blocks: dict[str, Block] = {argument: {"@misc": name} for argument, name in names.items()}
    if "control_variate" in inspect.signature(registry.misc.get(names["estimator"])).parameters:
        # Without one the gradient of a single sample is mostly noise.
        blocks["estimator"]["control_variate"] = {"@misc": "spacy-latent.SelfCritical.v1"}
    return blocks


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
    stream = sys.stderr if to_stderr else sys.stdout
    colored = stream.isatty()
    lines = difflib.unified_diff(
        before.to_str().splitlines(), after.to_str().splitlines(), "before", "after", lineterm=""
    )
    for line in lines:
        shade = {"+": "green", "-": "red"}.get(line[:1]) if colored else None
        print(color(line, fg=shade) if shade else line, file=stream)
