"""The corpora that a config trains with, and which of their paths it leaves out."""

from __future__ import annotations

import re
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.errors import number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example
    from thinc.api import Config

    from spacy_latent.pipeline.mistakes import Finding


# Examples by which it is seen whether a corpus has anything to judge training by.
JUDGED = 200


def training_examples(nlp: Language, corpus: str | None, count: int) -> tuple[list[Example], str]:
    """The first examples, or none and the reason."""
    from spacy.util import registry

    from spacy_latent.cli.config_errors import errors_with_blocks
    from spacy_latent.cli.corpus import read_examples

    if corpus is not None:
        return read_examples(nlp, corpus, count), ""
    why = ""
    try:
        config = nlp.config.interpolate()
        with errors_with_blocks(config):
            training = registry.resolve(config["training"])
            why = missing_path(nlp, "train_corpus")
            reader = corpus_reader(config, training["train_corpus"])
        return list(islice(reader(nlp), count)), "the training corpus is empty."
    except Exception as error:
        # A config may name files that are not here; everything else can be checked all the same.
        why = why or f"the config's training corpus cannot be read ({error})."
        return [], f"{why} Give examples with --corpus, or the path as for 'spacy train'."


def development_mistakes(nlp: Language) -> list[Finding]:
    """What is wrong with the corpus that a training is judged by, of which the first
    :data:`JUDGED` examples are read."""
    from spacy_latent.analysis.reference_check import without_references
    from spacy_latent.cli.config_errors import errors_with_blocks
    from spacy_latent.pipeline.mistakes import Finding

    if missing := missing_path(nlp, "dev_corpus"):
        return [Finding("note", "no-dev-corpus", missing)]
    config = nlp.config.interpolate()
    name = str(config["training"].get("dev_corpus"))
    path = (block_of(config, name) or {}).get("path")
    if isinstance(path, str) and path and not Path(path).exists():
        text = f"[{name}] path: {path} does not exist, and 'spacy train' needs it."
        return [Finding("warning", "dev-corpus", text)]
    try:
        with errors_with_blocks(config):
            examples = list(islice(corpus_reader(config, name)(nlp), JUDGED))
    except Exception as error:
        # Whatever a reader stumbles over, 'spacy train' does too, after some steps or before.
        text = f"The corpus that training is judged by, dev_corpus, cannot be read: {error}"
        return [Finding("error", "dev-corpus", text)]
    if not examples:
        return [Finding("error", "dev-corpus", f"[{name}] has no examples to judge training by.")]
    if without_references(nlp, examples)[1]:
        text = (
            f"None of the first {number_of(len(examples), 'example')} of [{name}] is annotated "
            "with what the pipeline predicts: scores will be 0, whatever it learns. Look at the "
            "names of its fields, and at what the file has."
        )
        return [Finding("warning", "dev-corpus", text)]
    return []


def corpus_reader(config: Config, name: str) -> Any:
    """The reader of the corpus of this dot name. Its block alone is read: paths of other corpora
    need not be given."""
    from spacy.util import registry, resolve_dot_names

    from spacy_latent.errors import LatentError

    block = block_of(config, name)
    if registry.is_promise(block):
        return registry.resolve({"reader": block})["reader"]
    outer = accumulate(name.split("."), "{}.{}".format)
    if not any(registry.is_promise(block_of(config, above)) for above in outer):
        raise LatentError(f"[training] names the corpus {name!r}, and there is no block [{name}]")
    # A function that gives several corpora.
    return resolve_dot_names(config, [name])[0]


def block_of(config: Config, name: str) -> Any:
    """What a config has under a dot name; None for nothing."""
    block: Any = config
    for part in name.split("."):
        block = block.get(part) if isinstance(block, dict) else None
    return block


def missing_path(nlp: Language, setting: str) -> str:
    """A sentence where the corpus that a setting of [training] names has no path, else nothing."""
    config = nlp.config.interpolate()
    name = str(config.get("training", {}).get(setting))
    filled, raw = block_of(config, name), block_of(nlp.config, name)
    if not isinstance(filled, dict) or filled.get("path", "") is not None:
        return ""
    variable = re.fullmatch(r"\$\{(.+)\}", str(raw["path"]))
    option = variable[1] if variable else f"{name}.path"
    return f"[{name}] has no path: 'spacy train' needs --{option}."
