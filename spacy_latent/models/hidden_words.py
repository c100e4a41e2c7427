"""Hiding words of a doc from a trained model, fully or partly, without changing its weights.

The mask of a word is applied in the nodes that read words one by one. It is the share of the word
that the model reads. An embedder of single words mixes the word's vector with the mean vector of
known words (De Cao et al. 2020 mask such vectors). In a linear bag of words, the mask weights the
counts of n-grams. Layers that add context come later and read only the masked input.
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
# Tolerance for sums of the same numbers in another order.
CLOSE = 1e-4
# Number of words whose mean vector stands for a hidden word.
KNOWN_WORDS = 256


@contextmanager
def replaced(forwards: Mapping[Model, Forward]) -> Iterator[None]:
    """Replace the forward functions of these nodes, and restore their own at the end."""
    own = {node: node._func for node in forwards}
    try:
        for node, forward in forwards.items():
            node._func = forward
        yield
    finally:
        for node, forward in own.items():
            node._func = forward


class WordReaders:
    """Nodes of a component's model that read words one by one.

    Attributes:
        embedders: nodes that give each word a vector that is the same in any text, and for each the
            vector of a hidden word. This is the mean vector of words that the pipeline knows, since
            a model was never trained on vectors of zeros.
        ngrams: nodes that give n-grams of words with their counts.

    Args:
        listeners: nodes that pass on the output of another component's model, each with that model.
    """

    def __init__(self, listeners: dict[Model, Model]) -> None:
        self._listeners = listeners
        self.embedders: dict[Model, Any] = {}
        self.ngrams: list[Model] = []

    @contextmanager
    def hiding(self, masks: np.ndarray) -> Iterator[None]:
        """Hide words in a ``with`` block, in which the model gets a copy of one doc for each mask.

        Args:
            masks: ``(M, len(doc))`` in [0, 1]. 1 keeps a word. 0 replaces its vector by the vector
                of a hidden word.
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
    """Return the nodes of a model that read words.

    Args:
        doc: doc with words, for a trial.
        run: function that returns the model's prediction for docs.

    Returns:
        The nodes, None if some node reads more than one word at a time, as a transformer does.
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
    """Return up to 256 words of the vocabulary whose features that embedders read are all known.

    They come from texts that the pipeline was trained on or has read since. No string is added to
    the vocabulary.
    """
    getters: Any = vocab.lex_attr_getters  # type: ignore[attr-defined]
    features = [getters[attr] for attr in (LOWER, NORM, PREFIX, SHAPE, SUFFIX)]
    strings = sorted(vocab.strings)
    found: list[str] = []
    for string in random.Random(0).sample(strings, len(strings)):
        # This leaves out the emoticons of tokenizers.
        if string[:1].isalpha() and all(f(string) in vocab.strings for f in features):
            found.append(string)
        if len(found) == KNOWN_WORDS:
            break
    return found


def _nodes(model: Model, upstream: Mapping[Model, Model]) -> list[Model]:
    """Return the nodes of the model and of the models that it listens to."""
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
    """Add the topmost nodes that read single words, and return whether no others read docs."""
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
    """Return whether a node gives each word one vector, in any text and with any annotation.

    Different words must have different vectors: a listener without input returns zeros for all.
    """
    twice = words[::-1] * 2
    other = Doc(vocab, words=twice, tags=twice, lemmas=twice, pos=["X"] * len(twice))
    try:
        found = node.predict([Doc(vocab, words=words), other])
    except Exception:
        # A node that fails without annotation on the doc does not read single words.
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
    """Return the vectors of the tokens of each doc, None if the output is of another form."""
    if isinstance(found, Ragged):
        data: Any = found.dataXd
        ends = [0, *np.cumsum([int(length) for length in found.lengths]).tolist()]
        return [data[start:end] for start, end in pairwise(ends)]
    if isinstance(found, list) and all(hasattr(each, "ndim") for each in found):
        return found
    return None


# ---------------------------------------------------------------- forward functions


def _spy(node: Model, own: Forward, reading: set[Model]) -> Forward:
    """Return a forward function that adds the node to ``reading`` if it receives docs."""

    def forward(model: Model, inputs: Any, is_train: bool) -> Any:
        if isinstance(inputs, (list, tuple)) and inputs and isinstance(inputs[0], Doc):
            reading.add(node)
        return own(model, inputs, is_train)

    return forward


def _upstream(source: Model) -> Forward:
    """Return a forward function of a listener that runs the model that it listens to."""

    def forward(listener: Model, docs: Sequence[Doc], is_train: bool) -> Any:
        found, backprop = source(docs, is_train)
        # A transformer returns a batch, and its listeners receive the data of each doc.
        return getattr(found, "doc_data", found), backprop

    return forward


def _masked_vectors(own: Forward, masks: np.ndarray, hidden: Any) -> Forward:
    def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
        _check(docs, masks)
        # All docs of the batch are the same.
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
    """Return a forward function that weights an n-gram by the product of the masks of its words."""

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
    # If a component left out docs or ran them in parts, masks would be applied to wrong copies.
    assert len(docs) == len(masks) and all(len(doc) == masks.shape[1] for doc in docs)
