"""Command ``spacy latent serve``: a local page for typed texts, with structures to edit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.demo import EXPRESSION, carried_pipeline
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, GpuId
from spacy_latent.cli.pipelines import load, prepare
from spacy_latent.errors import number_of

if TYPE_CHECKING:
    from spacy_latent.visualize.explorer import Explorer, Limits

LOCAL = "127.0.0.1"
# Hosts for which the server would have to answer to every name.
EVERYWHERE = ("0.0.0.0", "::", "")
MOST_STEPS = 40
# Settings of uvicorn.
SERVER: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "limit_concurrency": 64,
    "timeout_keep_alive": 10,
    "timeout_graceful_shutdown": 2,
    "ws": "none",
    "lifespan": "off",
}
EXAMPLE = "The film that we saw in Berlin last week was long, but great fun."
EXAMPLE_PAIR = ["A man is sleeping on a bench in the park.", "Somebody rests outside."]
EXAMPLES = """
Examples:

  spacy latent serve

  spacy latent serve training/model-best

  spacy latent serve training/model-best --beside baseline/model-best

  spacy latent serve training/model-best --checkpoints training/steps
"""


def serve_cli(
    model: str | None = typer.Argument(
        None,
        help="Trained pipeline: a directory or an installed package. Default: the pipeline of "
        "'spacy latent demo'",
    ),
    text: list[str] | None = typer.Argument(
        None, help="Text to show first; two for a pipeline that reads pairs. Default: an example"
    ),
    beside: str | None = typer.Option(
        None, "--beside", "-b", help="Another pipeline, to show side by side with MODEL"
    ),
    checkpoints: list[Path] | None = typer.Option(
        None,
        "--checkpoints",
        help="Pipeline of an earlier step of training, or a directory of such pipelines; may be "
        "repeated. The page then has a slider from the first one to MODEL",
    ),
    alternatives: int = typer.Option(
        3, "--alternatives", "-k", min=0, max=20, help="Number of alternative structures to draw"
    ),
    max_tokens: int = typer.Option(300, "--max-tokens", min=1, help="Most tokens of a text"),
    timeout: float = typer.Option(30.0, "--timeout", min=0.1, help="Most seconds for a request"),
    port: int = typer.Option(5000, "--port", "-p", min=0, max=65535, help="Port, 0 for a free one"),
    host: str = typer.Option(LOCAL, "--host", help="Address to listen on. Default: local only"),
    allow_host: list[str] | None = typer.Option(
        None, "--allow-host", help="Another host name in the page's URL; may be repeated"
    ),
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Serve a local page that shows categories, entities and structures of a text that you type.

    On the page, you can forbid or force a part and see how the prediction changes. No text leaves
    this machine. The page stays open until Ctrl+C.
    """
    uvicorn = import_server()
    check_names(host, allow_host or [])
    with carried_pipeline() if model is None else nullcontext() as carried:
        application, names = application_of(
            str(carried) if model is None else model,
            [EXPRESSION] if model is None else text or [],
            beside,
            checkpoints or [],
            alternatives=alternatives,
            max_tokens=max_tokens,
            timeout=timeout,
            host=host,
            allow_host=allow_host or [],
            code=code,
            gpu_id=gpu_id,
        )
    # Listen before the browser opens the address.
    listening = listen(host, port)
    if host not in (LOCAL, "localhost", "::1"):
        msg.warn("The page has no password: everyone who can connect to this machine can open it.")
    shown = (allow_host or [LOCAL])[0] if host in EVERYWHERE else in_brackets(host)
    msg.good(f"{', '.join(names)}: http://{shown}:{listening.getsockname()[1]} (Ctrl+C ends it)")
    uvicorn.Server(uvicorn.Config(application, **SERVER)).run(sockets=[listening])


def application_of(
    model: str,
    text: Sequence[str] = (),
    beside: str | None = None,
    checkpoints: Sequence[Path] = (),
    *,
    alternatives: int = 3,
    max_tokens: int = 300,
    timeout: float = 30.0,
    host: str = LOCAL,
    allow_host: Sequence[str] = (),
    code: Path | None = None,
    gpu_id: int = -1,
) -> tuple[Any, list[str]]:
    """Return the application and the names of its pipelines."""
    from spacy_latent.visualize.explorer import Limits
    from spacy_latent.visualize.server import LOCAL as LOCAL_NAMES
    from spacy_latent.visualize.server import make_application

    check_names(host, allow_host)
    prepare(code, gpu_id)
    # MODEL is the last step, and may also be in the directory of checkpoints.
    earlier = [one for one in steps_of(checkpoints) if Path(one).resolve() != Path(model).resolve()]
    places = [*earlier, model]
    if len(places) > MOST_STEPS:
        fail(
            f"{len(places)} pipelines are too many to load at once",
            f"Give at most {MOST_STEPS - 1} checkpoints.",
        )
    limits = Limits(tokens=max_tokens, seconds=timeout, characters=max_tokens * 20)
    if beside:
        places.append(beside)
    names = names_of(places)
    steps = explorers_of(places, names, alternatives, limits, text)
    example = text or example_for(steps[0])
    other = steps.pop() if beside else None
    hosts = [*LOCAL_NAMES, *map(str.lower, allow_host)]
    if host not in EVERYWHERE:
        hosts.append(in_brackets(host))
    return make_application(steps, other, hosts=hosts, example=example), names


