"""Write corpora for controls of incomplete annotation: simple methods that people would try first.

    python -m benchmarks.incomplete_controls corpus/incomplete
    python -m benchmarks.incomplete_controls corpus/incomplete --encoder path/to/encoder

Two corpora use the texts of ``flags.spacy``, in which 150 texts are annotated completely and the
others have flags:

- ``flags_negatives.spacy``: the complete texts, and the texts that are flagged to have no entity.
  These flags are a complete annotation.
- ``flags_self_trained.spacy``: the complete texts, and the other texts with predicted entities. A
  ``crf_ner`` that is trained on the complete texts predicts them. Entities of labels that are
  flagged to be absent are removed. A text is left out if an entity of a label that is flagged to be
  present is missing. With ``--encoder`` only this corpus is written, as
  ``flags_self_trained_encoder.spacy``, by a ``crf_ner`` over the pre-trained encoder.

One corpus uses the texts of ``sparse.spacy``, in which only some entities are annotated:

- ``sparse_negatives.spacy``: a random 15 % of the tokens without annotation are outside, the same
  ones in each epoch.

Three corpora use the texts of ``sources.spacy``, in which several sources wrote entities. None of
them needs an annotated text:

- ``sources_plurality.spacy``: for each token the BIO tag that most sources give. Outside is a vote
  like any other, and no source abstains. In a tie, outside comes first, then the labels in
  alphabetical order. A tag I after another label begins an entity.
- ``sources_best.spacy``: the entities of the source that agrees most with the plurality, by F1.
- ``sources_hmm.spacy``: the most probable entities by a hidden Markov model. Its states are BIO
  tags. Given the state, the sources emit tags independently. Initially each source is right with
  probability 0.7. Expectation maximization on the sources alone follows, as aggregators for weak
  supervision are trained. It stops before the first round that reduces the agreement with the
  plurality. Without this stop, the model drifts.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import spacy
from spacy.cli.train import train
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import iob_to_biluo
from spacy.training.iob_utils import tags_to_entities
from spacy.vocab import Vocab

from benchmarks.learning_groups import BC5CDR, ENCODER_STEPS, INCOMPLETE_OVER_ENCODER
from spacy_latent.corpora.incomplete import PREFIX, SOURCE

TEACHER = "configs/ner_crf.cfg"
ENCODER_TEACHER = "configs/ner_transformer_crf.cfg"
STEPS = 300


def flags_of(doc: Doc) -> dict[str, bool]:
    """Return the flags of a text: for each flagged label, whether the text has it.

    Texts that are annotated completely have no flags.
    """
    cats = doc.cats.items()
    return {name.removeprefix(PREFIX): value > 0.5 for name, value in cats}


def negatives(docs: list[Doc]) -> Iterator[Doc]:
    for doc in docs:
        flags = flags_of(doc)
        if any(flags.values()):
            continue
        if flags:
            doc.set_ents([], default="outside")
        yield doc


def self_trained(docs: list[Doc], nlp: Language) -> Iterator[Doc]:
    for doc in docs:
        flags = flags_of(doc)
        if flags:
            found = nlp(
                Doc(
                    nlp.vocab,
                    words=[t.text for t in doc],
                    spaces=[bool(t.whitespace_) for t in doc],
                )
            )
            kept = [span for span in found.ents if flags.get(span.label_, True)]
            if {label for label, there in flags.items() if there} - {span.label_ for span in kept}:
                continue
            doc.set_ents(
                [doc.char_span(s.start_char, s.end_char, s.label_) for s in kept], default="outside"
            )
        yield doc


def some_outside(docs: Iterable[Doc], share: float = 0.15, seed: int = 0) -> Iterator[Doc]:
    """Annotate a random share of the tokens without annotation as outside of entities."""
    chance = random.Random(seed)
    for doc in docs:
        open_to = [token.i for token in doc if not token.ent_iob]
        outside = [doc[i : i + 1] for i in open_to if chance.random() < share]
        doc.set_ents([], outside=outside, default="unmodified")
        yield doc


class SourceHmm:
    """A hidden Markov model whose states are BIO tags, which several sources observe."""

    def __init__(self, labels: list[str], sources: int) -> None:
        self.tags = ["O", *(f"{place}-{label}" for label in labels for place in "BI")]
        count = len(self.tags)
        self.start = np.full(count, 1.0 / count)
        self.transitions = np.full((count, count), 1.0 / count)
        for place, tag in enumerate(self.tags):
            if tag.startswith("I-"):
                before = [self.tags.index(f"B-{tag[2:]}"), place]
                others = [other for other in range(count) if other not in before]
                self.start[place] = self.transitions[others, place] = 0.0
        self.start /= self.start.sum()
        self.transitions /= self.transitions.sum(1, keepdims=True)
        wrong = 0.3 / (count - 1)
        confusions = np.full((count, count), wrong) + (0.7 - wrong) * np.eye(count)
        self.emissions = np.repeat(confusions[None], sources, 0)

    def seen(self, doc: Doc) -> np.ndarray:
        """Return the number of the tag that each source gives to each token, ``(S, n)``."""
        found = np.zeros((len(self.emissions), len(doc)), dtype=np.int64)
        for source, row in enumerate(found, 1):
            for span in doc.spans[f"{SOURCE}{source}"]:
                row[span.start] = self.tags.index(f"B-{span.label_}")
                row[span.start + 1 : span.end] = self.tags.index(f"I-{span.label_}")
        return found

    def likelihoods(self, seen: np.ndarray) -> np.ndarray:
        """Return the probability of each token's observations given each state, ``(n, K)``."""
        each = [own[:, tags] for own, tags in zip(self.emissions, seen)]
        return np.prod(each, axis=0).T

    def learn(self, texts: list[np.ndarray]) -> None:
        """Take one step of expectation maximization, with additive smoothing of the counts."""
        start, transitions = self.start.copy(), (self.transitions > 0).astype(float)
        emissions = np.ones_like(self.emissions)
        for seen in texts:
            likely = self.likelihoods(seen)
            forward, backward = np.empty_like(likely), np.ones_like(likely)
            for i, own in enumerate(likely):
                forward[i] = own * (self.start if not i else forward[i - 1] @ self.transitions)
                forward[i] /= forward[i].sum()
            for i in range(len(likely) - 2, -1, -1):
                backward[i] = self.transitions @ (likely[i + 1] * backward[i + 1])
                backward[i] /= backward[i].sum()
            posterior = forward * backward
            posterior /= posterior.sum(1, keepdims=True)
            start += posterior[0]
            for i in range(len(likely) - 1):
                pair = np.outer(forward[i], likely[i + 1] * backward[i + 1]) * self.transitions
                transitions += pair / pair.sum()
            for own, tags in zip(emissions, seen):
                np.add.at(own.T, tags, posterior)
        self.start = start / start.sum()
        self.transitions = transitions / transitions.sum(1, keepdims=True)
        self.emissions = emissions / emissions.sum(2, keepdims=True)

    def best(self, seen: np.ndarray) -> list[str]:
        """Return the most probable sequence of tags."""
        with np.errstate(divide="ignore"):
            likely, between = np.log(self.likelihoods(seen)), np.log(self.transitions)
            scores = [np.log(self.start) + likely[0]]
        back = []
        for own in likely[1:]:
            options = scores[-1][:, None] + between
            back.append(options.argmax(0))
            scores.append(options.max(0) + own)
        path = [int(scores[-1].argmax())]
        for pointers in reversed(back):
            path.append(int(pointers[path[-1]]))
        return [self.tags[state] for state in reversed(path)]


