"""Annotation of a corpus of texts with any number of processes.

:func:`annotate_shard` annotates one shard independently of all others, so that any launcher of
processes can call it. Its result appears completely under its final name, or not at all. An
interrupted annotation is therefore resumed by starting it again, and only unfinished shards are
repeated. :func:`annotate` distributes the shards of a corpus over processes of this machine. It
gives the shard of a process that died to another process.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape as glob_escape
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.distributed.directories import replace_file
from spacy_latent.distributed.parquet import Row, pyarrow, schema, to_table
from spacy_latent.distributed.shards import (
    STDIN,
    Shard,
    Source,
    form_of,
    read_shard,
    shards_of,
    shards_of_lines,
)
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

ENDINGS = {"parquet": ".parquet", "docbin": ".spacy"}
ROWS = 10_000
# Number of rows that are in memory at once, with their docs.
CHUNK = 1024
BATCH = 256
# Number of processes that may die while annotating a shard before the shard is abandoned.
ATTEMPTS = 3
# Readers of a directory of Parquet skip this name.
MANIFEST = "_annotation.json"


@dataclass(frozen=True)
class Done:
    """Result of the annotation of one shard or of many.

    Attributes:
        rows: Number of texts written.
        failed: Number of these texts without a doc.
        skipped: Number of shards that existed already.
        reason: Id of a text that failed, and its error.
    """

    rows: int = 0
    failed: int = 0
    shards: int = 0
    skipped: int = 0
    reason: str = field(default="", compare=False)

    def __add__(self, other: Done) -> Done:
        return Done(
            self.rows + other.rows,
            self.failed + other.failed,
            self.shards + other.shards,
            self.skipped + other.skipped,
            self.reason or other.reason,
        )


@dataclass(frozen=True)
class Model:
    """Loaded pipeline.

    Attributes:
        hash: Digest of the files of the pipeline, hexadecimal.
    """

    nlp: Language
    name: str
    version: str
    hash: str


_loaded: dict[str, Model] = {}


def load(model: str | Path) -> Model:
    """Load the pipeline of a directory or an installed package, once in each process."""
    key = str(model)
    if key not in _loaded:
        import spacy

        hash_ = model_hash(model)
        try:
            nlp = spacy.load(model)
        except Exception as error:
            raise LatentError(
                f"The pipeline {key!r} cannot be loaded: {_said(error)}. Give a directory that "
                "'spacy train' wrote, with --code where it needs functions of your own."
            ) from error
        name = f"{nlp.meta.get('lang', '')}_{nlp.meta.get('name', '')}"
        _loaded[key] = Model(nlp, name, str(nlp.meta.get("version", "")), hash_)
    return _loaded[key]


def model_hash(model: str | Path) -> str:
    """Return a digest of the files of a pipeline and of their names."""
    folder = _folder(model)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _folder(model: str | Path) -> Path:
    """Return the directory of the files of a pipeline."""
    from spacy.util import get_package_path, is_package

    folder = Path(model)
    if not folder.exists() and is_package(str(model)):
        folder = get_package_path(str(model))
    if not folder.is_dir():
        raise LatentError(
            f"The pipeline {str(model)!r} does not exist. Give a directory that 'spacy train' "
            "wrote, such as training/model-best, or the name of an installed package."
        )
    return folder


def text_fields(model: str | Path, given: str | None = None) -> dict[str, str]:
    """Return the fields of a row with texts, for :func:`spacy_latent.distributed.shards.shards_of`.

    There are as many fields as texts that the pipeline reads together. The pipeline is not loaded.

    Args:
        model: Directory of a pipeline, or name of an installed one.
        given: Name of the field, or two names with a comma between them. None is "text", or for
            pairs the names in the config.

    Raises:
        LatentError: If the model is not a pipeline, or one name is given and it reads pairs.
    """
    from spacy_latent.corpora.text_pairs import is_of_pairs, pair_fields

    config = _config(model)
    if not is_of_pairs(config):
        return {"text_field": given or "text"}
    first, *others = given.split(",") if given else pair_fields(config)[:2]
    if len(others) != 1:
        raise LatentError(
            f"The pipeline reads pairs of texts, and --text-field is {given!r}. Name two fields: "
            "--text-field text_a,text_b, or so."
        )
    return {"text_field": first, "second_field": others[0]}


def _config(model: str | Path) -> dict[str, Any]:
    """Return the interpolated config, or an empty one if it cannot be read.

    Loading the pipeline raises the error of a config that cannot be read.
    """
    from spacy.util import load_config

    from spacy_latent.pipeline.directories import why_no_pipeline

    if wrong := why_no_pipeline(model):
        raise LatentError(f"The pipeline {str(model)!r} cannot be loaded. {wrong}")
    folder = _folder(model)
    # An installed package has the pipeline in a subdirectory.
    found = (path for path in (folder / "config.cfg", *folder.glob("*/config.cfg")))
    for path in found:
        if path.is_file():
            with suppress(Exception):
                return dict(load_config(path, interpolate=True))
            break
    return {}


# ---------------------------------------------------------------- one shard


def annotate_rows(nlp: Language, sources: Iterable[Source], batch_size: int = BATCH) -> list[Row]:
    """Return a row for each text, in order.

    A component that fails abandons a whole batch. The texts of this batch are tried again one by
    one, so that only the texts that cause an error have one.
    """
    rows: list[Row] = []
    texts: list[str | tuple[str, str] | Doc] = []
    for source in sources:
        rows.append(Row(source.id, _text_of(source), error=source.error))
        texts.append(source.text)
    errors: dict[int, str] = {}

    def keep(name: str, component: Any, docs: list[Any], error: Exception) -> Any:
        errors.update({doc._context: f"{name}: {_said(error)}" for doc in docs})

    def annotate(numbers: Iterable[int]) -> None:
        docs: list[tuple[Doc, int]] = []
        for number in numbers:
            text = texts[number]
            try:
                docs.append((_doc_of(nlp, text), number))
            except Exception as error:
                errors[number] = f"tokenizer: {_said(error)}"
        try:
            for doc, number in nlp.pipe(docs, as_tuples=True, batch_size=batch_size):
                rows[number].doc = doc
        except Exception as error:
            # The component does not call the error handler. Trying the texts one by one shows which
            # of them causes the error.
            missing = (number for _, number in docs if rows[number].doc is None)
            errors.update(dict.fromkeys(missing, _said(error)))

    nlp.set_error_handler(keep)
    annotate(number for number, row in enumerate(rows) if row.error is None)
    for number, row in enumerate(rows):
        if row.doc is None and row.error is None:
            errors.pop(number, None)
            annotate([number])
            if row.doc is None:
                row.error = errors.get(number, "The pipeline gave no doc for this text.")
    return rows


def _text_of(source: Source) -> str:
    """Return the text as a doc has it, up to white space."""
    if isinstance(source.text, tuple):
        return " ".join(source.text)
    return source.text if isinstance(source.text, str) else source.text.text


def _doc_of(nlp: Language, text: str | tuple[str, str] | Doc) -> Doc:
    from spacy_latent.corpora.text_pairs import make_pair_doc

    if isinstance(text, tuple):
        return make_pair_doc(nlp, *text)
    return nlp.make_doc(text) if isinstance(text, str) else text


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def annotate_shard(
    model: str | Path,
    source: str | Path | Shard,
    target: str | Path,
    *,
    batch_size: int = BATCH,
    after_chunk: Callable[[], object] = lambda: None,
) -> Done:
    """Annotate the texts of a file, or of a part of one, and write one row per text to ``target``.

    Nothing is done if the target exists. The target is written under a temporary name in its
    directory and then renamed.

    Args:
        model: Directory of a pipeline, or name of an installed one. It is loaded once in each
            process.
        source: A file, see :data:`spacy_latent.distributed.shards.ACCEPTED`, or a shard.
        target: A .parquet file, see :func:`spacy_latent.distributed.parquet.schema`; or a .spacy
            file, whose docs have "id", "model_hash" and, if they failed, "error" in
            ``doc.user_data``.
        batch_size: Batch size of ``nlp.pipe``.
        after_chunk: Called after each chunk of texts.

    Raises:
        LatentError: If the corpus cannot be read.
    """
    target = Path(target)
    if target.exists():
        return Done(skipped=1)
    form = next((form for form, ending in ENDINGS.items() if target.suffix == ending), None)
    if form is None:
        raise LatentError(f"The target is {target}; expected a .parquet or a .spacy file.")
    if not isinstance(source, Shard):
        (source,) = shards_of(Path(source), sys.maxsize, **text_fields(model))
    pipeline = load(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        write = _write_parquet if form == "parquet" else _write_docs
        done = write(pipeline, source, made, batch_size, after_chunk)
        with made.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(made, target)
    except FileNotFoundError:
        # Another process with the same task finished first and has removed our temporary file.
        if not target.exists():
            raise
        return Done(skipped=1)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    # Temporary files of processes that were killed, or that still write the same target.
    for rest in target.parent.glob(f".{glob_escape(target.name)}.*.tmp"):
        rest.unlink(missing_ok=True)
    return done


def _chunks(
    pipeline: Model, shard: Shard, batch_size: int, after_chunk: Callable[[], object]
) -> Iterator[list[Row]]:
    """Yield the rows of one chunk after the other.

    The docs of a chunk become invalid with the next chunk, because their words are not kept in the
    vocabulary.
    """
    sources = read_shard(shard, pipeline.nlp.vocab)
    while True:
        with pipeline.nlp.memory_zone():
            some = list(islice(sources, CHUNK))
            if not some:
                return
            yield annotate_rows(pipeline.nlp, some, batch_size)
        after_chunk()


def _write_parquet(pipeline: Model, shard: Shard, made: Path, *how: Any) -> Done:
    done = Done(shards=1)
    identity = pipeline.name, pipeline.version, pipeline.hash
    with pyarrow().parquet.ParquetWriter(made, schema(), compression="zstd") as writer:
        for rows in _chunks(pipeline, shard, *how):
            writer.write_table(to_table(rows, identity))
            done += _count(rows)
    return done


def _write_docs(pipeline: Model, shard: Shard, made: Path, *how: Any) -> Done:
    from spacy.tokens import Doc, DocBin

    done, docs = Done(shards=1), DocBin(store_user_data=True)
    for rows in _chunks(pipeline, shard, *how):
        for row in rows:
            doc = row.doc
            if doc is None:
                # One token, so that any text can be stored, and read without a tokenizer.
                words = [row.text] if row.text else []
                doc = Doc(pipeline.nlp.vocab, words=words, spaces=[False] * len(words))
                doc.user_data["error"] = row.error
            doc.user_data.update(id=row.id, model_hash=pipeline.hash)
            docs.add(doc)
        done += _count(rows)
    made.write_bytes(docs.to_bytes())
    return done


def _count(rows: list[Row]) -> Done:
    failed = [row for row in rows if row.doc is None]
    reason = f"{failed[0].id}: {failed[0].error}" if failed else ""
    return Done(rows=len(rows), failed=len(failed), reason=reason)


# ---------------------------------------------------------------- many shards


def annotate(
    model: str | Path,
    source: str | Path,
    output: Path,
    *,
    workers: int = 1,
    form: str = "parquet",
    rows: int = ROWS,
    batch_size: int = BATCH,
    threads: int | None = None,
    id_field: str = "id",
    text_field: str | None = None,
    prepare: Callable[..., object] | None = None,
    prepare_with: tuple[object, ...] = (),
    progress: Callable[[Done], object] = lambda done: None,
) -> Done:
    """Annotate a corpus with processes of this machine.

    Args:
        model: Directory of a pipeline, or name of an installed one.
        source: See :data:`spacy_latent.distributed.shards.ACCEPTED`; "-" for lines of standard
            input.
        output: Directory with one file per shard. Files that exist are not written again, if they
            belong to the same pipeline and the same corpus.
        workers: Number of processes; 1 uses this process.
        form: "parquet" or "docbin".
        rows: Number of texts in each shard.
        batch_size: Batch size of ``nlp.pipe``.
        threads: Number of threads of each process; None divides the cores among the processes.
        id_field: Name of the column, or field of JSON, with the ids.
        text_field: Name of the column, or field of JSON, with the texts. For a pipeline that reads
            pairs of texts, two names with a comma between them. None: see :func:`text_fields`.
        prepare: Function of a module that each process calls before the pipeline is loaded.
        prepare_with: Arguments of ``prepare``.
        progress: Called after each shard with the sum of all results so far.

    Raises:
        LatentError: If the output belongs to another pipeline or corpus. Also, after all other
            shards are done, if every process of a shard died.
    """
    if workers < 1:
        raise LatentError(f"The number of workers is {workers}; expected a number >= 1.")
    jobs = jobs_of(model, source, output, form, rows, id_field, text_field)
    share = max(1, _cores() // workers) if threads is None else threads
    how = _How(str(model), batch_size, share, prepare, prepare_with)
    if workers == 1:
        import torch

        before = torch.get_num_threads()
        how.prepare()
        total = Done()
        try:
            for shard, target in jobs:
                total += annotate_shard(model, shard, target, batch_size=batch_size)
                progress(total)
        finally:
            torch.set_num_threads(before)
        return total
    return _Workers(how, workers, progress).run(jobs)


def jobs_of(
    model: str | Path,
    source: str | Path,
    output: Path,
    form: str = "parquet",
    rows: int = ROWS,
    id_field: str = "id",
    text_field: str | None = None,
) -> Iterator[tuple[Shard, Path]]:
    """Yield the arguments of :func:`annotate_shard` for all shards of a corpus.

    See :func:`annotate` for the arguments.

    Raises:
        LatentError: If the corpus cannot be read, or the output belongs to another pipeline or
            corpus.
    """
    if form not in ENDINGS:
        raise LatentError(f"The format is {form!r}; expected one of {', '.join(ENDINGS)}.")
    if form == "parquet":
        pyarrow()
    fields = text_fields(model, text_field)
    listed = None
    if str(source) != STDIN:
        listed = shards_of(Path(source), rows, id_field, **fields)
    if "second_field" in fields and (listed is None or any(map(_is_of_lines, listed))):
        raise LatentError(
            "The pipeline reads pairs of texts, and lines of text are none. Give .jsonl or "
            ".parquet with a field for each of both, named by --text-field text_a,text_b, or so; "
            "or .spacy."
        )
    shards = shards_of_lines(sys.stdin, rows) if listed is None else listed
    names = id_field, ",".join(fields.values())
    _check_output(output, model_hash(model), form, rows, names, listed)
    return ((shard, output / f"{shard.name}{ENDINGS[form]}") for shard in shards)


def _is_of_lines(shard: Shard) -> bool:
    return form_of(Path(shard.path)) == "text"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_output(
    output: Path,
    hash_: str,
    form: str,
    rows: int,
    fields: tuple[str, str],
    shards: list[Shard] | None,
) -> None:
    """Raise LatentError if the output belongs to another annotation or cannot be written."""
    ours: dict[str, Any] = {
        "model_hash": hash_,
        "format": form,
        "rows": rows,
        "fields": list(fields),
        "files": STDIN,
    }
    if shards is not None:
        # By the names of the shards and not by path, because a corpus may be moved.
        paths = {shard.name.rsplit("-", 1)[0]: shard.path for shard in shards}
        ours["files"] = {name: os.path.getsize(path) for name, path in paths.items()}
    path = output / MANIFEST
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if any(file.suffix in ENDINGS.values() for file in output.iterdir()):
                raise LatentError(
                    f"{output} holds files of something else. Give a directory of its own."
                )
            replace_file(path, json.dumps(ours, indent=2) + "\n")
            return
        if shards is None:
            raise LatentError(
                f"{output} was begun already, and standard input cannot be taken up where it was "
                "left. Give another directory, or a file in the place of standard input."
            )
        theirs = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise LatentError(
            f"{output} cannot be written to: {error.strerror}. Give another directory."
        ) from error
    except ValueError as error:
        raise LatentError(
            f"{path}, which says what {output} was begun with, is no JSON: {error}. Delete "
            f"{output} to begin anew, or name another directory."
        ) from error
    if other := list(_differences(theirs, ours)):
        raise LatentError(
            f"{output} was begun with other settings than these: {'; '.join(other)}. Give what it "
            "was begun with, to go on; else delete it, or name another directory."
        )


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Yield a clause for each difference, by the names of options."""
    if ours["model_hash"] != theirs.get("model_hash"):
        yield "another pipeline"
    if ours["files"] != theirs.get("files"):
        yield "another corpus, or files of another size"
    then = dict(zip(("--id-field", "--text-field"), theirs.get("fields", ())))
    now = dict(zip(("--id-field", "--text-field"), ours["fields"]))
    for key in ("format", "rows"):
        then[f"--{key}"], now[f"--{key}"] = theirs.get(key), ours[key]
    for option, value in now.items():
        if value != then.get(option):
            yield f"{option} was {then.get(option)}, and is {value}"


