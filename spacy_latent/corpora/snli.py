"""Pairs of the SNLI development set (Bowman et al. 2015), for entailment of a hypothesis.

The training set is too large for an example. We train on four fifths of the 9,842 development pairs
and hold out the rest, with all pairs of a premise in one part. Do not test a model that was trained
on them on SNLI's development set, nor on pairs that were made from it.

    python -m spacy_latent.corpora.snli corpus/snli
"""

from __future__ import annotations

import random
from pathlib import Path

import srsly

from spacy_latent.corpora.sources import published, read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError, number_of

SOURCES = published("""
snli-dev
text_a 28a398b5478b10b4b851d4bb5b2e5767171519add6586015ed50b9436df11d00 s1.dev
text_b a8c59709630b64ba103f7784c0cb7104a6baf23234562487264d9634714f5d2b s2.dev
label d164d72435c3289fe53cb01e983f7c06e104bf192c0cae9caf2e99bf2e15f974 labels.dev
""")
LABELS = ("contradiction", "entailment", "neutral")
Pair = dict[str, object]


def read_pairs(texts: dict[str, str]) -> list[Pair]:
    """Return pairs of words with a label.

    Args:
        texts: file of each field, with a line for each pair.
    """
    columns = {name: [line.strip() for line in text.split("\n")] for name, text in texts.items()}
    sizes = {name: len(lines) for name, lines in columns.items()}
    if len(set(sizes.values())) > 1:
        raise LatentError(f"The files of SNLI have {sizes} lines; expected as many in each.")
    pairs: list[Pair] = []
    for number, (first, second, label) in enumerate(zip(*columns.values()), 1):
        if not first and not second and not label:
            continue
        if label not in LABELS:
            raise LatentError(f"Line {number}: the label is {label!r}; expected one of {LABELS}.")
        pairs.append({"text_a": first.split(), "text_b": second.split(), "label": label})
    return pairs


def split_pairs(pairs: list[Pair], seed: int) -> dict[str, list[Pair]]:
    """Split the pairs into "train" and "dev", four fifths and one fifth of the premises.

    Both are shuffled.
    """
    rng = random.Random(seed)
    premises = sorted({" ".join(pair["text_a"]) for pair in pairs})  # type: ignore[arg-type]
    rng.shuffle(premises)
    held_out = set(premises[: len(premises) // 5])
    parts: dict[str, list[Pair]] = {"train": [], "dev": []}
    for pair in pairs:
        premise = " ".join(pair["text_a"])  # type: ignore[arg-type]
        parts["dev" if premise in held_out else "train"].append(pair)
    for part in parts.values():
        rng.shuffle(part)
    return parts


def main(output: Path, downloads: Path = Path("corpus/downloads"), seed: int = 0) -> None:
    """Write train.jsonl and dev.jsonl to OUTPUT."""
    texts = {name: read_source(source, downloads) for name, source in SOURCES.items()}
    output.mkdir(parents=True, exist_ok=True)
    for name, pairs in split_pairs(read_pairs(texts), seed).items():
        srsly.write_jsonl(output / f"{name}.jsonl", pairs)
        print(f"{output / name}.jsonl: {number_of(len(pairs), 'pair')}")


if __name__ == "__main__":
    run(main)
