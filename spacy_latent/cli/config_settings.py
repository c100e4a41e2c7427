"""Settings of a config that nothing reads, and blocks that are left to their defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confection import ConfigValidationError

from spacy_latent.cli.config_blocks import LAYERS, Block, block_of, nearest


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest of the names, after a space, or "" if no name is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""


def unknown_settings(config: Block) -> Iterator[str]:
    """Yield a message for each setting of a block that the function of the block does not have."""
    for place, block in inner_first(config):
        name, takes = settings_of(block)
        for key in block:
            if takes is not None and key not in takes and not key.startswith("@"):
                other = _relative_with(key, block)
                meant = f" {other} has one." if other else suggestion(key, takes)
                yield (
                    f"[{place}] {key}: {name} has no such setting.{meant} "
                    f"{name if other else 'It'} has {', '.join(takes) or 'none'}."
                )


def _relative_with(setting: str, block: Block) -> str | None:
    """Return a similar registered name that has the setting, or None.

    It is another version of the name, or a component for one label instead of several.
    """
    from spacy.util import registry

    own = settings_of(block)[0]
    key = next((key for key in block if key.startswith("@")), "factory")
    kind = "factories" if key == "factory" else key[1:]
    stem = re.sub(r"v\d+$", "", own)
    for other in sorted(getattr(registry, kind).get_all()):
        if other != own and (other.startswith(stem) or own.startswith(f"{other}_")):
            if setting in (settings_of({key: other})[1] or ()):
                return str(other)
    return None


def settings_of(block: Block) -> tuple[str, list[str] | None]:
    """Return the registered name in a block and its settings, or None for unknown settings."""
    from spacy.language import Language
    from spacy.util import registry

    kind, name = next(((key[1:], block[key]) for key in block if key.startswith("@")), ("", ""))
    if "factory" in block and Language.has_factory(block["factory"]):
        kind, name = "factories", block["factory"]
    if not hasattr(registry, kind) or not registry.has(kind, name):
        return name, None
    parameters = inspect.signature(registry.get(kind, name)).parameters
    if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters.values()):
        return name, None
    if kind != "factories":
        return name, list(parameters)
    return name, ["factory", *(key for key in parameters if key not in ("nlp", "name"))]


def unread_settings(config: Block) -> Iterator[str]:
    """Yield a message for each setting that is similar to one of spaCy's settings and is not read.

    Only sections of spaCy are checked. Other unknown settings may be variables.
    """
    from spacy.language import DEFAULT_CONFIG

    for section in ("nlp", "training", "initialize"):
        known = DEFAULT_CONFIG[section]
        for key in config.get(section, {}):
            near = None if key in known else nearest(key, known)
            if near:
                yield f"[{section}] {key}: spaCy does not read this setting. Did you mean {near}?"


def unread_overrides(path: Path, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each override of a config that nothing would read.

    An unknown section is refused by spaCy, and an unknown setting of its own sections ignored.

    Args:
        overrides: Values by dotted names.
    """
    from spacy.language import DEFAULT_CONFIG
    from spacy.util import load_config

    from spacy_latent.cli.config_errors import readable_config

    with readable_config(path):
        before = load_config(path, interpolate=False)
    written = before.to_str(interpolate=False)
    sections = [place for place, _ in inner_first(before)]
    said = set(unknown_settings(before))
    for name, value in overrides.items():
        section, _, key = name.rpartition(".")
        try:
            after = load_config(path, overrides={name: value}, interpolate=False)
        except ConfigValidationError:
            yield f"{name}: the config has no section [{section}].{suggestion(section, sections)}"
            continue
        yield from (one for one in unknown_settings(after) if one not in said)
        known = {**DEFAULT_CONFIG.get(section, {}), **(block_of(before, section) or {})}
        # Variables are read by the settings that refer to them.
        if section in DEFAULT_CONFIG and key not in known and f"${{{name}}}" not in written:
            yield f"[{section}] {key}: spaCy does not read this setting.{suggestion(key, known)}"


def defaults_taken(config: Block) -> Iterator[str]:
    """Yield a message for each latent layer that lacks blocks, whose defaults are then taken."""
    for place, block in inner_first(config):
        _, takes = settings_of(block)
        layers = [key for key in LAYERS if key in (takes or ())]
        if not {"structure", "estimator"} <= set(layers):
            continue
        missing = [key for key in layers if key not in block]
        if missing:
            blocks = ", ".join(f"[{place}.{key}]" for key in missing)
            are = "is no block" if len(missing) == 1 else "are no blocks"
            its = "its default is" if len(missing) == 1 else "their defaults are"
            yield f"There {are} {blocks}: {its} used."


def inner_first(block: Block, place: str = "") -> Iterator[tuple[str, Block]]:
    """Yield all blocks with their paths, the inner ones first."""
    for key, value in block.items():
        if isinstance(value, dict):
            inner: dict[str, Any] = value
            yield from inner_first(inner, f"{place}.{key}".lstrip("."))
    if place:
        yield place, block