def import_server() -> Any:
    """Return the module of the server, or exit with an error if the page cannot be served."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        fail(
            f"{error.name} is not installed",
            "Install it with: pip install 'spacy-latent[serve]'",
        )
    return uvicorn


def check_names(host: str, allow_host: Sequence[str]) -> None:
    """Exit with an error for missing or invalid names under which the page may be opened."""
    if host in EVERYWHERE and not allow_host:
        fail(
            f"--host {host!r} listens on all addresses, so the host names of the page have to be "
            "given",
            "Give them with --allow-host, such as the name of this machine. The page has no "
            "password.",
        )
    for name in allow_host:
        if re.search(r"[/\s]|^[^\[].*:|\]:", name):
            fail(
                f"--allow-host is {name!r}",
                "Give a host name or an address, without port and http://. Put an IPv6 address "
                "into brackets.",
            )


def in_brackets(host: str) -> str:
    """Return a host as part of a URL, with brackets around an address of IPv6."""
    return f"[{host}]" if ":" in host else host


def example_for(explorer: Explorer) -> list[str]:
    """Return the text, or the pair of texts, with which the page of this pipeline begins."""
    if explorer.pairs:
        return EXAMPLE_PAIR
    corpora = explorer.nlp.config["corpora"]
    # A corpus may be a variable, such as ${corpora.train}, or null.
    blocks = [corpora, *(block for block in corpora.values() if isinstance(block, dict))]
    readers = [block.get("@readers", "") for block in blocks]
    if any(str(reader).startswith("spacy-latent.ListOps.") for reader in readers):
        return [EXPRESSION]
    return [EXAMPLE]


def explorers_of(
    places: Sequence[str],
    names: Sequence[str],
    alternatives: int,
    limits: Limits,
    text: Sequence[str],
) -> list[Explorer]:
    """Return the loaded pipelines, or exit with an error if they do not read the same texts."""
    explorers: list[Explorer] = []
    for place, name in zip(places, names):
        msg.text(f"Loading {name} ...")
        explorers.append(explorer_of(place, name, alternatives, limits))
        # Checked after each pipeline, so that users see an error as early as possible.
        reads_pairs = explorers[0].pairs
        if explorers[-1].pairs != reads_pairs:
            fail(
                "Some of the pipelines read pairs of texts, and others read single texts",
                "Give only pipelines of one kind.",
            )
        if text and len(text) != 1 + reads_pairs:
            fail(
                f"{number_of(len(text), 'text')} given, and the pipeline reads "
                f"{'pairs' if reads_pairs else 'single ones'}",
                "Give two for a pipeline that reads pairs, else one, in quotation marks.",
            )
    return explorers


def explorer_of(place: str, name: str, alternatives: int, limits: Limits) -> Explorer:
    """Load a pipeline for the page. Exit if it has no structures to show."""
    from spacy_latent.pipeline.inspection import choose_components, reads_pairs
    from spacy_latent.visualize.explorer import Explorer

    nlp = load(place)
    with failing(f"{place!r} cannot be shown"):
        choose_components(nlp, None, annotating=True)
    return Explorer(nlp, name, pairs=reads_pairs(nlp), alternatives=alternatives, limits=limits)


def steps_of(checkpoints: Sequence[Path]) -> list[str]:
    """Return the given pipelines and those in directories, sorted by the numbers in their names."""
    found: list[str] = []
    for path in checkpoints:
        if (path / "meta.json").is_file():
            found.append(str(path))
            continue
        inside = [one.parent for one in path.glob("*/meta.json")]
        if not inside:
            fail(
                f"There is no pipeline in {path}",
                "Give a directory that nlp.to_disk wrote, or one that holds such directories.",
            )
        found += map(str, sorted(inside, key=lambda one: in_order(one.name)))
    return found


def in_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers by value: step-9 before step-10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def names_of(places: Sequence[str]) -> list[str]:
    """Return the shortest different ends of the paths, with a directory above model-best."""
    parts = [Path(place).parts or (place,) for place in places]
    least = 2 if any(own[-1] in ("model-best", "model-last") for own in parts) else 1
    for size in range(least, max(least, *map(len, parts)) + 1):
        names = ["/".join(own[-size:]) for own in parts]
        if len(set(names)) == len(set(places)):
            return names
    return list(places)


def listen(host: str, port: int) -> Any:
    """Return a bound socket; a port that is in use is an error."""
    import errno
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made: socket.socket | None = None
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
        # On other systems, this option lets two servers listen on one port.
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(64)
    except OSError as error:
        if made is not None:
            made.close()
        advice = "Give another --port, or --port 0 for any that is free."
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            advice = "Give a --host that is an address of this machine, or none."
        fail(f"{host}:{port} cannot be listened on: {error.strerror or error}", advice)
    return made
