"""Model of ``latent_parser``: sentences, trees and labels over any embedder."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from spacy.tokens import Doc
from thinc.api import Model, torch2xp
from thinc.types import Floats2d

from spacy_latent.errors import IncompatiblePair, LatentError, NotTractable, check_whole
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.compatibility import check_kind
from spacy_latent.layers.labelled_trees import LabelledTrees
from spacy_latent.layers.relative_biaffine_scorer import build_relative_biaffine_scorer_v1
from spacy_latent.models.added_labels import BEHIND, UNTRAINED, count_as_trained
from spacy_latent.models.autograd_recording import recorded
from spacy_latent.models.configured_attributes import ConfiguredNumber
from spacy_latent.models.evidence_bound import WordObjective
from spacy_latent.models.latent_layer_model import bring_dropout
from spacy_latent.models.latent_shim import LatentShim, TrainingSettings
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import initialize_embedder, refuse_separate
from spacy_latent.models.shim_model import rows_of
from spacy_latent.models.token_vectors import token_vectors
from spacy_latent.models.tree_evidence import Shares, TreeWordObjective
from spacy_latent.structures.base import Structure
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.derivatives import recording
from spacy_latent.structures.spanning_tree import SpanningTree

NAME = "labelled_parser"
NEEDED = frozenset({"log_partition", "marginals"})

# Function that computes a result from the module and the rows of a batch.
Compute = Callable[[LabelledTrees, Any], Any]


def build_labelled_parser_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    label_hidden_width: int = 32,
    max_length: int = 512,
    scorer_learn_rate: float = 3.0,
    dropout: float | None = None,
    evidence: WordObjective | None = None,
    nO: int | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Build the model of ``latent_parser``: docs to sentences with labelled trees.

    Args:
        tok2vec: embedder, or a listener. Sentences are found from its vectors.
        structure: set of trees of a sentence, with one root, the same in all of training; None for
            SpanningTree, whose arcs may cross.
        scorer: scorer of arcs; None for RelativeBiaffineScorer of 128 over a BiLSTM of 64 in each
            direction. Labels are scored from its encoded vectors.
        label_hidden_width: width of the two hidden layers of the biaffine map to labels.
        max_length: largest number of tokens of a sentence; longer ones are split.
        scorer_learn_rate: multiplier of the learning rate for all weights above the embedder.
        dropout: rate for the input of the scores of arcs and labels, and for every
            ``torch.nn.Dropout`` inside the scorer; None to follow ``training.dropout``.
        evidence: objective to learn from the words of sentences, including those without heads:
            EvidenceBound or CrfAutoencoder, with a decoder that predicts words from their heads;
            None to learn only from heads. Predictions do not use it.
        nO: number of labels; set by the component.
    """
    trees_of = check_structure(structure or SpanningTree(single_root=True))
    check_whole("LabelledParser", label_hidden_width=label_hidden_width, max_length=max_length)
    training = TrainingSettings(scorer_learn_rate, Temperature(1.0), dropout)
    if evidence is not None:
        check_kind("evidence", evidence, WordObjective)
        evidence.check_trees(trees_of)
    refuse_separate("LabelledParser", tok2vec)
    encoded = build_relative_biaffine_scorer_v1(128, build_bilstm_v1(64))
    build = partial(
        build_module,
        structure=trees_of,
        scorer=scorer or encoded,
        label_width=label_hidden_width,
        evidence=evidence,
    )
    # Of several prefixes of a name, the first in the dictionary applies.
    own_rates = {} if evidence is None else {"evidence.": evidence.learn_rate}
    rates = {**own_rates, "": scorer_learn_rate}
    shim = LatentShim(build, training, learn_rates=rates, has_layer=False)
    trees: Model = Model("labelled_trees", forward_trees, attrs=training.attrs, shims=[shim])
    model: Model = Model(
        NAME,
        forward,
        init=init,
        layers=[tok2vec, trees],
        dims={"nO": nO},
        attrs={"max_length": ConfiguredNumber(max_length), UNTRAINED: 0},
    )
    model.set_ref("tok2vec", tok2vec)
    return model


def check_structure(structure: Structure) -> DependencyTree:
    """Return the structure, or raise an error if the parser cannot use it."""
    instead = "SpanningTree or ProjectiveTree with single_root = true"
    if not isinstance(structure, DependencyTree) or not structure.acyclic:
        raise IncompatiblePair(
            "LabelledParser",
            structure.name,
            "it needs dependency trees",
            instead,
        )
    if not structure.single_root:
        raise IncompatiblePair(
            "LabelledParser",
            repr(structure),
            "spaCy starts a sentence at each root, and these trees may have several",
            instead,
        )
    lacking = structure.lacks(NEEDED)
    if lacking:
        raise NotTractable(structure.name, lacking[0], instead)
    if structure.stages:
        raise IncompatiblePair(
            "LabelledParser",
            f"{structure.shown} after {structure.stages[0][1].shown}",
            "it learns from annotated trees, and before the release it could not learn trees "
            "outside of the first set",
            f"{structure.shown} alone",
        )
    return structure


