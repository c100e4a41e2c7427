"""Linear chain over tags: scores of the tags of each token, and of neighbouring tags."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spacy.tokens import Doc
from thinc.api import Linear, Maxout, Model, chain, expand_window, with_array, zero_init
from thinc.layers.resizable import resize_linear_weighted
from thinc.types import Floats2d

from spacy_latent.errors import check_flags, check_positive, check_whole
from spacy_latent.models.added_labels import BEHIND, IMPOSSIBLE, UNTRAINED, count_as_trained
from spacy_latent.models.separate_tok2vec import initialize_embedder, refuse_separate
from spacy_latent.models.token_vectors import token_vectors, with_tokens

NAME = "crf_tagger"
# Probability of "O" for a token at the beginning of training on incomplete annotation, or on
# sources of annotation.
OUTSIDE = 0.5


@dataclass
class TagScores:
    """Output of the model, and input of its backprop.

    Attributes:
        emissions: ``(N, K)``, for the tokens of all docs, one doc after the other.
        transitions: ``(K + 2, K)``: [previous tag, tag], then scores of the first and of the last
            tag.
    """

    emissions: Floats2d
    transitions: Floats2d


def build_crf_tagger_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    hidden_width: int | None = None,
    window_size: int = 1,
    maxout_pieces: int = 2,
    nO: int | None = None,
) -> Model[list[Doc], TagScores]:
    """Build the model of ``crf_ner``: docs to scores of a chain of tags (Lafferty et al. 2001).

    Args:
        tok2vec, hidden_width, window_size, maxout_pieces, nO: as in ``spacy-latent.CrfTagger.v2``.
    """
    check_whole("CrfTagger", or_null=True, hidden_width=hidden_width)
    check_whole("CrfTagger", 0, window_size=window_size)
    check_whole("CrfTagger", maxout_pieces=maxout_pieces)
    refuse_separate("CrfTagger", tok2vec)
    layers: list[Model] = [tok2vec]
    if hidden_width is not None:
        hidden: Model = Maxout(hidden_width, nP=maxout_pieces, normalize=True, dropout=0.0)
        if window_size:
            hidden = chain(expand_window(window_size), hidden)
        layers.append(with_array(hidden, pad=window_size))
    layers += [Linear(nO, hidden_width, init_W=zero_init), build_table()]
    model: Model = Model(
        NAME, forward, init=init, layers=layers, dims={"nO": nO}, attrs={UNTRAINED: 0}
    )
    return set_refs(model)


def build_crf_tagger_v2(
    tok2vec: Model[list[Doc], list[Floats2d]],
    hidden_width: int | None = 64,
    window_size: int = 1,
    maxout_pieces: int = 2,
    gain: float = 4.0,
    learn_transitions: bool = True,
    nO: int | None = None,
) -> Model[list[Doc], TagScores]:
    """Build the model of ``crf_ner``, with scores that are a multiple of the weights' output.

    The multiple makes training faster. Adam changes a weight by at most about the learning rate in
    each step, so scores change more in a step if they are a larger multiple. Version 1 learns
    slowly with a hidden layer, whose vectors are normalized and smaller than an embedder's.

    Args:
        tok2vec: embedder, or a listener.
        hidden_width: width of a maxout layer between the embedder and the tags; None for a linear
            map.
        window_size: number of neighbours on each side that the layer reads in addition to the
            token.
        maxout_pieces: number of pieces of the maxout layer.
        gain: the multiple.
        learn_transitions: whether to learn scores of neighbouring tags. If not, they stay at 0, and
            only the rules of BILUO connect neighbours. This is a control that shows the effect of
            the chain.
        nO: number of tags; set by the component.
    """
    check_flags("CrfTagger", learn_transitions=learn_transitions)
    check_positive("CrfTagger", gain=gain)
    model = build_crf_tagger_v1(tok2vec, hidden_width, window_size, maxout_pieces, nO)
    model.attrs["gain"] = gain
    model.attrs["learn_transitions"] = learn_transitions
    return model


def build_table() -> Model:
    """Build a separate node, since Thinc cannot change dimensions of a model that has weights."""
    return Model("transitions", no_forward, params={"transitions": None})


def no_forward(model: Model, X: Any, is_train: bool) -> Any:
    """Raise an error: the node only holds a parameter and is never run."""
    raise NotImplementedError("This node only holds the transitions of the tagger.")


def set_refs(model: Model) -> Model:
    """Set the refs of the model to its parts."""
    model.set_ref("tok2vec", model.layers[0])
    model.set_ref("output_layer", model.layers[-2])
    model.set_ref("transitions", model.layers[-1])
    return model


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Set each width from the layer before, and the transitions to 0 if the tags are known."""
    tok2vec, *hidden, output, table = model.layers
    docs = with_tokens(X)
    initialize_embedder(tok2vec, docs)
    arrays = None
    if docs:
        arrays = tok2vec.predict(docs)
    elif tok2vec.has_dim("nO"):
        arrays = [model.ops.alloc2f(1, tok2vec.get_dim("nO"))]
    for layer in hidden:
        layer.initialize(X=arrays)
        if arrays is not None:
            arrays = layer.predict(arrays)
    if arrays is not None and not output.has_dim("nI"):
        output.set_dim("nI", arrays[0].shape[1])
    if model.has_dim("nO"):
        tags = model.get_dim("nO")
        output.set_dim("nO", tags, force=True)
        if output.has_dim("nI"):
            output.initialize()
        table.set_param("transitions", model.ops.alloc2f(tags + 2, tags))
        count_as_trained(model)
    return model


