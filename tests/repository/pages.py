"""Functions that find, run and check the fenced blocks of the documentation.

A block in an unknown language is an error, so that no block stays unchecked.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import srsly
from confection import Config
from spacy.language import Language
from spacy.util import load_config, load_model_from_config, registry

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^( *)(```+|~~~+)([^\n`]*)\n(.*?)^\1\2 *$", re.M | re.S)
# The registered names of these packages are checked only if the package is installed.
OPTIONAL = ("spacy_transformers", "spacy_curated_transformers")
# Files that pages name, and that the repository does not have.
WRITTEN_BY_THE_READER = {
    "control.cfg",
    "config.cfg",
    "base_config.cfg",
    "base.cfg",
    "continued.cfg",
    "with_trees.cfg",
}
RUN = "<!-- run -->"
LANGUAGES = {
    **dict.fromkeys(("python",), "python"),
    **dict.fromkeys(("ini", "cfg"), "ini"),
    **dict.fromkeys(("bash", "sh", "shell", "console"), "bash"),
    **dict.fromkeys(("json", "jsonl"), "json"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
    # The output of a command.
    **dict.fromkeys(("text",), "text"),
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: name of the page's file.
        line: line of the opening fence.
        language: kind of its content, one of the values of LANGUAGES.
        code: its content.
        run: whether ``<!-- run -->`` stands before it, which asks to run its commands.
    """

    page: str
    line: int
    language: str
    code: str
    run: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return all fenced blocks of a page.

    Raises:
        AssertionError: A block has no known language.
    """
    text = page.read_text(encoding="utf8")
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        word = match[3].strip().split(" ")[0]
        assert word in LANGUAGES, (
            f"{page.name}:{line}: a block in {word!r}; write one of {', '.join(LANGUAGES)} after "
            "the fence, so that it is run or checked"
        )
        code = re.sub(rf"^{match[1]}", "", match[4], flags=re.M)
        run = text[: match.start()].rstrip().endswith(RUN)
        found.append(Block(page.name, line, LANGUAGES[word], code, run))
    return found


def run_python(page: Path, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the Python blocks of a page in one namespace, and return it.

    Args:
        page: the page's file.
        given: names that the namespace has beforehand.
    """
    module = ModuleType(page.stem)
    scope = vars(module)
    scope.update(given or {})
    # Classes of the page can be pickled only if their module can be imported.
    sys.modules[page.stem] = module
    try:
        for block in blocks(page):
            if block.language == "python":
                # Empty lines give tracebacks the line numbers of the page.
                exec(compile("\n" * block.line + block.code, str(page), "exec"), scope)
    finally:
        del sys.modules[page.stem]
    return scope


# ---------------------------------------------------------------- configs

# Variables in a piece of a config may refer to these sections.
AROUND = """
[paths]
train = "train.spacy"
dev = "dev.spacy"
vectors = null
init_tok2vec = null

[system]
seed = 0
gpu_allocator = null
"""


def check_config(text: str) -> None:
    """Check a config, or a piece of one.

    A whole config is loaded, unless it takes components of another pipeline by ``source``. A piece
    of a config has its components with a factory created one by one, and the settings of all other
    registered functions checked. A piece of a ``setup.cfg`` has its entry points checked.
    """
    if "[options.entry_points]" in text:
        entry_points(text)
        return
    whole = all(re.search(rf"^\[{section}\]", text, re.M) for section in ("nlp", "components"))
    if whole and not re.search(r"^source = ", text, re.M):
        load_model_from_config(Config().from_str(text), auto_fill=True, validate=True)
        return
    given = Config().from_str(with_parents(text), interpolate=False)
    config = Config().from_str(AROUND, interpolate=False).merge(given).interpolate()
    config = Config({key: config[key] for key in given})
    components = config.pop("components", {})
    nlp = Language()
    for name, block in components.items():
        factory = block.get("factory")
        if "source" in block:
            # The component comes from a pipeline that only the reader has.
            assert set(block) <= {"source", "component", "replace_listeners"}, f"{name}: {block}"
            continue
        if factory is not None:
            own = {key: value for key, value in block.items() if key != "factory"}
            nlp.add_pipe(factory, name=name, config=own)
            continue
        if Language.has_factory(name):
            settings = Language.get_factory_meta(name).default_config
            unknown = [key for key in block if key not in settings]
            assert not unknown, f"{name} has no {unknown}; it has {sorted(settings)}"
        fill_promises(block)
    for key, block in config.items():
        if isinstance(block, dict):
            fill_promises({key: block})


