"""Cosine of each estimator's gradient with the true gradient, at several points of one training.

    python -m benchmarks gradients [--steps 30 300 1000]

The demo's classifier (recipe ``demo_attention_score_function``, corpus/demo of project.yml) is
trained by the score function. At each of the given steps, the gradient of the expected loss with
respect to the arc scores of one batch is computed. The row of an estimator has the cosine of this
gradient with the mean of several gradients of the estimator, which reduces their noise. The number
in brackets is the mean cosine of its single gradients. 1 is the direction of steepest descent. The
expected loss rises if a cosine is below 0. The batch is not trained on.

The heads of the demo's trees are drawn independently of each other, each from the earlier words.
The gradient for the arc h → m is therefore μ (E[L | h → m] − E[L]). It is estimated by the mean
over DRAWS drawn trees, in which all heads of m are tried while the other heads stay.

Some estimators have another objective, such as the loss of a relaxed structure. They are judged by
the loss of hard structures as well, because predictions use hard structures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
from spacy.language import Language
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.util import load_config, registry
from thinc.api import Adam, Model, fix_random_seed
from torch import Tensor

from benchmarks.recipes import path_of
from benchmarks.sections import write_section
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.control_variates import LeaveOneOut
from spacy_latent.estimators.implicit_mle import ImplicitMLE
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.spigot import Spigot
from spacy_latent.estimators.spigot_marginals import SpigotMarginals
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.latent_text_classifier import latent_layer, run
from spacy_latent.structures.base import Structure

ROOT = Path(__file__).parents[1]
RECIPE = "demo_attention_score_function"
CONTROL = "the true gradient from half of the trees, and from the other half"
BATCH, LENGTH, SAMPLES, AT_ONCE = 48, 16, 8, 60


def estimators() -> dict[str, tuple[Estimator, int]]:
    """Return the estimators by name, each with the number of gradients that are averaged."""
    gumbel: dict[str, Any] = {"noise": "gumbel", "num_samples": SAMPLES}
    unbiased = ScoreFunction(SAMPLES, LeaveOneOut())
    return {
        "score function, eight samples, leave one out": (unbiased, 24),
        "SparseMAP, each tree's own loss": (SparseMAP(marginalize=True), 1),
        "marginals": (Marginals(), 1),
        "SparseMAP": (SparseMAP(), 1),
        "perturb-and-MAP, marginals backward, eight samples": (
            PerturbAndMap(backward="marginals", **gumbel),
            24,
        ),
        "perturb-and-MAP, identity backward, eight samples": (
            PerturbAndMap(backward="identity", **gumbel),
            24,
        ),
        "straight-through, marginals backward": (StraightThrough("marginals"), 1),
        "straight-through, identity backward": (StraightThrough("identity"), 1),
        "I-MLE, λ = 0.3, eight samples": (ImplicitMLE(target_step=0.3, **gumbel), 24),
        "I-MLE, λ = 3, eight samples": (ImplicitMLE(target_step=3.0, **gumbel), 24),
        "SPIGOT": (Spigot(), 1),
        "SPIGOT, Gumbel noise, eight samples": (Spigot(step_size=0.3, **gumbel), 24),
        "SPIGOT of marginals": (SpigotMarginals(), 1),
    }


@contextmanager
def replaced(layer: LatentLayer, estimator: Estimator) -> Iterator[list[Tensor]]:
    """Give a layer another estimator, and yield the list of its scores, which keep gradients."""
    own, score = layer.estimator, layer.score
    seen: list[Tensor] = []

    def watched(vectors: Tensor, lengths: Tensor, temperature: float | None = None) -> Any:
        structure, scores = score(vectors, lengths, temperature)
        if scores.requires_grad:
            scores.retain_grad()
        seen.append(scores)
        return structure, scores

    # Deletion is needed first: torch stores attributes that are modules apart from other ones.
    del layer.estimator
    layer.estimator = estimator
    layer.score = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del layer.estimator, layer.score
        layer.estimator = own


def gradients(nlp: Language, batch: list[Example], estimator: Estimator, count: int) -> Tensor:
    """Return gradients of the loss with respect to the scores of all arcs, ``(count, numbers)``."""
    (name,) = nlp.pipe_names
    pipe: Any = nlp.get_pipe(name)
    layer = latent_layer(pipe.model)
    found = []
    for _ in range(count):
        with replaced(layer, estimator) as seen:
            # With sgd=None, spaCy would create an optimizer and change the weights.
            update = [Example(e.reference.copy(), e.reference) for e in batch]
            nlp.update(update, sgd=False)  # type: ignore[arg-type]
        found.append(torch.cat([_of(scores) for scores in seen]))
        forget_gradients(pipe.model)
    return torch.stack(found).double().nan_to_num()


def forget_gradients(model: Model) -> None:
    """Delete the gradients of all weights, so that the measurement does not change the next
    step.
    """
    for node in model.walk():
        for shim in node.shims:
            for parameter in shim.module.parameters():
                parameter.grad = None
        for name in node.param_names:
            if node.has_grad(name):
                node.get_grad(name).fill(0)


def _of(scores: Tensor) -> Tensor:
    """Return the gradient of some scores, minus its mean over the heads of each word.

    Equal changes of the scores of all heads of a word do not change the distribution.
    """
    assert scores.grad is not None
    return _centered(scores.grad, scores).detach().flatten()


def _centered(given: Tensor, scores: Tensor) -> Tensor:
    node = torch.arange(scores.shape[1])
    possible = ~scores.isneginf() & (node[:, None] < node) & (node[:, None] > 0)
    given = given.masked_fill(~possible, 0.0)
    mean = given.sum(1, keepdim=True) / possible.sum(1, keepdim=True).clamp_min(1)
    return torch.where(possible, given - mean, 0.0)


class Varied(Estimator):
    """An estimator that returns variants of one drawn tree, each with another head of one word.

    Attributes:
        fresh: whether the next call draws a new tree. Otherwise it varies the last tree.
        arcs: the arc of each variant, ``(K, 2)``.
    """

    hard = True

    def __init__(self) -> None:
        self.fresh, self.arcs = True, torch.zeros(0, 2, dtype=torch.int64)

    def needed(self) -> frozenset[str]:
        return frozenset({"marginals"})

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        self.marginals = structure.marginals(scores, lengths).detach()
        if self.fresh:
            self.drawn = structure.sample(scores, lengths, 1)[0]
        z = self.drawn.expand(len(self.arcs), *self.drawn.shape).clone()
        for k, (head, modifier) in enumerate(self.arcs.tolist()):
            z[k, :, :, modifier] = 0.0
            z[k, :, head, modifier] = 1.0
        return Draw(z, z.new_full(z.shape[:2], 1 / len(z)))


def true_gradient(nlp: Language, batch: list[Example], draws: int) -> Tensor:
    """Return the gradient of the expected loss, in the layout of a row of :func:`gradients`."""
    (name,) = nlp.pipe_names
    pipe: Any = nlp.get_pipe(name)
    layer, size = latent_layer(pipe.model), LENGTH + 1
    arcs = torch.tensor([(h, m) for m in range(2, size) for h in range(1, m)])
    docs = [e.reference.copy() for e in batch]
    right = torch.tensor([pipe.labels.index(max(d.cats, key=d.cats.__getitem__)) for d in docs])
    total = torch.zeros(len(docs), size, size, dtype=torch.float64)
    varied = Varied()
    for _ in range(draws):
        varied.fresh = True
        losses = torch.zeros_like(total)
        for start in range(0, len(arcs), AT_ONCE):
            varied.arcs = arcs[start : start + AT_ONCE]
            with torch.no_grad(), replaced(layer, varied):
                found, _ = run(pipe.model, docs, is_train=True)
            varied.fresh = False
            own = -found.logits.log_softmax(-1)[:, torch.arange(len(docs)), right]
            losses[:, varied.arcs[:, 0], varied.arcs[:, 1]] = own.T.double()
        mean = (varied.marginals * losses).sum(1, keepdim=True)
        total += varied.marginals * (losses - mean)
    return _centered(total, torch.zeros_like(total)).flatten()


def cosine(first: Tensor, second: Tensor) -> float:
    norms = first.norm() * second.norm()
    return float(first @ second / norms) if norms > 0 else 0.0


def measure(
    nlp: Language, batch: list[Example], draws: int, judged: dict[str, tuple[Estimator, int]]
) -> dict[str, str]:
    """Return the cell of each estimator.

    It has the cosine of its mean gradient with the true one. The mean cosine of single gradients
    follows in brackets if there are several.
    """
    halves = [true_gradient(nlp, batch, draws // 2) for _ in range(2)]
    truth = halves[0] + halves[1]
    cells = {CONTROL: f"{cosine(*halves):.2f}"}
    for name, (estimator, count) in judged.items():
        found = gradients(nlp, batch, estimator, count)
        cells[name] = f"{cosine(found.mean(0), truth):.2f}"
        if count > 1:
            cells[name] += f" ({sum(cosine(one, truth) for one in found) / count:.2f})"
    return cells


class Training:
    """A training of the demo's classifier, step by step."""

    def __init__(self, estimator: Estimator | None = None) -> None:
        data = ROOT / "corpus" / "demo"
        paths = {f"paths.{name}": str(data / f"{name}.tsv") for name in ("train", "dev")}
        config = load_config(path_of(RECIPE), overrides=paths, interpolate=True)
        fix_random_seed(0)
        self.nlp = init_nlp(config)
        if estimator is not None:
            (name,) = self.nlp.pipe_names
            layer = latent_layer(self.nlp.get_pipe(name).model)  # type: ignore[attr-defined]
            del layer.estimator
            layer.estimator = estimator
        read = registry.resolve({"corpora": config["corpora"]})["corpora"]
        self.examples, self.dev = list(read["train"](self.nlp)), list(read["dev"](self.nlp))
        self.batch = [e for e in self.dev if len(e.reference) == LENGTH][:BATCH]
        self.optimizer, self.step = Adam(2e-3), 0

    def advance(self, goal: int) -> float:
        """Train up to a step, and return the accuracy on the development set."""
        while self.step < goal:
            start = self.step * BATCH % len(self.examples)
            self.nlp.update(self.examples[start : start + BATCH], sgd=self.optimizer)
            self.step += 1
        accuracy: float = self.nlp.evaluate(self.dev)["cats_micro_f"]
        return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 300, 1000])
    parser.add_argument("--own-steps", type=int, default=400, help="of each estimator by itself")
    parser.add_argument("--draws", type=int, default=32, help="trees for the true gradient")
    given = parser.parse_args()
    training = Training()
    columns: dict[str, dict[str, str]] = {}
    for goal in sorted(given.steps):
        accuracy = training.advance(goal)
        found = measure(training.nlp, training.batch, given.draws, estimators())
        columns[f"step {goal}, accuracy {100 * accuracy:.1f}"] = found
        print(goal, found, flush=True)
    own: dict[str, str] = {}
    for name, (estimator, count) in estimators().items():
        training = Training(estimator)
        accuracy = training.advance(given.own_steps)
        found = measure(training.nlp, training.batch, given.draws, {name: (estimator, count)})
        own[name] = f"{found[name]}, accuracy {100 * accuracy:.1f}"
        print(name, own[name], flush=True)
    columns[f"trained by itself, step {given.own_steps}"] = own
    lines = [
        f"{date.today()}, torch {torch.__version__}; {len(training.batch)} expressions of "
        f"{LENGTH} tokens, the true gradient from {given.draws} drawn trees and all that differ "
        "from them in an arc. Cosine of the mean gradient; in brackets the mean cosine of a single "
        "one, where it is random. Accuracies in percent. Trained by the score function, but for "
        "the last column.",
        "",
        f"| estimator | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    for name in (CONTROL, *estimators()):
        cells = [found.get(name, "") for found in columns.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    write_section("gradients", "How true gradients are", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
