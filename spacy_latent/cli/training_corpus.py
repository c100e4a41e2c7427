"""Corpora that a config trains with, and their missing paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.cli.config_blocks import block_of
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example
    from thinc.api import Config

    from spacy_latent.pipeline.diagnostic import Diagnostic, Level


# Number of development examples that are checked for references.
JUDGED = 200
# Number of training examples that are read, so that a corpus without end is possible.
SEARCHED = 20_000


def training_examples(nlp: Language, corpus: str | None) -> tuple[list[Example], str, Level]:
    """Return the examples, the reason if there are none, and the level of that message.

    At most :data:`SEARCHED` examples are read. Fewer would not do: the labels of a corpus may come
    late, as in a reader of several files.
    """
    from spacy.util import registry

    from spacy_latent.cli.config_errors import errors_with_blocks
    from spacy_latent.cli.corpus import read_examples

    if corpus is not None:
        return read_examples(nlp, corpus, SEARCHED), "", "note"
    why = ""
    level: Level = "error"
    try:
        config = nlp.config.interpolate()
        with errors_with_blocks(config):
            training = registry.resolve(config["training"])
            if why := missing_path(nlp.config, "train_corpus"):
                level = "note"
            elif why := absent_path(config, training["train_corpus"]):
                level = "warning"
            reader = corpus_reader(config, training["train_corpus"])
        examples = list(islice(reader(nlp), SEARCHED))
        if not (examples or why):
            why = other_files(nlp, training["train_corpus"]) or empty(config, training)
        return examples, why, level
    except Exception as error:
        # A config may name missing files. Everything else can still be checked.
        advice = "Give examples with --corpus, or the path as for 'spacy train'."
        if not why:
            why = f"the config's training corpus cannot be read ({error})."
            if has_path(nlp, "train_corpus"):
                return [], why, level
        return [], f"{why} {advice}", level


def development_mistakes(nlp: Language, learned: Sequence[Example]) -> list[Diagnostic]:
    """Return diagnostics on the first :data:`JUDGED` examples of the development corpus.

    Args:
        learned: Examples of the training corpus, with whose labels theirs are compared.
    """
    from spacy_latent.analysis.reference_check import without_references
    from spacy_latent.cli.config_errors import errors_with_blocks
    from spacy_latent.pipeline.diagnostic import Diagnostic

    if missing := missing_path(nlp.config, "dev_corpus"):
        return [Diagnostic("note", "no-dev-corpus", missing)]
    config = nlp.config.interpolate()
    judged = str(config["training"].get("dev_corpus"))
    if absent := absent_path(config, judged):
        return [Diagnostic("warning", "dev-corpus", absent)]
    try:
        with errors_with_blocks(config):
            examples = list(islice(corpus_reader(config, judged)(nlp), JUDGED))
    except Exception as error:
        # 'spacy train' would raise the same error, before training or after some steps.
        text = f"dev_corpus, the corpus that evaluates training, cannot be read: {error}"
        return [Diagnostic("error", "dev-corpus", text)]
    if not examples:
        text = f"[{judged}] has no examples to evaluate training on. {other_files(nlp, judged)}"
        return [Diagnostic("error", "dev-corpus", text.strip())]
    if without_references(nlp, examples)[1]:
        text = (
            f"None of the first {number_of(len(examples), 'example')} of [{judged}] is annotated "
            "with what the pipeline predicts, so all scores will be 0. Check the names of its "
            "fields, and the content of the file."
        )
        return [Diagnostic("warning", "dev-corpus", text)]
    return list(labels_not_learned(nlp, examples, judged, learned)) if learned else []


def labels_not_learned(
    nlp: Language, examples: list[Example], judged: str, learned: Sequence[Example]
) -> Iterator[Diagnostic]:
    """Yield diagnostics on labels in examples of ``judged`` that the training examples lack."""
    from spacy_latent.analysis.reference_check import a_label, listed, unknown_labels
    from spacy_latent.pipeline.diagnostic import Diagnostic

    config = nlp.config.interpolate()
    corpus = str(config["training"].get("train_corpus"))
    count = len(learned)
    part = f"the first {number_of(count, 'example')} of " if count == SEARCHED else ""
    for name, labels in unknown_labels(nlp, examples, learned).items():
        yield Diagnostic(
            "warning",
            "dev-labels",
            f"The {name} of [{judged}] have {a_label(labels)} that {part}[{corpus}] "
            f"{'do' if part else 'does'} not have: {listed(labels)}. Annotations with such a "
            "label count as missed or wrong. Check the spelling in both.",
        )


def corpus_reader(config: Config, name: str) -> Any:
    """Return the reader of a corpus, and resolve only its block: other paths may be missing."""
    from spacy.util import registry, resolve_dot_names

    block = block_of(config, name)
    if registry.is_promise(block):
        return registry.resolve({"reader": block})["reader"]
    outer = accumulate(name.split("."), "{}.{}".format)
    if not any(registry.is_promise(block_of(config, above)) for above in outer):
        raise LatentError(
            f"[training] names the corpus {name!r}, and the config has no block [{name}]"
        )
    # One function creates several corpora.
    return resolve_dot_names(config, [name])[0]


def other_files(nlp: Language, name: str) -> str:
    """Return a message if spaCy's reader would only warn of the format of a corpus, or ""."""
    from spacy_latent.cli.corpus import FROM_A_TABLE

    block = block_of(nlp.config.interpolate(), name)
    if not isinstance(block, dict) or not str(block.get("@readers")).startswith("spacy.Corpus."):
        return ""
    path = Path(str(block.get("path")))
    if not path.is_file() or path.suffix == ".spacy":
        return ""
    return (
        f"[{name}] reads docs (.spacy), and {path} is none. {FROM_A_TABLE} 'spacy convert' makes "
        "one of annotated tokens (.conllu, .iob)."
    )


def empty(config: Config, training: dict[str, Any]) -> str:
    """Return a message on a training corpus without texts, with its path if it has one."""
    name = training["train_corpus"]
    path = block_of(config, f"{name}.path")
    where = f"[{name}], path {path}," if isinstance(path, str) else f"[{name}]"
    return (
        f"the training corpus is empty: the reader of {where} gives no text with a token. Look at "
        "the file, and at settings that leave texts out, such as max_length."
    )


def missing_path(config: Config, setting: str) -> str:
    """Return a message if the corpus of a setting of [training] has no path, or ""."""
    interpolated = config.interpolate()
    name = str(block_of(interpolated, f"training.{setting}"))
    filled, raw = block_of(interpolated, name), block_of(config, name)
    if not isinstance(filled, dict) or filled.get("path", "") is not None:
        return ""
    path = raw["path"] if isinstance(raw, dict) else raw
    variable = re.fullmatch(r"\$\{(.+)\}", str(path))
    option = variable[1] if variable else f"{name}.path"
    return f"[{name}] has no path: 'spacy train' needs --{option}."


def has_path(nlp: Language, setting: str) -> bool:
    """Return whether the corpus of a setting of [training] has a path that exists."""
    config = nlp.config.interpolate()
    path = block_of(config, f"{block_of(config, f'training.{setting}')}.path")
    return isinstance(path, str) and Path(path).exists()


def absent_path(config: Config, name: str) -> str:
    """Return a message if the path of the corpus with this dotted name is missing, or ""."""
    path = block_of(config, f"{name}.path")
    if not isinstance(path, str) or not path or Path(path).exists():
        return ""
    return f"[{name}] path: {path} does not exist, and 'spacy train' needs it."