def entry_points(text: str) -> list[EntryPoint]:
    """Return the entry points of a piece of a ``setup.cfg``.

    Raises:
        AssertionError: No registry of spaCy reads a group, or a name is not one that configs have.
    """
    setup = ConfigParser(delimiters=("=",))
    # The default would convert names to lower case.
    setup.optionxform = str  # type: ignore[method-assign, assignment]
    setup.read_string(text)
    found = []
    for group, lines in setup["options.entry_points"].items():
        kind = group.removeprefix("spacy_")
        assert group != kind and hasattr(registry, kind), f"{group}: spaCy reads no such group"
        for line in lines.strip().splitlines():
            name, place = line.split(" = ")
            is_name = group == "spacy_factories" or re.fullmatch(r"[\w-]+\.\w+\.v\d+", name)
            assert is_name, f"{name}: no name of a config"
            found.append(EntryPoint(name, place, group))
    return found


# Sections that the config around a piece is expected to have, in addition to its components.
FILLED = {
    *("corpora", "corpora.train", "corpora.dev", "components", "nlp", "training", "initialize"),
    *("training.logger", "training.batcher", "training.optimizer", "training.score_weights"),
    *("initialize.components", "pretraining", "paths", "system"),
}


def with_parents(text: str) -> str:
    """Add empty sections to a piece of a config for the parents that the config around it has.

    Any other parent would be missing in the reader's config, too. It is not added, so that
    confection refuses the piece.
    """
    seen: set[str] = set()

    def headed(match: re.Match[str]) -> str:
        parts = match[1].split(".")
        above = [".".join(parts[:i]) for i in range(1, len(parts))]
        around = [n for n in above if n in FILLED or re.fullmatch(r"components\.\w+(\.model)?", n)]
        missing = [name for name in around if name not in seen]
        seen.update([*above, match[1]])
        return "".join(f"[{name}]\n\n" for name in missing) + match[0]

    return re.sub(r"^\[([\w.]+)\]", headed, text, flags=re.M)


def fill_promises(block: dict[str, Any]) -> None:
    """Check the names and settings of the registered functions in a block, at any depth."""
    names = {key[1:]: value for key, value in block.items() if key.startswith("@")}
    package = next(iter(names.values()), "").split(".")[0].replace("-", "_")
    if package and find_spec(package) is None and package in OPTIONAL:
        return
    for kind, name in names.items():
        # registry.fill() accepts unknown names.
        registry.get(kind, name)
    if names:
        registry.fill({"block": block})
    for value in block.values():
        if isinstance(value, dict):
            fill_promises(value)


# ---------------------------------------------------------------- commands


def commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block.

    Comments, prompts, redirections and the variables before a command are left out.
    """
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r"^\$ ", "", line.strip()), comments=True)
        for command in _split_at(words, "|"):
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                command = command[1:]
            for stop in ("<", ">", ">>", "2>&1"):
                command = command[: command.index(stop)] if stop in command else command
            if command:
                yield command


def _split_at(words: list[str], mark: str) -> Iterator[list[str]]:
    for is_mark, group in groupby(words, key=lambda word: word == mark):
        if not is_mark:
            yield list(group)


def check_command(words: list[str]) -> None:
    """Check that the program, its command, its options and the named configs exist."""
    if words[:3] == ["python", "-m", "spacy"]:
        check_spacy(words[3:])
    elif words[:3] == ["python", "-m", "pip"]:
        check_pip(words[3:])
    elif words[0] == "spacy":
        check_spacy(words[1:])
    elif words[:2] == ["python", "-m"]:
        check_module(words[2], words[3:])
    elif words[0] == "torchrun":
        # The options of torchrun come before the module.
        check_module(*_split_at_module(words))
    elif words[0] == "pip":
        check_pip(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.M)
        for target in words[1:]:
            assert "=" in target or target in targets, f"make {target}: there are {targets}"
    elif words[0] not in ("cd", "git", "head", "cat", "mkdir", "cp"):
        raise AssertionError(
            f"tests/repository/pages.py does not know how to check {' '.join(words)!r}"
        )


def _split_at_module(words: list[str]) -> tuple[str, list[str]]:
    place = words.index("-m") + 1
    return words[place], words[place + 1 :]


def check_spacy(arguments: list[str]) -> None:
    from spacy.cli._util import app
    from typer.main import get_command

    if arguments[:1] == ["project"]:
        check_project(arguments[1:])
        return
    # This loads the entry points that add commands, as spaCy does before it runs.
    registry.cli.get_all()
    left = parse(get_command(app), arguments)
    named = [w for w in arguments if w.endswith(".cfg") and w not in WRITTEN_BY_THE_READER]
    configs = [load_config(ROOT / word) for word in named]
    for name in left:
        if name.startswith("--") and configs:
            check_override(configs[0], name.removeprefix("--").split("=")[0])


def check_override(config: Config, name: str) -> None:
    place: Any = config
    *sections, last = name.split(".")
    for section in sections:
        assert section in place, f"--{name}: the config has no {section!r}"
        place = place[section]
    assert last in place or any(key.startswith("@") for key in place), f"--{name}: no {last!r}"


def check_project(arguments: list[str]) -> None:
    project = srsly.read_yaml(ROOT / "project.yml")
    if arguments[0] == "run":
        known = [*project["workflows"], *(command["name"] for command in project["commands"])]
        assert arguments[1] in known, f"project run {arguments[1]}: there are {known}"
    else:
        assert arguments[0] in ("assets", "document"), arguments
    for word in arguments:
        if word.startswith("--vars."):
            name = word.removeprefix("--vars.").split("=")[0]
            assert name in project["vars"], f"{word}: there are {list(project['vars'])}"


def check_module(module: str, arguments: list[str]) -> None:
    found = find_spec(module)
    assert found, f"python -m {module}: there is no such module"
    if module.startswith(("spacy_latent.cli.", "spacy_latent.distributed")):
        from typer.main import get_command

        main = "" if found.submodule_search_locations is None else ".__main__"
        app = getattr(import_module(module + main), "app", None)
        if app is not None:
            parse(get_command(app), arguments)


def check_pip(arguments: list[str]) -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf8")
    extras = dict(setup["options.extras_require"])
    for word in arguments:
        named = re.fullmatch(r"(?:\.|spacy-latent)\[([\w,]+)\]", word)
        for extra in named[1].split(",") if named else ():
            assert extra in extras, f"{word}: there are {list(extras)}"


def parse(command: Any, arguments: list[str]) -> list[str]:
    """Find the command that the arguments name, and parse its arguments.

    Returns:
        The unknown arguments, if the command accepts any. None are returned with ``--help``.

    Raises:
        click.UsageError: An option is unknown. The class may be of Typer's copy of click.
        AssertionError: A command is unknown, or a required argument is missing.
    """
    context = command.context_class(command, info_name="command")
    # isinstance() with click's classes would fail, since Typer may bring its own copy of click.
    while hasattr(command, "commands"):
        if not arguments or arguments[0] == "--help":
            return []
        name, *arguments = arguments
        assert name in command.commands, f"There is no command {name!r}: {list(command.commands)}"
        command = command.commands[name]
        context = command.context_class(command, info_name=name, **command.context_settings)
    # The parser empties the list that it is given.
    without_help = [one for one in arguments if one != "--help"]
    given, left, _ = command.make_parser(context).parse_args(without_help)
    if "--help" in arguments:
        return []
    for parameter in command.params:
        if parameter.param_type_name == "argument" and parameter.required:
            assert given.get(parameter.name), f"{command.name}: {parameter.name} is missing"
    assert context.allow_extra_args or not left, f"{command.name} does not take {left}"
    return left