def set_tags(model: Model, tags: int) -> None:
    """Set the number of tags and keep the weights of the first ones.

    Predictions stay the same if these weights were trained; see
    :mod:`spacy_latent.models.added_labels`.
    """
    known = model.maybe_get_dim("nO")
    if known == tags:
        return
    model.set_dim("nO", tags, force=True)
    *_, output, table = model.layers
    if known is not None and table.has_param("transitions"):
        old: Any = table.get_param("transitions")
        new: Any = model.ops.alloc2f(tags + 2, tags)
        new[:known, :known] = old[:known]
        new[tags:, :known] = old[known:]
        wider = build_table()
        wider.set_param("transitions", new)
        model.layers[-2:] = [resize_linear_weighted(output, tags), wider]
        set_refs(model)
        if old.any() or output.get_param("W").any():
            _begin_as_outside(model, known)
            model.attrs[UNTRAINED] += tags - known
        elif output.get_param("b").any():
            begin_outside(model)


def begin_outside(model: Model) -> None:
    """Initialize the model so that tokens are "O" with probability ``OUTSIDE``, without neighbours.

    Without this, all tags are equally probable before training, so a token is more probably in an
    entity than outside. The loss of a token without annotation increases each tag in proportion to
    its probability. So the model would first learn that such tokens are in entities. With sources
    it would learn that every token that any source marked is in an entity, and that sources miss
    many entities.

    Args:
        model: initialized tagger. Without a number of tags, or with trained weights, it stays as
            it is.
    """
    output = model.get_ref("output_layer")
    tags = model.maybe_get_dim("nO")
    if not tags or tags == 1 or not output.has_param("b") or output.get_param("W").any():
        return
    bias: Any = output.get_param("b")
    behind = math.log((tags - 1) * OUTSIDE / (1 - OUTSIDE))
    bias[1:] = -behind / model.attrs.get("gain", 1.0)


def _begin_as_outside(model: Model, known: int) -> None:
    """Let tags from ``known`` on score as the first tag, "O", minus ``BEHIND``.

    A sequence with such tags then scores less than the same sequence with "O" in their place. That
    sequence is always valid, since each new label has all of its tags among the new tags.
    """
    output, table = model.layers[-2:]
    weight: Any = output.get_param("W")
    bias: Any = output.get_param("b")
    transitions: Any = table.get_param("transitions")
    weight[known:] = weight[0]
    bias[known:] = bias[0] - BEHIND / model.attrs.get("gain", 1.0)
    transitions[:, known:] = transitions[:, :1]
    transitions[known:-2] = transitions[0]


def _of_one_doc(backprop: Callable[[Any], Any], gradients: list[Any]) -> list[Any]:
    (gradient,) = gradients
    return [backprop(gradient)]


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    """Return :class:`TagScores` of all docs, and a backprop that takes their gradients."""
    tok2vec, *hidden, output, table = model.layers
    arrays, backprop_tok2vec = token_vectors(tok2vec, docs, is_train)
    backprops: list[Callable[[Any], Any]] = []
    sizes = [len(array) for array in arrays]
    if len(docs) == 1 and not is_train:
        # A single doc needs no padding between docs, and so no copies.
        (rows,) = arrays
        for layer in hidden:
            rows, backprop_rows = layer(rows, is_train)
            backprops.append(partial(_of_one_doc, backprop_rows))
    else:
        for layer in hidden:
            arrays, backprop_hidden = layer(arrays, is_train)
            backprops.append(backprop_hidden)
        rows = model.ops.flatten(arrays)
    emissions, backprop_output = output(rows, is_train)
    gain, untrained = model.attrs.get("gain", 1.0), model.attrs[UNTRAINED]
    scores = gain * emissions
    if untrained and not is_train:
        scores[:, -untrained:] = IMPOSSIBLE

    def backprop(gradient: TagScores) -> Any:
        if model.attrs.get("learn_transitions", True):
            table.inc_grad("transitions", gain * gradient.transitions)
        ops: Any = model.ops
        d_arrays = ops.unflatten(backprop_output(gain * gradient.emissions), sizes)
        for backprop_hidden in reversed(backprops):
            d_arrays = backprop_hidden(d_arrays)
        return backprop_tok2vec(d_arrays)

    transitions: Any = table.get_param("transitions")
    return TagScores(scores, gain * transitions), backprop