Entities = set[tuple[int, int, str]]


def entities_of(tags: Sequence[str]) -> Entities:
    """Return the entities in a sequence of BIO tags.

    Each has its first token, the token after its last one, and its label.
    """
    found = tags_to_entities(iob_to_biluo(tags))
    return {(start, end + 1, label) for label, start, end in found}


def agreement(these: Iterable[Entities], those: Iterable[Entities]) -> float:
    """Return the F1 between two annotations of the same texts."""
    common = total = 0
    for one, other in zip(these, those):
        common += 2 * len(one & other)
        total += len(one) + len(other)
    return common / max(total, 1)


class Sources:
    """The annotations of several sources, and their aggregates.

    Attributes:
        names: names of the groups of spans, one for each source.
        seen: for each text the number of the BIO tag that each source gives to each token,
            ``(S, n)``.
        plurality: for each text the entities of the tags that have most votes at each token.
    """

    def __init__(self, docs: Sequence[Doc]) -> None:
        self.names = sorted({name for doc in docs for name in doc.spans})
        spans = [span for doc in docs for name in self.names for span in doc.spans[name]]
        self.labels = sorted({span.label_ for span in spans})
        self.hmm = SourceHmm(self.labels, len(self.names))
        self.tags = self.hmm.tags
        self.seen = [self.hmm.seen(doc) for doc in docs]
        self.plurality = [
            entities_of([self.tags[np.bincount(votes).argmax()] for votes in seen.T])
            for seen in self.seen
        ]

    def best_source(self) -> list[Entities]:
        """Return the entities of the source that agrees most with the plurality."""
        each = [
            [entities_of([self.tags[tag] for tag in seen[source]]) for seen in self.seen]
            for source in range(len(self.names))
        ]
        return max(each, key=lambda found: agreement(found, self.plurality))

    def by_hmm(self, rounds: int = 10) -> list[Entities]:
        """Train the hidden Markov model, and return its most probable entities.

        Training stops before the first round of expectation maximization that reduces the agreement
        with the plurality.
        """
        kept: list[Entities] = []
        agreed = -1.0
        for number in range(rounds + 1):
            if number:
                self.hmm.learn(self.seen)
            found = [entities_of(self.hmm.best(seen)) for seen in self.seen]
            now = agreement(found, self.plurality)
            print(f"hidden Markov model, round {number}: F1 {now:.3f} with the plurality")
            if now < agreed:
                break
            kept, agreed = found, now
        return kept


