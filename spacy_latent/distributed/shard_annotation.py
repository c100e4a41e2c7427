"""Annotation of one shard of a corpus, independently of all others.

Any launcher of processes can call :func:`annotate_shard`. Its result appears completely under its
final name, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from glob import escape as glob_escape
from itertools import islice
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.util import get_package_path, is_package, load_config

from spacy_latent.corpora.text_pairs import is_of_pairs, make_pair_doc, pair_fields
from spacy_latent.distributed.parquet import Row, pyarrow, schema, to_table
from spacy_latent.distributed.shards import Shard, Source, form_of, read_shard, shards_of
from spacy_latent.errors import LatentError, check_whole

ENDINGS = {"parquet": ".parquet", "docbin": ".spacy"}
# Number of rows that are in memory at once, with their docs.
CHUNK = 1024
BATCH = 256


@dataclass(frozen=True)
class Done:
    """Result of the annotation of one shard or of many.

    Attributes:
        failed: Number of texts that were written without a doc.
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
                f"The pipeline {key!r} cannot be loaded: {error_text(error)}. Give a directory "
                "that 'spacy train' wrote, with --code if it needs functions of your own."
            ) from error
        name = f"{nlp.meta.get('lang', '')}_{nlp.meta.get('name', '')}"
        _loaded[key] = Model(nlp, name, str(nlp.meta.get("version", "")), hash_)
    return _loaded[key]


def forget_others(model: str | Path, hash_: str) -> None:
    """Forget a loaded pipeline with another digest: the files of its directory have changed."""
    loaded = _loaded.get(str(model))
    if loaded is not None and loaded.hash != hash_:
        del _loaded[str(model)]


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
    """Return the fields of texts for :func:`spacy_latent.distributed.shards.shards_of`.

    A pipeline of pairs has two of them. The pipeline is not loaded.

    Args:
        model: Directory of a pipeline, or name of an installed one.
        given: Name of the field, or two names with a comma between them. None is "text", or for
            pairs the names in the config.

    Raises:
        LatentError: If the model is not a pipeline, or one name is given and it reads pairs.
    """
    config = _config(model)
    if not is_of_pairs(config):
        return {"text_field": given or "text"}
    first, *others = given.split(",") if given else pair_fields(config)[:2]
    if len(others) != 1:
        raise LatentError(
            f"The pipeline reads pairs of texts, and --text-field is {given!r}. Name two fields, "
            "as in --text-field text_a,text_b."
        )
    return {"text_field": first, "second_field": others[0]}


def _config(model: str | Path) -> dict[str, Any]:
    """Return the interpolated config, empty if it cannot be read, which loading explains."""
    from spacy_latent.pipeline.directories import why_no_pipeline

    if wrong := why_no_pipeline(model):
        raise LatentError(f"The pipeline {str(model)!r} cannot be loaded. {wrong}")
    folder = _folder(model)
    # An installed package has the pipeline in a subdirectory.
    for path in (folder / "config.cfg", *folder.glob("*/config.cfg")):
        if path.is_file():
            with suppress(Exception):
                return dict(load_config(path, interpolate=True))
            break
    return {}


def annotate_rows(nlp: Language, sources: Iterable[Source], batch_size: int = BATCH) -> list[Row]:
    """Return a row for each text, in order.

    A component that fails abandons a whole batch. Its texts are tried again one by one, so that
    only the texts that cause an error have one.
    """
    rows: list[Row] = []
    texts: list[str | tuple[str, str] | Doc] = []
    for source in sources:
        rows.append(Row(source.id, _text_of(source), error=source.error))
        texts.append(source.text)
    errors: dict[int, str] = {}

    def keep(name: str, component: Any, docs: list[Any], error: Exception) -> Any:
        errors.update({doc._context: f"{name}: {error_text(error)}" for doc in docs})

    def annotate(numbers: Iterable[int]) -> None:
        docs: list[tuple[Doc, int]] = []
        for number in numbers:
            text = texts[number]
            try:
                docs.append((_doc_of(nlp, text), number))
            except Exception as error:
                errors[number] = f"tokenizer: {error_text(error)}"
        try:
            for doc, number in nlp.pipe(docs, as_tuples=True, batch_size=batch_size):
                rows[number].doc = doc
        except Exception as error:
            # The component does not call the error handler, which would know the text.
            missing = (number for _, number in docs if rows[number].doc is None)
            errors.update(dict.fromkeys(missing, error_text(error)))

    nlp.default_error_handler = keep
    for _, pipe in nlp.pipeline:
        # A component of compiled code may have no place for a handler, as spaCy's ner and parser in
        # some versions. Its errors end nlp.pipe instead.
        if hasattr(pipe, "set_error_handler"):
            with suppress(AttributeError):
                pipe.set_error_handler(keep)
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
    if isinstance(text, tuple):
        return make_pair_doc(nlp, *text)
    return nlp.make_doc(text) if isinstance(text, str) else text


def error_text(error: Exception) -> str:
    """Return the type and the message of an error."""
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
            process, even if its files change.
        source: A file, see :data:`spacy_latent.distributed.shards.ACCEPTED`, or a shard.
        target: A .parquet file, see :func:`spacy_latent.distributed.parquet.schema`; or a .spacy
            file, whose docs have "id", "model_hash" and, if they failed, "error" in
            ``doc.user_data``.
        batch_size: Batch size of ``nlp.pipe``.
        after_chunk: Called after each chunk of texts.

    Raises:
        LatentError: If the corpus cannot be read, or the target cannot be written.
    """
    check_whole("annotate_shard", batch_size=batch_size)
    target = Path(target)
    if target.exists():
        return Done(skipped=1)
    write = _writer_of(target)
    if not isinstance(source, Shard):
        (source,) = shards_of(Path(source), sys.maxsize, **text_fields(model))
    pipeline = load(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        done = write(pipeline, source, made, batch_size, after_chunk)
        with made.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(made, target)
    except FileNotFoundError:
        # Another process with the same task finished first and has removed our temporary file.
        if not target.exists():
            raise
        return Done(skipped=1)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise LatentError(
            f"{target} could not be made from {source.path}: {error.strerror or error}. Free "
            "disk space or change the permissions, and start again. Complete files are kept."
        ) from error
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    # Temporary files of processes that were killed, or that still write the same target.
    for rest in target.parent.glob(f".{glob_escape(target.name)}.*.tmp"):
        rest.unlink(missing_ok=True)
    return done


def _writer_of(target: Path) -> Callable[..., Done]:
    """Return the function that writes a target, by its ending."""
    writers = {ENDINGS["parquet"]: _write_parquet, ENDINGS["docbin"]: _write_docs}
    if target.suffix not in writers:
        raise LatentError(f"The target is {target}; expected a .parquet or a .spacy file.")
    return writers[target.suffix]


def _chunks(
    pipeline: Model, shard: Shard, batch_size: int, after_chunk: Callable[[], object]
) -> Iterator[list[Row]]:
    """Yield the rows of one chunk after the other.

    The next chunk makes the docs invalid, because the vocabulary forgets their words. The words of
    a file of docs are kept until its end, since they are read before its first doc.
    """
    sources = read_shard(shard, pipeline.nlp.vocab)
    at_once = shard.lines is None and form_of(Path(shard.path)) == "docbin"
    with pipeline.nlp.memory_zone() if at_once else nullcontext():
        while True:
            with nullcontext() if at_once else pipeline.nlp.memory_zone():
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
