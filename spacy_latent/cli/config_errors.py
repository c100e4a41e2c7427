"""Where in a config an error comes from, which what raises it does not know."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from catalogue import RegistryError

from spacy_latent.cli.config_blocks import Block, names_of, nearest, short
from spacy_latent.errors import LatentError


@contextmanager
def errors_with_blocks(config: Block) -> Iterator[None]:
    """Around what makes a pipeline of a config: errors of this package begin with the block that
    they come from, where one alone gives the same error, and an unknown registered name becomes a
    LatentError with the block, the name that is nearest, and what there is of its kind; so does a
    text in the place of a number, with the setting."""
    try:
        yield
    except RegistryError as error:
        unknown = next(unknown_names(config), None)
        if unknown is None:
            raise
        raise LatentError(unknown) from error
    except TypeError as error:
        # Of a comparison with a text, which says nothing of the setting; else of a function's own.
        place = place_of(config, error)
        texts = [] if place is None else list(texts_for_numbers(config, place))
        if not texts:
            raise
        raise LatentError(f"[{place}] {'. '.join(texts)} ({error}).") from error
    except LatentError as error:
        place = place_of(config, error)
        if place is not None:
            error.args = (f"[{place}] {error}",)
        raise


def unknown_names(config: Block) -> Iterator[str]:
    """For each name in a config that nothing is registered under, sentences."""
    from spacy.util import registry

    for place, block in inner_first(config):
        for key, name in block.items():
            kind = key.removeprefix("@")
            # Of a config as it stands names may be variables, which are looked up elsewhere.
            if kind == key or not isinstance(name, str) or "${" in name:
                continue
            if hasattr(registry, kind) and not registry.has(kind, name):
                yield _unknown(place, kind, name)


def _unknown(place: str, kind: str, name: str) -> str:
    from spacy.util import registry

    argument = place.rpartition(".")[2]
    there = _names_for(argument) if kind == "misc" else []
    near = nearest(name, there or getattr(registry, kind).get_all())
    meant = f" Did you mean {near}?" if near else ""
    listed = f" There are {', '.join(sorted({short(one) for one in there}))}." if there else ""
    what = argument if there else f"function of the registry {kind!r} called"
    return f"[{place}] @{kind}: there is no {what} {name!r}.{meant}{listed}"


def _names_for(argument: str) -> list[str]:
    """Registered names of what a block of this name is for; none where that is not known."""
    from spacy_latent.estimators.base import Estimator
    from spacy_latent.layers.fitting import KINDS, registered_layers
    from spacy_latent.structures.base import Structure

    if argument in KINDS:
        return [name for name, _ in registered_layers(KINDS[argument])]
    classes: dict[str, type] = {"structure": Structure, "estimator": Estimator}
    return names_of(classes[argument]) if argument in classes else []


def place_of(config: Block, error: Exception) -> str | None:
    """The innermost block that gives the same error when it is resolved by itself."""
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
    """For each setting of a block that is a text where the default is a number, a clause."""
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


def inner_first(block: Block, place: str = "") -> Iterator[tuple[str, Block]]:
    """All blocks with their places, as sections of a config have them."""
    for key, value in block.items():
        if isinstance(value, dict):
            inner: dict[str, Any] = value
            yield from inner_first(inner, f"{place}.{key}".lstrip("."))
    if place:
        yield place, block


__all__ = ["errors_with_blocks", "unknown_names"]