def build_module(
    sizes: list[int],
    *,
    structure: DependencyTree,
    scorer: ScorerBuilder,
    label_width: int,
    evidence: WordObjective | None = None,
) -> LabelledTrees:
    """Build the torch module for ``sizes``, the width of the embedder and the number of labels."""
    width, labels = sizes
    build_objective = None if evidence is None else partial(TreeWordObjective, evidence)
    return LabelledTrees(width, labels, structure, scorer, label_width, build_objective)


def module_of(model: Model) -> LabelledTrees:
    """Return the torch module of a model built by this module."""
    shim: Any = model.layers[1].shims[0]
    return shim.module


def word_objective_of(model: Model) -> TreeWordObjective | None:
    """Return the objective of the words, None if the model has none."""
    evidence: Any = module_of(model).evidence
    return evidence


def shares_of(model: Model) -> Shares | None:
    """Return the weights of the words in the next update, None without such an objective."""
    evidence = word_objective_of(model)
    shim: Any = model.layers[1].shims[0]
    return None if evidence is None else Shares.at(shim.updates, evidence.settings)


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Build the module once the width of the embedder and the number of labels are known."""
    tok2vec, trees = model.layers
    width = initialize_embedder(tok2vec, X)
    if width is not None and model.has_dim("nO"):
        shim: Any = trees.shims[0]
        shim.build([width, model.get_dim("nO")])
    count_as_trained(model)
    return model


def set_labels(model: Model, labels: int) -> None:
    """Set the number of labels and keep the weights of the first ones.

    Predictions stay the same if these weights were trained; see
    :mod:`spacy_latent.models.added_labels`.
    """
    known = model.maybe_get_dim("nO")
    if known == labels:
        return
    model.set_dim("nO", labels, force=True)
    shim: Any = model.layers[1].shims[0]
    if shim.is_built:
        labeller = shim.module.labeller
        learned = labeller.learned
        with recording():
            labeller.grow(labels, BEHIND if learned else 0.0)
        if learned and known is not None:
            model.attrs[UNTRAINED] += labels - known
        shim.cfg["width"] = [shim.cfg["width"][0], labels]
        # An optimizer finds its moments by this id, and they have the earlier shapes.
        shim.take_new_id()


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    """Return the vectors that :func:`run_on_rows` reads."""
    return token_vectors(model.layers[0], docs, is_train)


def run_on_rows(
    model: Model, docs: Sequence[Doc], compute: Compute, is_train: bool
) -> tuple[Any, Callable[[], Any]]:
    """Embed the docs, and call ``compute`` with the module and the rows of all docs.

    In training ``compute`` returns the loss as a tuple, None and further results, such as
    :func:`spacy_latent.models.tree_losses.batch_loss`. The callback passes the gradient of the loss
    to all weights.
    """
    tok2vec, trees = model.layers
    arrays, backprop_tok2vec = token_vectors(tok2vec, docs, is_train)
    result, backprop_trees = trees((arrays, compute), is_train)
    return result, lambda: backprop_tok2vec(backprop_trees())


@recorded
def forward_trees(model: Model, inputs: tuple[list[Floats2d], Compute], is_train: bool) -> Any:
    """Return predictions, or in training the loss with its parts, and a backprop.

    Args:
        inputs: rows of each doc, and the function that the module calls with all rows.
    """
    arrays, compute = inputs
    shim: Any = model.shims[0]
    ops: Any = model.ops
    sizes = [len(array) for array in arrays]
    rows = rows_of(model, arrays, is_train)
    bring_dropout(model, shim.module)
    if not is_train:
        return shim.predict((rows, compute)), refuse_backprop
    ((loss,), _, parts), backprop_rows = shim.begin_update((rows, compute))

    def backprop() -> list[Floats2d]:
        gradient = torch2xp(backprop_rows([torch.ones_like(loss)]))
        return ops.unflatten(ops.asarray2f(gradient), sizes)

    return (float(loss.detach()), parts), backprop


def refuse_backprop() -> Any:
    """Raise an error: predictions have no gradient."""
    raise LatentError(
        "The labelled parser cannot backpropagate from a prediction. Call it with is_train=True."
    )