@dataclass(frozen=True)
class _How:
    """Settings that each process needs."""

    model: str
    batch_size: int
    threads: int
    prepare_first: Callable[..., object] | None
    prepare_with: tuple[object, ...]

    def prepare(self) -> None:
        import torch

        # This is also the limit of the thread pool of the kernels.
        torch.set_num_threads(self.threads)
        if self.prepare_first is not None:
            self.prepare_first(*self.prepare_with)


def _work(how: _How, connection: Connection) -> None:
    """Annotate shards in a worker process until the connection is closed."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        try:
            how.prepare()
            while True:
                shard, target = connection.recv()
                done = annotate_shard(
                    how.model,
                    shard,
                    target,
                    batch_size=how.batch_size,
                    after_chunk=lambda: connection.send("warm"),
                )
                connection.send(done)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            # Send a message instead of the error, because not every error can be pickled.
            said = str(error) if isinstance(error, LatentError) else _said(error)
            connection.send(LatentError(said))


class _Worker:
    """Process with its current shard."""

    def __init__(self, how: _How) -> None:
        self.connection, theirs = _context().Pipe()
        self.process = _context().Process(target=_work, args=(how, theirs), daemon=True)
        with _threads_in_environment(how.threads):
            self.process.start()
        # Otherwise this process would not see the end of the connection.
        theirs.close()
        self.job: tuple[Shard, Path] | None = None


class _Workers:
    """Processes that receive shards.

    Each process has its own connection. A process that is killed would leave a shared connection
    locked.
    """

    def __init__(self, how: _How, count: int, progress: Callable[[Done], object]) -> None:
        self.how, self.count, self.progress = how, count, progress
        self.workers: list[_Worker] = []
        self.again: list[tuple[Shard, Path]] = []
        self.deaths: dict[str, int] = {}
        self.lost: list[str] = []
        self.total = Done()
        # The first process fills the cache of compiled kernels, which all others then use.
        self.is_warm = False

    def run(self, jobs: Iterator[tuple[Shard, Path]]) -> Done:
        try:
            while self._give(jobs) or self.workers:
                busy = {worker.connection: worker for worker in self.workers}
                for connection in wait(list(busy)):
                    self._hear(busy[connection])
        finally:
            for worker in self.workers:
                worker.process.kill()
        if self.lost:
            raise LatentError(
                f"{len(self.lost)} shard(s) are not done, because {ATTEMPTS} processes died of "
                f"each: {', '.join(self.lost[:5])}. All others are. Often memory ran out: take "
                "fewer workers or a smaller --batch-size, and start again to do the rest."
            )
        return self.total

    def _next(self, jobs: Iterator[tuple[Shard, Path]]) -> tuple[Shard, Path] | None:
        while True:
            job = self.again.pop() if self.again else next(jobs, None)
            if job is None or not job[1].exists():
                return job
            self._add(Done(skipped=1))

    def _give(self, jobs: Iterator[tuple[Shard, Path]]) -> bool:
        """Give shards to all idle processes, as long as there are shards."""
        for worker in [worker for worker in self.workers if worker.job is None]:
            worker.job = self._next(jobs)
            if worker.job is None:
                worker.connection.close()
                worker.process.join()
                self.workers.remove(worker)
                continue
            with suppress(BrokenPipeError, ConnectionResetError):
                worker.connection.send(worker.job)
        while len(self.workers) < (self.count if self.is_warm else 1):
            job = self._next(jobs)
            if job is None:
                return False
            worker = _Worker(self.how)
            self.workers.append(worker)
            worker.job = job
            with suppress(BrokenPipeError, ConnectionResetError):
                worker.connection.send(job)
        return True

    def _hear(self, worker: _Worker) -> None:
        assert worker.job is not None
        shard, _ = worker.job
        try:
            said = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self.workers.remove(worker)
            worker.process.join()
            worker.connection.close()
            self.deaths[shard.name] = self.deaths.get(shard.name, 0) + 1
            if self.deaths[shard.name] < ATTEMPTS:
                self.again.append(worker.job)
            else:
                self.lost.append(shard.name)
            return
        self.is_warm = True
        if isinstance(said, LatentError):
            raise said
        if isinstance(said, Done):
            worker.job = None
            self._add(said)

    def _add(self, done: Done) -> None:
        self.total += done
        self.progress(self.total)


def _context() -> Any:
    """Return a multiprocessing context whose processes share no state with this one.

    If the system supports it, they are forks of a process that has imported the modules that all of
    them need.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spacy_latent.distributed.preloaded"])
    return context


@contextmanager
def _threads_in_environment(threads: int) -> Iterator[None]:
    """Set the environment variables of libraries that count cores when they are imported."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(threads) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


__all__ = ["Done", "annotate", "annotate_rows", "annotate_shard", "jobs_of", "load", "model_hash"]
