"""Locations of errors in a config, which the code that raises them does not know."""

from __future__ import annotations

import configparser
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogue import RegistryError
from confection import ConfigValidationError

from spacy_latent.cli.config_blocks import Block, names_of, short
from spacy_latent.cli.config_settings import inner_first, settings_of, suggestion, unknown_settings
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language


def config_overrides(arguments: list[str]) -> dict[str, Any]:
    """Return the settings of a config on the command line, as in ``spacy train``.

    Raises:
        LatentError: If an option names no setting.
    """
    from click import NoSuchOption
    from spacy.cli._util import parse_config_overrides

    try:
        return parse_config_overrides(arguments)
    except NoSuchOption as error:
        # The class is from a different copy of click than typer's, which would not catch it.
        raise LatentError(
            f"{error.option_name!r} is neither an option of this command nor a setting of the "
            "config. A setting has a dotted name, as in --training.max_steps 100."
        ) from None


@contextmanager
def readable_config(source: object) -> Iterator[None]:
    """Raise a LatentError for a config that has a section or a setting twice.

    Args:
        source: file of the config, for the message.
    """
    try:
        yield
    except (configparser.DuplicateSectionError, configparser.DuplicateOptionError) as error:
        # Thinc does not catch these, so that spaCy's commands end in a traceback.
        said = re.sub(r"^While reading from '.*' \[line +(\d+)\]", r"line \1", str(error))
        raise LatentError(f"{source} cannot be read as a config: {said}. Remove one.") from error


@contextmanager
def errors_with_blocks(config: Block) -> Iterator[None]:
    """Add the block of a config to errors that its code raises inside the context.

    Errors of this package begin with the block that raises the same error alone. These errors
    become a LatentError that names the block: unknown registered names, components and settings;
    sources that cannot be used; and texts in place of numbers.
    """
    try:
        yield
    except RegistryError as error:
        if unknown := next(unknown_names(config), None):
            raise LatentError(unknown) from error
        raise
    except ConfigValidationError as error:
        if said := list(unknown_settings(config)) or list(invalid_settings(config, error)):
            raise LatentError(" ".join(said)) from error
        raise
    except TypeError as error:
        # Either a comparison with a text, whose message does not name the setting, or an error of
        # a function's own code.
        place = place_of(config, error)
        if place is not None and (texts := list(texts_for_numbers(config, place))):
            raise LatentError(f"[{place}] {'. '.join(texts)} ({error}).") from error
        raise
    except LatentError as error:
        place = place_of(config, error)
        if place is not None:
            error.args = (f"[{place}] {error}",)
        raise
    except (ValueError, OSError, KeyError) as error:
        if said := list(unknown_components(config)) or list(unusable_sources(config)):
            raise LatentError(" ".join(said)) from error
        raise


def unknown_names(config: Block) -> Iterator[str]:
    """Yield a message for each name in a config that is not registered."""
    from spacy.util import registry

    for place, block in inner_first(config):
        for key, name in block.items():
            kind = key.removeprefix("@")
            # Names in a config without interpolation may be variables, which are checked elsewhere.
            if kind == key or not isinstance(name, str) or "${" in name:
                continue
            if hasattr(registry, kind) and not registry.has(kind, name):
                yield _unknown(place, kind, name)


def _unknown(place: str, kind: str, name: str) -> str:
    from spacy.util import registry

    argument = place.rpartition(".")[2]
    there = _names_for(argument) if kind == "misc" else []
    known = list(getattr(registry, kind).get_all())
    meant = suggestion(name, there or known)
    listed = f" There are {', '.join(sorted({short(one) for one in there}))}." if there else ""
    if not meant and name.partition(".")[0] not in {one.partition(".")[0] for one in known}:
        # No installed package registers names with this prefix.
        listed = " Give the file that registers it with --code."
    what = argument if there else f"function of the registry {kind!r} called"
    return f"[{place}] @{kind}: there is no {what} {name!r}.{meant}{listed}"


def unknown_components(config: Block) -> Iterator[str]:
    """Yield a message for each unknown factory and each name in the pipeline without a block."""
    import spacy
    from spacy.util import registry

    there = config.get("components", {})
    for name in config.get("nlp", {}).get("pipeline") or ():
        if name not in there:
            known_blocks = ", ".join(map(repr, there)) or "none"
            yield (
                f"[nlp] pipeline: there is no block [components.{name}]."
                f"{suggestion(name, there)} There are blocks of {known_blocks}."
            )

    nlp = spacy.blank(config.get("nlp", {}).get("lang") or "xx")
    # The names of factories for a language begin with its code.
    known = [name.removeprefix(f"{nlp.lang}.") for name in registry.factories.get_all()]
    for name, block in there.items():
        factory = block.get("factory")
        if factory is not None and not nlp.has_factory(factory):
            meant = suggestion(factory, known)
            yield f"[components.{name}] factory: there is no component {factory!r}.{meant}"


