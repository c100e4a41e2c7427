"""Words of a doc hidden from a trained model, in whole or in part, while its weights stay.

Where a model reads words one by one, the mask of a word says how much it reads of it: of the
vectors of an embedder of single words (De Cao et al. 2020 mask such vectors), where the vector of
no word in particular takes the place, and of the n-grams that a linear bag of words counts.
Whatever gives words context comes after, and gets no more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from spacy.attrs import LOWER, NORM, PREFIX, SHAPE, SUFFIX
from spacy.ml.extract_ngrams import extract_ngrams
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model
from thinc.types import Ragged

Forward = Callable[[Model, Sequence[Doc], bool], Any]
NGRAMS = extract_ngrams(1).name
# Two sums of the same numbers in another order differ by less.
CLOSE = 1e-4
# Words whose mean vector is that of no word in particular.
KNOWN_WORDS = 256


@contextmanager
def replaced(forwards: Mapping[Model, Forward]) -> Iterator[None]:
    """Other forward functions for these nodes, and afterwards their own, whatever happened."""
    own = {node: node._func for node in forwards}
    try:
        for node, forward in forwards.items():
            node._func = forward
        yield
    finally:
        for node, forward in own.items():
            node._func = forward


class WordReaders:
    """The nodes of a component's model that read words one by one.

    listeners: nodes that hand out what the model of another component gives, each with that model.
    embedders: give each word a vector that is the same in any text. Each with the vector that
        stands for a hidden word: the mean of those of words that the pipeline knows. Zeros, which
        no text has, a model may take for anything.
    ngrams: give n-grams of words with their counts.
    """

    def __init__(self, listeners: dict[Model, Model]) -> None:
        self._listeners = listeners
        self.embedders: dict[Model, Any] = {}
        self.ngrams: list[Model] = []

    @contextmanager
    def hiding(self, masks: np.ndarray) -> Iterator[None]:
        """While this lasts, the model reads a batch of the same doc, once for each mask.

        masks: ``(M, len(doc))`` in [0, 1]. 1 for all that there is of a word; 0 for a vector that
            says that there is a word and nothing else.
        """
        forwards: dict[Model, Forward] = {
            node: _upstream(model) for node, model in self._listeners.items()
        }
        for node, hidden in self.embedders.items():
            forwards[node] = _masked_vectors(node._func, masks, hidden)
        forwards |= {node: _masked_ngrams(masks) for node in self.ngrams}
        with replaced(forwards):
            yield


def find_word_readers(
    model: Model, upstream: Mapping[Model, Model], doc: Doc, run: Callable[[Sequence[Doc]], Any]
) -> WordReaders | None:
    """All that a model reads of words, None where some of it reads more than one word at a time,
    as a transformer does.

    upstream: the models that listeners listen to.
    doc: with words, to try on. run: the model's prediction for docs.
    """
    nodes = _nodes(model, upstream)
    listeners = {node: upstream[node] for node in nodes if node in upstream}
    forwards: dict[Model, Forward] = {n: _upstream(source) for n, source in listeners.items()}
    reading: set[Model] = set()
    spies = {node: _spy(node, forwards.get(node, node._func), reading) for node in nodes}
    with replaced(spies):
        run([doc])
    readers = WordReaders(listeners)
    known = known_words(doc.vocab)
    words = [token.text for token in doc][:64] + known[:8]
    with replaced(forwards):
        complete = _collect(model, upstream, reading, doc.vocab, words, readers)
        for node in readers.embedders if known else ():
            rows = _rows(node.predict([Doc(doc.vocab, words=known)]))
            assert rows is not None
            readers.embedders[node] = rows[0].mean(0)
    return readers if complete else None


def known_words(vocab: Vocab) -> list[str]:
    """Up to 256 words that the vocabulary has with all that embedders read of them, so that none of
    its strings is new: those of the texts that the pipeline was trained on, and read since."""
    getters: Any = vocab.lex_attr_getters  # type: ignore[attr-defined]
    features = [getters[attr] for attr in (LOWER, NORM, PREFIX, SHAPE, SUFFIX)]
    strings = sorted(vocab.strings)
    found: list[str] = []
    for string in random.Random(0).sample(strings, len(strings)):
        # Not the emoticons of tokenizers.
        if string[:1].isalpha() and all(f(string) in vocab.strings for f in features):
            found.append(string)
        if len(found) == KNOWN_WORDS:
            break
    return found


def _nodes(model: Model, upstream: Mapping[Model, Model]) -> list[Model]:
    """Those of the model and of the models that it listens to."""
    found = list(model.walk())
    for node in found:
        if node in upstream:
            found += [other for other in upstream[node].walk() if other not in found]
    return found


def _collect(
    node: Model,
    upstream: Mapping[Model, Model],
    reading: set[Model],
    vocab: Vocab,
    words: list[str],
    into: WordReaders,
) -> bool:
    """Adds the topmost nodes that will do. RETURNS: whether they read all that is read of docs."""
    if node.name == NGRAMS:
        into.ngrams.append(node)
        return True
    if _reads_single_words(node, vocab, words):
        into.embedders[node] = 0.0
        return True
    below = [upstream[node]] if node in upstream else node.layers
    found = [layer for layer in below if layer in reading]
    return bool(found) and all(
        _collect(layer, upstream, reading, vocab, words, into) for layer in found
    )


def _reads_single_words(node: Model, vocab: Vocab, words: list[str]) -> bool:
    """Whether it gives a word one vector, the same in any place of any text, whatever is annotated
    there, and other words another one: a listener that hears nothing gives zeros."""
    twice = words[::-1] * 2
    other = Doc(vocab, words=twice, tags=twice, lemmas=twice, pos=["X"] * len(twice))
    try:
        found = node.predict([Doc(vocab, words=words), other])
    except Exception:
        # A node may need what such docs do not have: then it does not read single words.
        return False
    rows = _rows(found)
    if rows is None or [len(each) for each in rows] != [len(words), len(twice)]:
        return False
    here, there = rows
    if here.ndim != 2 or here.dtype.kind != "f" or abs(here - here[:1]).max() <= CLOSE:
        return False
    both = there[::-1].reshape(2, *here.shape)
    return bool(abs(both - here).max() <= CLOSE)


def _rows(found: Any) -> list[Any] | None:
    """What a node gives for the tokens of each doc, if it gives that."""
    if isinstance(found, Ragged):
        data: Any = found.dataXd
        ends = [0, *np.cumsum([int(length) for length in found.lengths]).tolist()]
        return [data[start:end] for start, end in pairwise(ends)]
    if isinstance(found, list) and all(hasattr(each, "ndim") for each in found):
        return found
    return None


# ---------------------------------------------------------------- forward functions


def _spy(node: Model, own: Forward, reading: set[Model]) -> Forward:
    def forward(model: Model, inputs: Any, is_train: bool) -> Any:
        if isinstance(inputs, (list, tuple)) and inputs and isinstance(inputs[0], Doc):
            reading.add(node)
        return own(model, inputs, is_train)

    return forward


def _upstream(source: Model) -> Forward:
    def forward(listener: Model, docs: Sequence[Doc], is_train: bool) -> Any:
        found, backprop = source(docs, is_train)
        # A transformer gives a batch, of which its listeners are handed what is of each doc.
        return getattr(found, "doc_data", found), backprop

    return forward


def _masked_vectors(own: Forward, masks: np.ndarray, hidden: Any) -> Forward:
    def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
        _check(docs, masks)
        # All are the same doc.
        found, backprop = own(model, docs[:1], is_train)
        ops: Any = model.ops
        kept = ops.asarray(masks.astype("float32"))[:, :, None]
        rows: Any = found.dataXd if isinstance(found, Ragged) else found[0]
        masked = rows * kept + hidden * (1 - kept)
        if isinstance(found, Ragged):
            lengths = ops.asarray1i([masks.shape[1]] * len(masks))
            return Ragged(masked.reshape(-1, rows.shape[-1]), lengths), backprop
        return list(masked), backprop

    return forward


def _masked_ngrams(masks: np.ndarray) -> Forward:
    """An n-gram is there as far as all of its words are."""

    def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
        _check(docs, masks)
        ops: Any = model.ops
        words = ops.asarray(docs[0].to_array([model.attrs["attr"]])).reshape(-1)
        kept = masks.astype("float32")
        keys, values = [words], [kept]
        for n in range(2, model.attrs["ngram_size"] + 1):
            if len(words) < n:
                break
            found = ops.ngrams(n, words)
            keys.append(found)
            values.append(np.prod([kept[:, i : i + len(found)] for i in range(n)], axis=0))
        together = ops.xp.concatenate(keys)
        counts = ops.asarray(np.concatenate(values, axis=1).reshape(-1), dtype="f")
        lengths = ops.asarray([len(together)] * len(masks), dtype="int32")
        return (ops.xp.concatenate([together] * len(masks)), counts, lengths), lambda d: []

    return forward


def _check(docs: Sequence[Doc], masks: np.ndarray) -> None:
    # A component that leaves docs out, or runs them in parts, would mix masks up.
    assert len(docs) == len(masks) and all(len(doc) == masks.shape[1] for doc in docs)