def annotated(docs: Iterable[Doc], entities: Iterable[Entities]) -> Iterator[Doc]:
    """Yield texts with these entities as their only and complete annotation."""
    for doc, own in zip(docs, entities):
        doc.spans.clear()
        doc.set_ents([Span(doc, *one) for one in sorted(own)], default="outside")
        yield doc


def write_aggregates(folder: Path, vocab: Vocab, hmm: bool = True) -> None:
    """Write the corpora of aggregated sources from ``sources.spacy``.

    Args:
        hmm: whether to write the corpus of the hidden Markov model as well.
    """
    docs = read(folder / "sources.spacy", vocab)
    sources = Sources(docs)
    found = {"plurality": sources.plurality, "best": sources.best_source()}
    if hmm:
        found["hmm"] = sources.by_hmm()
    for name, entities in found.items():
        DocBin(docs=annotated(docs, entities)).to_disk(folder / f"sources_{name}.spacy")


def read(path: Path, vocab: Vocab) -> list[Doc]:
    return list(DocBin().from_disk(path).get_docs(vocab))


def trained(
    made: Path, texts: str, development: str, encoder: Path | None = None, seed: int = 0
) -> Language:
    """Train a ``crf_ner`` into the folder ``made``, and load it.

    Over an encoder, it has the settings of the entries over an encoder.
    """
    settings: dict[str, Any] = {
        "paths.train": texts,
        "paths.dev": development,
        "training.max_epochs": 0,
        "training.max_steps": STEPS,
        "system.seed": seed,
    }
    if encoder is not None:
        (row, *_) = INCOMPLETE_OVER_ENCODER
        settings = {**dict(row.settings), **settings, "training.max_steps": ENCODER_STEPS}
        settings["paths.encoder"] = str(encoder)
    train(TEACHER if encoder is None else ENCODER_TEACHER, made, overrides=settings)
    return spacy.load(made / "model-best")


def teacher(folder: Path, name: str, development: str, encoder: Path | None = None) -> Language:
    """Train a ``crf_ner`` on the complete texts of ``NAME.spacy`` in the folder."""
    texts = str(folder / f"{name}_as_if_complete.spacy")
    return trained(folder / f"teacher_{name}", texts, development, encoder)


def write_controls(folder: Path, name: str, development: str) -> None:
    """Write the corpora of negatives and of self-training from the flags in ``NAME.spacy``."""
    nlp = teacher(folder, name, development)
    flagged = folder / f"{name}.spacy"
    DocBin(docs=negatives(read(flagged, nlp.vocab))).to_disk(folder / f"{name}_negatives.spacy")
    found = self_trained(read(flagged, nlp.vocab), nlp)
    DocBin(docs=found).to_disk(folder / f"{name}_self_trained.spacy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of flags, sparse and sources.spacy")
    parser.add_argument("--encoder", type=Path, help="the folder of a pre-trained encoder")
    given = parser.parse_args()
    folder = given.folder
    if given.encoder is not None:
        nlp = teacher(folder, "flags", f"{BC5CDR}/dev.spacy", given.encoder)
        docs = self_trained(read(folder / "flags.spacy", nlp.vocab), nlp)
        DocBin(docs=docs).to_disk(folder / "flags_self_trained_encoder.spacy")
        return
    write_controls(folder, "flags", f"{BC5CDR}/dev.spacy")
    vocab = spacy.blank("en").vocab
    sparse = some_outside(read(folder / "sparse.spacy", vocab))
    DocBin(docs=sparse).to_disk(folder / "sparse_negatives.spacy")
    write_aggregates(folder, vocab)


if __name__ == "__main__":
    main()
