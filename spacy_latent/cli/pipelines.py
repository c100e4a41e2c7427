"""Loading of pipelines on the command line, and their annotation of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.cli.messages import fail
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


def import_code(path: Path | None) -> None:
    """Run the Python file of ``--code``, which may register functions."""
    from spacy.util import import_file

    if path is None:
        return
    if not path.is_file():
        fail(f"--code: {path} does not exist. Give a Python file.")
    try:
        import_file("python_code", path)
    except Exception as error:
        fail(f"--code: {path} cannot be run: {type(error).__name__}: {error}")


def use_gpu(gpu_id: int) -> None:
    """Select the GPU, or the CPU for -1; a missing GPU is an error."""
    if gpu_id < 0:
        return
    from thinc.api import require_gpu

    try:
        require_gpu(gpu_id)
    except ValueError as error:
        fail(
            f"GPU {gpu_id} cannot be used: {error}",
            "Leave --gpu-id out to run on the CPU, or install the GPU libraries with "
            "pip install 'spacy-latent[gpu]'.",
        )


def prepare(code: Path | None, gpu_id: int) -> None:
    """Prepare a process before it loads a pipeline."""
    import_code(code)
    use_gpu(gpu_id)


def check_arguments(models: Iterable[Path], corpus: Path, command: str) -> None:
    """Exit with an error if a pipeline or the corpus is missing, or is given as the other."""
    order = (
        "Give the pipelines first, and the corpus last: "
        f"spacy latent evaluate {command} MODEL CORPUS"
    )
    for path in (*models, corpus):
        if not path.exists() and not is_installed(path):
            fail(f"{path} does not exist.")
    if (corpus / "config.cfg").is_file():
        fail(f"{corpus} is a pipeline; expected a corpus", order)
    for path in models:
        if path.is_file():
            fail(f"{path} is a file; expected the directory of a pipeline", order)


def is_installed(model: Path | str) -> bool:
    """Return whether a name is the one of an installed package."""
    from spacy.util import is_package

    return is_package(str(model))


def load(model: str) -> Language:
    """Load the pipeline of a directory or an installed package, or exit with an error."""
    import spacy

    from spacy_latent.pipeline.directories import why_no_pipeline

    if wrong := why_no_pipeline(model):
        fail(f"The pipeline {model!r} cannot be loaded", wrong)
    try:
        return spacy.load(model)
    except Exception as error:
        # For every error, the user needs the name of the directory and the reason.
        fail(
            f"The pipeline {model!r} cannot be loaded",
            _unknown_name(model, error)
            or f"{str(error).rstrip('.')}.\nGive a directory that 'spacy train' wrote, such as "
            "training/model-best; if it was copied, copy the whole directory again.",
        )


def _unknown_name(model: str, error: Exception) -> str | None:
    """Return a sentence on an unregistered name if it caused the error, or None."""
    from catalogue import RegistryError
    from spacy.util import load_config

    from spacy_latent.cli.config_errors import unknown_names

    path = Path(model) / "config.cfg"
    if not isinstance(error, RegistryError) or not path.is_file():
        return None
    return next(unknown_names(load_config(path)), None)


def best_pipeline(path: str) -> str:
    """Return the directory, or the best pipeline in it if 'spacy train' wrote it."""
    best = Path(path) / "model-best"
    return str(best) if best.is_dir() and not (Path(path) / "meta.json").is_file() else path


def trained_name(path: Path) -> str:
    """Return the name of a pipeline's directory, or of its parent if 'spacy train' wrote it."""
    above = path.parent.name if path.name in ("model-best", "model-last") else ""
    return above or path.name


def short_name(path: str, among: Iterable[str] = ()) -> str:
    """Return the end of a path, long enough to distinguish it from others."""
    parts = Path(path).parts
    for count in range(1, len(parts) + 1):
        name = "/".join(parts[-count:])
        if count >= 2 or not Path(path).is_dir():
            if sum("/".join(Path(o).parts[-count:]) == name for o in set(among)) < 2:
                return name
    return path


def not_calibrated(nlp: Language, docs: Iterable[Doc], names: Iterable[str]) -> str:
    """Return a sentence on components whose probabilities are not calibrated, or "".

    Only probabilities that these docs store count.
    """
    from spacy_latent.pipeline.calibrated_components import uncalibrated_components

    raw = [name for name in uncalibrated_components(nlp) if name in set(names)]
    stored = {
        name
        for doc in docs
        for name in raw
        if name in doc._.latent
        for span in doc._.latent[name].spans
        if span.probabilities is not None or span.entity_probabilities is not None
    }
    if not stored:
        return ""
    uncalibrated = " and ".join(name for name in raw if name in stored)
    return (
        f"The probabilities of {uncalibrated} are as trained and may be too high: 'spacy latent "
        "calibrate' fits them to held-out text."
    )


def made_doc(nlp: Language, text: str) -> Doc:
    """Return the tokens of a text.

    Raises:
        LatentError: If the text is longer than ``nlp.max_length``.
    """
    if len(text) > nlp.max_length:
        raise LatentError(
            f"A text has {number_of(len(text), 'character', ',')}; expected at most "
            f"{nlp.max_length:,}, the max_length of the pipeline. Divide it into several texts."
        )
    return nlp.make_doc(text)


def annotated(
    nlp: Language,
    texts: Iterable[str | Doc],
    component: str | None,
    threshold: float | None,
    alternatives: int,
) -> Iterator[Doc]:
    """Yield docs with the probabilities of every latent layer, including inline layers.

    The annotation settings of the config do not matter. Each layer is read just before its
    component runs, so that it sees the same sentences.

    Raises:
        LatentError: If alternatives are requested and no component has any, or a text is too long.
    """
    from spacy_latent.annotations import Stored
    from spacy_latent.pipeline.inspection import choose_components, inspect_pipe, latent_components

    names = choose_components(nlp, component, annotating=True)
    found = latent_components(nlp, annotating=True)
    if alternatives and not any(found[name].has_alternatives for name in names):
        raise LatentError(
            f"{', '.join(names)} has no alternative structures. Leave out --alternatives. With "
            "--threshold you see every part with at least this probability."
        )
    kept = 0.01 if threshold is None else min(0.01, threshold)
    docs = (made_doc(nlp, text) if isinstance(text, str) else text for text in texts)
    # One text at a time, so that typed text is answered immediately.
    stored = Stored("probabilities", kept, alternatives)
    for doc, _ in inspect_pipe(nlp, docs, components=names, batch_size=1, stored=stored):
        yield doc
