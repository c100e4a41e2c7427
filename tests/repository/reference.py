"""Write the entries of docs/reference.md, from docstrings and signatures of registered names.

docs/site.py puts them on the site. ``python -m tests.repository.reference`` prints them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import srsly
from spacy.language import Language

from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.rewards import Reward
from spacy_latent.models.category_constraints import CategoryConstraints
from tests.matrix import registered

EXPERIMENTAL = "Experimental: may change in any version."
ENTRY = re.compile(r"([a-zA-Z_]\w*(?:, \w+)*)( \([^)]*\))?: (?=\S)")


def entries() -> str:
    """Return the entries of all registered names, under the headings of their kinds."""
    control_variates = registered._registered(
        lambda loaded: inspect.isclass(loaded) and issubclass(loaded, ControlVariate)
    )
    rewards = registered._registered(
        lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Reward)
    )
    categories = registered._registered(lambda loaded: loaded is CategoryConstraints)
    sections = [
        ("Components", _group("spacy_factories"), _of_component),
        ("Architectures", _group("spacy_architectures"), _of_function),
        ("Structures", registered.structures(), _of_class),
        ("Structures with constraints", registered.graphs(), _of_function),
        ("Constraints", registered.constraints(), _of_class),
        ("Estimators", registered.estimators(), _of_class),
        ("Stages of training", registered.stages(), _of_function),
        ("Candidates of rationales", registered.candidates(), _of_function),
        ("Control variates", control_variates, _of_class),
        ("Rewards", rewards, _of_class),
        ("Scorers", registered.scorers(), _of_builder),
        ("Composers", registered.composers(), _of_builder),
        ("Learning from words", registered.bounds(), _of_function),
        ("Decoders", registered.decoders(), _of_builder),
        ("Priors", registered.priors(), _of_builder),
        ("Constraints on categories", categories, _of_class),
        ("Loggers", _group("spacy_loggers"), _of_function),
        ("Readers", _group("spacy_readers"), _of_function),
        ("Callbacks", _group("spacy_callbacks"), _of_function),
    ]
    named = {name for _, found, _ in sections for name in found}
    others = {name: made for name, made in registered._all().items() if name not in named}
    sections += [
        ("Other blocks of a model", others, _of_maker),
        ("Scores of pipelines", _group("spacy_scorers"), _of_maker),
        ("Tokenizers", _group("spacy_tokenizers"), _of_maker),
    ]
    parts: list[str] = []
    rows, experimental = [], []
    for title, found, describe in sections:
        parts.append(f"## {title}\n")
        for name in sorted(found):
            entry = f"### {_short(name)}\n\n{describe(found[name])}"
            if EXPERIMENTAL in entry:
                rows.append(f"| {_short(name)} | {title} |")
                experimental.append(entry.replace(f"{EXPERIMENTAL}\n\n", ""))
            else:
                parts.append(entry)
    parts += [_experimental(rows), *experimental, _pairs()]
    return "\n".join(parts)


def _experimental(rows: list[str]) -> str:
    lines = [
        "## Experimental",
        "",
        "These names may change, or go, in any version ([limits](limits.md#experimental)). The "
        "table says where each would stand above.",
        "",
        "| name | section |",
        "|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def _group(name: str) -> dict[str, Any]:
    return {point.name: point.load() for point in entry_points(group=name) if _own(point.value)}


def _own(place: str) -> bool:
    return place.startswith("spacy_latent.")


def _short(name: str) -> str:
    return name.removeprefix("spacy-latent.").removesuffix(".v1")


def _of_class(kind: type) -> str:
    return _settings(kind) + _with_inherited(kind, _text(kind, kind), kind)


def _of_maker(make: Callable[..., Any]) -> str:
    """Return the entry of a function that returns an object or a partial function.

    Its docstring is followed by the docstring of the object's class, or of the partial's function.
    """
    made: Any = make()
    kind = getattr(made, "func", made if inspect.isfunction(made) else type(made))
    about = _text(make, make) + "\n" + _text(kind, make)
    if inspect.isclass(kind):
        return _settings(make) + _with_inherited(make, about, kind)
    return _settings(make) + about


def _of_builder(build: Callable[..., Any]) -> str:
    made = build()
    assert isinstance(made, partial)
    kind: Any = made.func
    about = _text(kind, build) + "\n" + _text(build, build)
    return _settings(build) + _with_inherited(build, about, kind)


def _with_inherited(called: Callable[..., Any], text: str, kind: type) -> str:
    """Return the text with the inherited entries of settings that it does not name.

    The entries come from base classes, and from dataclasses in the signature that hold settings.
    """
    known = vars(inspect.getmodule(kind))
    hints = [known.get(str(hint)) for hint in inspect.get_annotations(kind.__init__).values()]
    for base in [*filter(is_dataclass, hints), *kind.__mro__[1:]]:
        lines = _text(base, called).splitlines()
        for start, line in enumerate(lines):
            names = re.match(r"- `(?!RETURNS)[^`]*`", line)
            if names and names[0] not in text:
                stop = start + 1
                while stop < len(lines) and lines[stop].startswith("  "):
                    stop += 1
                text = text.rstrip("\n") + "\n"
                if not text.splitlines()[-1].startswith(("- ", "  ")):
                    text += "\n"
                text += "\n".join(lines[start:stop]) + "\n"
    return text


def _of_function(function: Callable[..., Any]) -> str:
    doc = function.__doc__
    if doc is None:
        return _settings(function) + _of_result(function)
    return _settings(function) + _text(function, function)


def _of_component(function: Callable[..., Any]) -> str:
    """Return the entry of a component, with the defaults that its factory was registered with.

    The signature does not have these defaults.
    """
    (name,) = (name for name, made in _group("spacy_factories").items() if made is function)
    defaults = Language.get_factory_meta(name).default_config
    # Blocks, such as the model, have their own entries.
    plain = {key: value for key, value in defaults.items() if not isinstance(value, dict)}
    return _settings(function, plain) + _of_result(function)


def _of_result(function: Callable[..., Any]) -> str:
    """Return the text of the class that a factory returns."""
    made = function.__annotations__["return"]
    return _with_inherited(function, _text(made, function), made)


def _settings(called: Callable[..., Any], defaults: Mapping[str, Any] | None = None) -> str:
    shown = []
    for name, parameter in inspect.signature(called).parameters.items():
        if name in ("nlp", "name") or parameter.kind is parameter.VAR_KEYWORD:
            continue
        default = (defaults or {}).get(name, parameter.default)
        value = "" if default is parameter.empty else f" = {srsly.json_dumps(default)}"
        shown.append(f"`{name}{value}`")
    return f"{', '.join(shown)}\n\n" if shown else ""


def _text(described: Any, called: Callable[..., Any]) -> str:
    """Return a docstring as Markdown, with a list of settings.

    A line "name: ..." becomes an item if ``called`` has such an argument, or ``described`` if it is
    a function.
    """
    settings = {"RETURNS", *inspect.signature(called).parameters}
    if inspect.isfunction(described):
        settings.update(inspect.signature(described).parameters)
    lines = _without_sections(inspect.cleandoc(described.__doc__ or "").replace("``", "`"))
    made: list[str] = []
    for line in lines:
        line = re.sub(r":(?:class|func|meth|attr):`~?([^`]*)`", _last_name, line)
        entry = ENTRY.match(line)
        if entry and settings.intersection(entry[1].split(", ")):
            before = "" if made and made[-1].startswith(("- ", "  ")) else "\n"
            if made and not made[-1]:
                before = ""
            line = f"{before}- `{entry[1]}`{entry[2] or ''}: {line[entry.end() :]}"
        elif line.startswith("    "):
            line = "  " + line.strip()
        made.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(made)).strip() + "\n"


SECTIONS = {"Args:": "", "Attributes:": "", "Returns:": "RETURNS: ", "Raises:": ""}


def _without_sections(text: str) -> list[str]:
    """Return the lines of a docstring in Google's convention, without headings of its sections.

    The entries of sections are no longer indented. "Raises" is left out, since the reference is
    about settings.
    """
    made: list[str] = []
    section = ""
    for line in text.splitlines():
        if line in SECTIONS:
            section, opening = line, SECTIONS[line]
            continue
        if line and not line.startswith(" "):
            section = ""
        if section == "Raises:":
            continue
        if section == "Returns:" and line:
            # Further lines belong to the same entry, and stay indented.
            line = opening + line[4:] if opening else line
            opening = ""
        elif section and line:
            line = line[4:]
        made.append(line)
    return made


def _last_name(match: re.Match[str]) -> str:
    return f"`{match[1].rsplit('.', 1)[-1]}`"


def _pairs() -> str:
    """Return the table of the structures that each estimator supports."""
    structures = {_short(name): kind() for name, kind in registered.structures().items()}
    rows = []
    for name in registered.estimators():
        estimator = registered.make_estimator(name)
        cells = ["✓" if registered.fits(estimator, made) else "" for made in structures.values()]
        owner = "latent_textcat" if estimator.needs_loss else "any"
        rows.append(f"| {_short(name)} | {owner} | {' | '.join(cells)} |")
    return "\n".join(
        [
            "## Which pairs work",
            "",
            "With default settings. All others are refused when the config is loaded, with both "
            "names and the reason; `tests/matrix` trains every pair that is marked, in every kind "
            "of component that the second column allows.",
            "",
            f"| estimator | component | {' | '.join(structures)} |",
            f"|---|---|{':-:|' * len(structures)}",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(entries())