def unusable_sources(config: Block) -> Iterator[str]:
    """Yield a message for each source that cannot be loaded, and each component that it lacks."""
    from spacy.util import get_sourced_components, load_model
    from thinc.api import Config

    sourced = get_sourced_components(Config(config).interpolate())
    for source in dict.fromkeys(block["source"] for block in sourced.values()):
        names = [name for name, block in sourced.items() if block["source"] == source]
        try:
            there = load_model(source).component_names
        except Exception as error:
            blocks = ", ".join(f"[components.{name}]" for name in names)
            said = " ".join(str(error).split()).removesuffix(".")
            yield (
                f"{blocks} source: {source!r} cannot be loaded ({said}). Expected the name of an "
                f"installed pipeline, or the path of one, as seen from {Path.cwd()}, such as "
                "training/model-best."
            )
            continue
        for name in names:
            wanted = sourced[name].get("component", name)
            if wanted not in there:
                yield (
                    f"[components.{name}] source: {source!r} has no component {wanted!r}."
                    f"{suggestion(wanted, there)} It has {', '.join(there)}. Set component to the "
                    "name that it has there."
                )


def invalid_settings(config: Block, error: ConfigValidationError) -> Iterator[str]:
    """Yield a message for each invalid setting, whose error has only the end of a block's path."""
    refused = error.config if isinstance(error.config, dict) else {}
    named = re.search(r"'(.+)'", error.title or "")
    places = (
        place
        for place, block in inner_first(config)
        if named
        and settings_of(block)[0] == named[1]
        and all(refused.get(name) == value for name, value in plain_settings(block))
    )
    found = next(places, None)
    for one in error.errors or ():
        *outer, key = map(str, one.get("loc", ("",)))
        # In a pipeline that could be created, [nlp] is the only other block that is validated.
        place = found or ".".join(outer) or "nlp"
        value = f"{key} is {refused[key]!r}: " if key in refused else f"{key}: "
        yield f"[{place}] {value}{in_words(str(one.get('msg')))}."


# Descriptions of types for users, by the names of classes in the messages of the validation.
WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text in quotation marks",
    "list": "a list",
    "dict": "a block",
}


def in_words(said: str) -> str:
    """Return a message on the type of a value without names of Python classes."""
    found = re.search(r"is not <class '(\w+)'>$", said)
    if found and found[1] in WORDS:
        return f"expected {WORDS[found[1]]}"
    return said.removeprefix("at root: ")


def invalid_training(nlp: Language) -> Iterator[str]:
    """Yield a message for each setting of [training] with an invalid type."""
    from spacy.schemas import ConfigSchemaTraining
    from spacy.util import registry

    training = nlp.config.interpolate().get("training") or {}
    try:
        registry.resolve(training, schema=ConfigSchemaTraining)
    except ConfigValidationError as error:
        for one in error.errors or ():
            key = str(one.get("loc", ("",))[0])
            value = training.get(key)
            if not isinstance(value, dict):
                yield f"[training] {key} is {value!r}: {in_words(str(one.get('msg')))}."
    except Exception:
        # Errors of a function that the block names are reported when the corpus is read.
        return


def plain_settings(block: Block) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a block except for blocks, variables and registered names."""
    for key, value in block.items():
        if not isinstance(value, dict) and "${" not in str(value):
            if not key.startswith("@") and key != "factory":
                yield key, value


def _names_for(argument: str) -> list[str]:
    """Return the registered names for a block with this name, or none if they are not known."""
    from spacy_latent.estimators.base import Estimator
    from spacy_latent.layers.compatibility import KINDS, registered_layers
    from spacy_latent.structures.base import Structure

    if argument in KINDS:
        return [name for name, _ in registered_layers(KINDS[argument])]
    classes: dict[str, type] = {"structure": Structure, "estimator": Estimator}
    return names_of(classes[argument]) if argument in classes else []


def place_of(config: Block, error: Exception) -> str | None:
    """Return the path of the innermost block that raises the same error when resolved alone."""
    from spacy.util import registry
    from thinc.api import Config

    for place, block in inner_first(Config(config).interpolate()):
        if any(key.startswith("@") for key in block):
            try:
                registry.resolve({"block": block})
            except Exception as found:
                if str(found) == str(error):
                    return place
    return None


def texts_for_numbers(config: Block, place: str) -> Iterator[str]:
    """Yield a clause for each setting of a block that is a text while its default is a number."""
    from spacy.util import registry
    from thinc.api import Config

    block = dict(inner_first(Config(config).interpolate()))[place]
    kind, name = next((key[1:], block[key]) for key in block if key.startswith("@"))
    defaults = inspect.signature(registry.get(kind, name)).parameters
    for key, value in block.items():
        default = defaults[key].default if key in defaults else None
        is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
        if isinstance(value, str) and is_number:
            yield f"{key} is {value!r}; expected a number, such as {default}"
