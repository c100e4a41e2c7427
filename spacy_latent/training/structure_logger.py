"""The logger ``spacy-latent.StructureLogger.v1``: changes of structures during ``spacy train``.

Importing this module is cheap. spaCy imports it to list its loggers.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import srsly
from spacy.language import Language
from spacy.util import SimpleFrozenList, registry
from wasabi.util import ICONS, MESSAGES

from spacy_latent.errors import LatentError, LatentWarning, check_texts, check_whole, number_of
from spacy_latent.training.structure_observer import (
    CHANGED,
    Statistics,
    StructureObserver,
    changed_share,
)

if TYPE_CHECKING:
    from spacy_latent.annotations import SpanStructure
    from spacy_latent.visualize.film import Film

LogStep = Callable[[dict[str, Any] | None], None]
Setup = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]

# Statistics that are drawn as curves above the drawings.
CHARTS = ("depth", "left-branching", "left splits", "rate", "entropy", CHANGED)
# Short titles for the columns of spaCy's table.
TITLES = {
    "left-branching": "left",
    "left splits": "left",
    "arcs per token": "arcs",
    "arc length": "arc len",
    "root share": "roots",
    "on the root": "on root",
    "first token": "first",
    "commonest tag": "common",
    "segment length": "seg len",
    "monotonicity": "monot",
    "relative entropy": "rel ent",
}
WIDEST_TITLE = 13


def build_structure_logger_v1(
    logger: Setup | None = None,
    output_file: str | Path | None = None,
    drawings: str | Path | None = None,
    sentences: Sequence[str] = SimpleFrozenList(),
    corpus: str | None = None,
    limit: int = 100,
    components: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    frames: int = 12,
) -> Setup:
    """Log statistics of the latent structures at each evaluation, in addition to another logger.

    They are in further columns of the console's table, in a file of JSON lines, and among the
    scores of the wrapped logger, as ``latent/<component>/<statistic>``. One of them is ``changed``,
    the share of parts that differ from the previous evaluation.

    When training starts, the logger raises LatentError if no component has a latent layer, or if
    the corpus has no docs.

    Args:
        logger: wrapped logger, such as ``spacy.WandbLogger.v5``, in a block
            ``[training.logger.logger]``; spaCy's console logger if None.
        output_file: file of JSON lines, one object per evaluation. Names are as in
            ``spacy.ConsoleLogger.v3``, with ``structures`` in addition. An existing file is
            replaced. A resumed training keeps its lines of earlier steps.
        drawings: page that is written when training ends. It has each fixed sentence as an
            animation, and as a strip of drawings with their steps. The animations are SVG files in
            the same directory.
        sentences: texts that are drawn; the first three docs of the corpus if there are none.
        corpus: dot name of the corpus for the statistics, such as "corpora.dev"; the corpus of
            ``training.dev_corpus`` if None.
        limit: number of its docs.
        components: names of components; all with a latent layer if None.
        columns: statistics of each component in the console; by the kind of its structure if None.
        frames: largest number of evaluations that are drawn, at equal distances.
    """
    check_texts("StructureLogger", sentences=sentences)
    check_texts("StructureLogger", or_null=True, components=components, columns=columns)
    check_whole("StructureLogger", limit=limit)
    check_whole("StructureLogger", least=2, frames=frames)

    def setup_logger(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        wrapped = logger or registry.get("loggers", "spacy.ConsoleLogger.v3")()
        drawn = None if drawings is None else list(sentences)
        observer = StructureObserver(nlp, corpus, limit, components, drawn)
        shown = observer.columns(columns)
        logging = _Logging(observer, shown, stdout, output_file, drawings, frames)
        return logging.around(*wrapped(nlp, logging.table, stderr))  # type: ignore[arg-type]

    return setup_logger


class _Logging:
    """Statistics of each evaluation, in the console's table and in a file of JSON lines.

    Args:
        shown: (layer, statistic) of each further column of the table.
        page: page of drawings, written when training ends, or None.
    """

    def __init__(
        self,
        observer: StructureObserver,
        shown: list[tuple[str, str]],
        stdout: IO[str],
        output_file: str | Path | None,
        page: str | Path | None,
        frames: int,
    ) -> None:
        from spacy_latent.training.console_table import WidenedTable

        self.observer, self.shown = observer, shown
        self.table = WidenedTable(stdout, _titles(shown))
        names = list(dict.fromkeys(component for component, _ in shown))
        if len(names) > 1:
            numbered = ", ".join(f"{i} is {name}" for i, name in enumerate(names, 1))
            # spaCy's character, or a replacement if the encoding lacks it.
            icon = ICONS[MESSAGES.INFO]
            stdout.write(f"{icon} Numbers in the last columns' titles: {numbered}\n")
        for file in (output_file, page):
            if file is not None:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
        # A pipe or /dev/null has no earlier lines.
        is_file = output_file is not None and Path(output_file).is_file()
        mode = "a+" if is_file else "w"
        self.lines = None if output_file is None else open(output_file, mode, encoding="utf8")
        self.has_begun = not is_file
        self.page, self.frames = page, frames

    def around(
        self, log_wrapped: LogStep, finalize_wrapped: Callable[[], None]
    ) -> tuple[LogStep, Callable[[], None]]:
        """Return the functions of the wrapped logger, to which these statistics are added."""

        def log_step(info: dict[str, Any] | None) -> None:
            log_wrapped(None if info is None else self.add(info))

        def finalize() -> None:
            finalize_wrapped()
            if self.lines is not None:
                self.lines.close()
            if self.page is None:
                return
            try:
                write_films(self.observer, Path(self.page), self.frames)
            except Exception as error:
                # spaCy saves the pipeline after this, and that matters more.
                message = f"StructureLogger: {self.page} was not written: {error}"
                warnings.warn(message, LatentWarning, stacklevel=2)

        return log_step, finalize

    def add(self, info: dict[str, Any]) -> dict[str, Any]:
        """Evaluate a step, and return its information with the statistics among the scores."""
        found = self.observer.evaluate(info["step"])
        self.table.expect_row(
            info["epoch"], info["step"], [found.get(c, {}).get(name) for c, name in self.shown]
        )
        if self.lines is not None:
            if not self.has_begun:
                _drop_lines_from(self.lines, info["step"])
                self.has_begun = True
            self.lines.write(srsly.json_dumps(_record(info, found)) + "\n")
            self.lines.flush()
        scores = info.get("other_scores")
        if not isinstance(scores, dict):
            return info
        return {**info, "other_scores": {**scores, **_flat(found)}}


def write_films(observer: StructureObserver, path: Path, frames: int) -> None:
    """Write a page ``strip.html``, and ``strip-1.svg`` and so on for each text and layer."""
    from spacy_latent.visualize.charts import curves
    from spacy_latent.visualize.film import animated_svg, film_page

    if not observer.history:
        return
    films = make_films(observer, frames)
    charts = []
    for layer in observer.statistics[-1]:
        for name in CHARTS:
            line = [found.get(layer, {}).get(name, math.nan) for found in observer.statistics]
            if any(map(math.isfinite, line)):
                charts.append(curves(f"{layer}: {name}", observer.steps, {name: line}))
    texts, steps = number_of(len(observer.drawn), "text"), number_of(observer.steps[-1], "step")
    title = f"Structures of {texts} over {steps}"
    path.write_text(film_page(films, title, "".join(charts)), encoding="utf8")
    for i, film in enumerate(films, 1):
        try:
            animation = animated_svg(film)
        except LatentError:
            # The page shows the error in place of the animation.
            continue
        if animation:
            path.with_name(f"{path.stem}-{i}.svg").write_text(animation, encoding="utf8")


def make_films(observer: StructureObserver, frames: int) -> list[Film]:
    """Make a film of each text and layer, of at most ``frames`` evaluations at equal distances."""
    from spacy_latent.visualize.film import Film, Frame

    last = len(observer.history) - 1
    chosen = sorted({round(i * last / (frames - 1)) for i in range(frames)})
    films = []
    for d in range(len(observer.drawn)):
        for layer in observer.history[-1][d]._.latent:
            shown = []
            before: list[list[SpanStructure]] | None = None
            for at in chosen:
                doc = observer.history[at][d]
                now = [doc._.latent[layer].spans]
                changed = changed_share(before, now)
                note = "" if changed is None else f" · {100 * changed:.0f} % changed"
                shown.append(Frame(f"step {observer.steps[at]}{note}", doc))
                before = now
            films.append(Film(layer, shown))
    return films


def _titles(shown: Sequence[tuple[str, str]]) -> list[str]:
    layers = list(dict.fromkeys(layer for layer, _ in shown))
    titles = []
    for layer, name in shown:
        number = f"{layers.index(layer) + 1} " if len(layers) > 1 else ""
        titles.append((number + TITLES.get(name, name))[:WIDEST_TITLE])
    return titles


def _flat(found: Statistics) -> dict[str, float]:
    """Return the statistics under names that both W&B and MLflow accept."""
    return {
        f"latent/{layer.replace('#', '.')}/{name.replace(' ', '_')}": value
        for layer, values in found.items()
        for name, value in values.items()
    }


def _drop_lines_from(lines: IO[str], step: int) -> None:
    """Drop the lines of this step and later ones; at step 0, of another training, all lines.

    A training that is resumed first evaluates at a later step.
    """
    lines.seek(0)
    kept = []
    for line in lines if step else ():
        # A process that was killed may have left half a line.
        with suppress(ValueError, KeyError, TypeError):
            if srsly.json_loads(line)["step"] < step:
                kept.append(line.rstrip() + "\n")
    lines.seek(0)
    lines.truncate()
    lines.writelines(kept)


def _record(info: dict[str, Any], found: Statistics) -> dict[str, Any]:
    return {
        "epoch": info["epoch"],
        "step": info["step"],
        "seconds": info.get("seconds"),
        "words": info.get("words"),
        "losses": _plain(info.get("losses") or {}),
        "scores": _plain(info.get("other_scores") or {}, 100.0),
        "score": _plain(info.get("score")),
        "structures": _plain(found),
    }


def _plain(value: Any, factor: float = 1.0) -> Any:
    """Convert a value for JSON, with null for values that are not finite.

    Args:
        factor: 100 for scores, which are in percent as in spaCy's console logger. Words per second
            are not scaled.
    """
    if isinstance(value, dict):
        factors = {"speed": 1.0}
        return {str(key): _plain(each, factors.get(key, factor)) for key, each in value.items()}
    if isinstance(value, (bool, str)) or value is None:
        return value
    if not hasattr(value, "__float__"):
        return str(value)
    number = float(value) * factor
    return number if math.isfinite(number) else None
