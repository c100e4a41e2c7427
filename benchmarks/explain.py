r"""Faithfulness of the words that ``spacy latent explain`` chooses, over texts of a corpus.

They are compared with equally many words by leave-one-out, and with equally many random words.

    python -m spacy project run sentiment-data
    python -m spacy train configs/sentiment_baseline.cfg --output training/sentiment_baseline \
        --training.max_epochs 2
    python -m benchmarks explain training/sentiment_baseline/model-best corpus/sentiment/test.spacy

The texts are at equal distances in the corpus. The predicted label of each text is explained. The
results of all texts are a line of PATH, a file of the repository. Without a model and a corpus, the
table is written from the last line.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from benchmarks.raw_results import RAW, add, read
from benchmarks.sections import write_section
from spacy_latent.analysis.resampling import accuracy, interval, paired_drop
from spacy_latent.evaluation.explanation import LEAVE_ONE_OUT, MASK, RANDOM, explain

PATH = RAW / "explain.jsonl"
CHOICES = {
    MASK: "the learned mask",
    LEAVE_ONE_OUT: "as many by leave-one-out",
    RANDOM: "as many at random, mean of ten draws",
}
# Two ways to remove words: hide them from the model, or delete them from the text.
WAYS = {"faithfulness": "hidden", "erased": "cut out"}
FIGURES = ("comprehensiveness", "sufficiency")


def texts(nlp: Language, corpus: Path, count: int) -> list[Doc]:
    """Return unprocessed docs of some texts, at equal distances in the corpus.

    Args:
        count: number of texts. All are returned if the corpus has fewer.
    """
    docs = list(DocBin().from_disk(corpus).get_docs(nlp.vocab))
    places = np.linspace(0, len(docs) - 1, min(count, len(docs))).round().astype(int)
    return [
        Doc(
            nlp.vocab,
            words=[token.text for token in docs[place]],
            spaces=[bool(token.whitespace_) for token in docs[place]],
        )
        for place in places
    ]


def measured(nlp: Language, docs: list[Doc], steps: int) -> list[dict[str, Any]]:
    """Explain each text that has a word, and return a row of figures for each."""
    rows = []
    for doc in docs:
        if not len(doc):
            continue
        found = explain(nlp, doc, steps=steps)
        row: dict[str, Any] = {
            "words": len(doc),
            "chosen": int(found.chosen.sum()),
            "hidden": found.hidden,
        }
        for way in WAYS:
            for choice, judged in getattr(found, way).items():
                row[f"{way} {choice}"] = [round(getattr(judged, each), 4) for each in FIGURES]
        rows.append(row)
    return rows


def counts(rows: list[dict[str, Any]], way: str, choice: str, place: int) -> np.ndarray:
    """Return a figure of each text beside a 1, ``(texts, 2)``.

    The bootstrap gives an interval of the ratio of the two sums, which is then the mean.
    """
    return np.array([[row[f"{way} {choice}"][place], 1.0] for row in rows])


def share(value: float) -> str:
    # Adding zero turns -0.0 into 0.0.
    return f"{round(100 * value, 1) + 0:.1f}"


def table(found: dict[str, Any]) -> list[str]:
    """Return the lines of the section of results.

    Texts whose label is predicted without any word are not compared, because all three choices are
    empty.

    Args:
        found: one line of PATH.
    """
    every = found["rows"]
    rows = [row for row in every if row["chosen"]]
    start = (
        f"{found['date']}, torch {found['torch']}, spaCy {found['spacy']}. {len(every)} texts of "
        f"`{found['corpus']}`, explained for `{found['model']}`: {found['steps']} steps a text, "
        f"{found['processor_seconds'] / len(every):.1f} s of a processor each. In "
    )
    if not rows:
        return [
            f"{start}all of them the label stands without any word, and no word is chosen: there "
            "is nothing to compare."
        ]
    chosen, words = (sum(row[key] for row in rows) / len(rows) for key in ("chosen", "words"))
    lines = [
        f"{start}{len(every) - len(rows)} of them the label stands without any word, and no word "
        f"is chosen; the table is of the other {len(rows)}, where the mask chooses {chosen:.1f} of "
        f"{words:.1f} words. In points of probability, with 95 % intervals by the bootstrap over "
        "texts. The mask may cost 10 points of sufficiency, by hidden words.",
        "",
        "| words | go | comprehensiveness | the mask is ahead by | sufficiency | the mask is ahead "
        "by |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for way, how in WAYS.items():
        for choice, title in CHOICES.items():
            cells = [title, how]
            for place in range(len(FIGURES)):
                own, mask = (counts(rows, way, each, place) for each in (choice, MASK))
                middle, low, high = interval(accuracy, own)
                cells.append(f"{share(middle)} ({share(low)} to {share(high)})")
                if choice == MASK:
                    cells.append("")
                    continue
                # A higher comprehensiveness is better, and a lower sufficiency.
                pair = (mask, own) if place == 0 else (own, mask)
                better = paired_drop(accuracy, *pair)
                cells.append(f"{share(better.drop)} ({share(better.low)} to {share(better.high)})")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--steps", type=int, default=80, help="of learning each mask")
    given = parser.parse_args()
    if given.model is not None:
        if given.corpus is None:
            parser.error("give a corpus as well, such as corpus/sentiment/test.spacy")
        if given.texts < 1:
            parser.error(f"--texts is {given.texts}; expected at least 1")
        torch.set_num_threads(1)
        nlp = spacy.load(given.model)
        docs = texts(nlp, given.corpus, given.texts)
        start = time.process_time()
        rows = measured(nlp, docs, given.steps)
        if not rows:
            sys.exit(f"No text of {given.corpus} has a word, and there is nothing to explain.")
        found = {
            "corpus": "/".join(given.corpus.parts[-2:]),
            "model": given.model.parent.name,
            "steps": given.steps,
            "rows": rows,
            "processor_seconds": round(time.process_time() - start, 1),
            "date": str(date.today()),
            "torch": torch.__version__,
            "spacy": spacy.__version__,
        }
        add(PATH, found)
    kept = read(PATH)
    if not kept:
        sys.exit(f"There is nothing in {PATH}. Give a trained pipeline and a corpus.")
    lines = table(kept[-1])
    write_section("explain", "Explanations: which words a prediction rests on", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
