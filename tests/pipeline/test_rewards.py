"""Rewards of structures in addition to the loss of a task: values, gradients and training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed
from torch import Tensor

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.control_variates import LeaveOneOut, SelfCritical
from spacy_latent.estimators.rewarded_score_function import RewardedScoreFunction
from spacy_latent.estimators.rewards import GoldAgreement, Reward, ShortArcs
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.models import supervision  # noqa: F401, which registers partial heads
from spacy_latent.models.latent_text_classifier import run
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.pipeline.small_pipelines import TOK2VEC

TEXTS = [
    ("this is good stuff", "A", [2, 2, 2, 2]),
    ("this is bad stuff now", "B", [4, 4, 4, 4, 4]),
    ("bad film", "B", [0, 0]),
]


def trees(*heads: list[int]) -> Tensor:
    """Return the arcs of K trees with ``n`` tokens, of shape ``(K, 1, n+1, n+1)``."""
    made = [SpanningTree().encode(np.array(one), len(one)) for one in heads]
    return torch.as_tensor(np.stack(made))[:, None].double()


def test_short_arcs_by_hand() -> None:
    z, lengths = trees([0, 1, 2], [2, 0, 2], [3, 3, 0], [0, 0, 0]), torch.tensor([3])
    found = ShortArcs()(SpanningTree(), z, lengths, [None])
    assert found[:, 0].tolist() == [-1.0, -1.0, -1.5, 0.0]


def test_agreement_with_gold_by_hand() -> None:
    structure, z, lengths = SpanningTree(), trees([0, 1, 2], [2, 0, 2]), torch.tensor([3])

    def found(*gold: int) -> list[float]:
        values = GoldAgreement()(structure, z, lengths, [np.array(gold)])
        return values[:, 0].tolist()  # type: ignore[no-any-return]

    assert found(0, 1, 2) == pytest.approx([1.0, 1 / 3])
    # The head of the first token is unknown, so it does not count.
    assert found(-1, 1, 1) == pytest.approx([0.5, 0.0])
    assert GoldAgreement()(structure, z, lengths, [None]).tolist() == [[0.0], [0.0]]
    # The agreement of sets is F1, here 2 · 1 / (2 + 3).
    items = torch.tensor([[[0.0, 1.0, 1.0, 0.0]]])
    # The number of tags is that of the structures.
    tags = torch.eye(3)[torch.tensor([[[0, 2, 1]], [[1, 0, 1]]])]
    value = GoldAgreement()(TagSequence(), tags, torch.tensor([3]), [np.array([0, 1, 1])])
    assert value.flatten().tolist() == pytest.approx([2 / 3, 1 / 3])
    value = GoldAgreement()(KOfN(2), items, torch.tensor([4]), [np.array([0, 2, 3])])
    assert value.item() == pytest.approx(0.4)


def test_samples_are_judged_by_loss_and_reward_and_others_learn_from_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(3, 2, generator=generator, dtype=torch.float64).requires_grad_()
    rewards = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    log_probs = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    weights, features = torch.full((3, 2), 1 / 3, dtype=torch.float64), torch.zeros(2, 4)
    made = RewardedScoreFunction(ShortArcs(), 0.5, 2.0, 3, LeaveOneOut())
    made.objective(losses, weights, log_probs, features, rewards).sum().backward()
    judged = 2.0 * losses.detach() - 0.5 * rewards
    expected = judged - (judged.sum(0) - judged) / 2
    assert log_probs.grad is not None and losses.grad is not None
    torch.testing.assert_close(log_probs.grad, expected / 3)
    torch.testing.assert_close(losses.grad, weights)
    # The best structure, as the control variate, also has its reward.
    greedy = RewardedScoreFunction(ShortArcs(), 0.5, 0.0, 2, SelfCritical())
    objective = greedy.objective(losses, weights, log_probs, features, rewards)
    (gradient,) = torch.autograd.grad(objective.sum(), log_probs)
    torch.testing.assert_close(gradient[:2], -0.5 * (rewards[:2] - rewards[2]) / 2)


def test_without_a_reward_it_is_the_score_function() -> None:
    scores, lengths = torch.zeros(1, 4, 4, dtype=torch.float64), torch.tensor([3])
    drawn = []
    for estimator in (ScoreFunction(4), RewardedScoreFunction(num_samples=4)):
        torch.manual_seed(0)
        draw = estimator(SpanningTree(), scores, lengths, True)
        assert draw.log_probs is not None
        losses = draw.z.flatten(1)[:, :3].sum(1, keepdim=True)
        features = torch.zeros(1, 2)
        drawn.append(estimator.objective(losses, draw.weights, draw.log_probs, features))
    torch.testing.assert_close(*drawn, rtol=0, atol=0)


# ---------------------------------------------------------------- in a pipeline


class EarlyItems(Reward):
    """The reward that docs/estimators.md defines as an example."""

    parts = "items"

    def __call__(
        self,
        structure: Structure,
        z: Tensor,
        lengths: Tensor,
        gold: Sequence[np.ndarray | None],
    ) -> Tensor:
        return z[..., 0]


class OneNumber(EarlyItems):
    def __call__(
        self,
        structure: Structure,
        z: Tensor,
        lengths: Tensor,
        gold: Sequence[np.ndarray | None],
    ) -> Tensor:
        return z.sum()


spacy.registry.misc("tests.EarlyItems.v1")(EarlyItems)
spacy.registry.misc("tests.OneNumber.v1")(OneNumber)


def pipeline(reward: str, structure: str, **settings: Any) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    estimator = {
        "@misc": "spacy-latent.RewardedScoreFunction.v1",
        "reward": {"@misc": reward},
        "num_samples": 8,
        "normalize_advantage": True,
        "control_variate": {"@misc": "spacy-latent.LeaveOneOut.v1"},
        **settings,
    }
    items = structure.startswith("KOfN")
    model: dict[str, Any] = {
        "tok2vec": TOK2VEC,
        "exclusive_classes": True,
        "estimator": estimator,
        "structure": {"@misc": f"spacy-latent.{structure}.v1"},
        "scorer": {
            "@misc": f"spacy-latent.{'ItemScorer' if items else 'RelativeBiaffineScorer'}.v1"
        },
        "composer": {"@misc": f"spacy-latent.{'Selection' if items else 'GraphConvolution'}.v1"},
    }
    if items:
        model["structure"]["k"] = 1
    elif structure == "ProjectiveTree":
        model["structure"]["single_root"] = True
    nlp.add_pipe("latent_textcat", config={"model": model})
    return nlp


def examples(nlp: Language) -> list[Example]:
    made = []
    for text, label, heads in TEXTS:
        words = text.split()
        reference = Doc(nlp.vocab, words=words, heads=heads, deps=["dep"] * len(words))
        reference.cats = {"A": float(label == "A"), "B": float(label == "B")}
        made.append(Example(Doc(nlp.vocab, words=words), reference))
    return made


def learned(nlp: Language, sample: list[Example], steps: int) -> list[float]:
    """Train, and return the mean reward at each step."""
    optimizer = nlp.initialize(lambda: sample)
    optimizer.learn_rate = 0.003
    return [nlp.update(sample, sgd=optimizer)["latent_textcat_reward"] for _ in range(steps)]


def test_trees_are_learned_from_the_reward_alone_and_labels_from_the_loss() -> None:
    nlp = pipeline("spacy-latent.GoldAgreement.v1", "ProjectiveTree", task_weight=0.0)
    sample = examples(nlp)
    rewards = learned(nlp, sample, 60)
    assert np.mean(rewards[-10:]) > 0.95 > rewards[0] + 0.2
    for (text, label, heads), example in zip(TEXTS, sample):
        doc = nlp(text)
        assert doc.cats[label] > 0.8
        assert doc._.latent["latent_textcat"].heads.tolist() == heads
        # Gold comes from the references: the predicted docs have no heads.
        assert not example.predicted.has_annotation("HEAD")


def test_gold_of_other_structures_are_annotations() -> None:
    nlp = pipeline("spacy-latent.GoldAgreement.v1", "KOfN", task_weight=0.0)
    sample = examples(nlp)
    for example in sample:
        last = np.array([len(example.reference) - 1])
        gold = SpanStructure(0, len(example.reference), "KOfN", "items", last)
        write(example.reference, "latent_textcat", [gold])
    rewards = learned(nlp, sample, 40)
    assert np.mean(rewards[-5:]) > 0.9 > np.mean(rewards[:2]) + 0.2


def test_a_reward_of_ones_own() -> None:
    rewards = learned((nlp := pipeline("tests.EarlyItems.v1", "KOfN")), examples(nlp), 40)
    assert np.mean(rewards[-5:]) > 0.9
    assert nlp("stuff is good")._.latent["latent_textcat"].items()[0].token == 0
    with pytest.raises(LatentError, match=r"OneNumber.*\(\).*\(8, "):
        learned((nlp := pipeline("tests.OneNumber.v1", "KOfN")), examples(nlp), 1)


def test_rewards_of_texts_are_means_over_their_spans() -> None:
    nlp = pipeline("spacy-latent.ShortArcs.v1", "ProjectiveTree")
    sample = examples(nlp)
    nlp.initialize(lambda: sample)
    component: Any = nlp.get_pipe("latent_textcat")
    component.model.attrs["span_getter"] = lambda docs: [
        [(0, 2), (2, len(doc))] if len(doc) > 3 else [(0, len(doc))] for doc in docs
    ]
    found, _ = run(component.model, [example.predicted for example in sample], is_train=True)
    losses: dict[str, float] = {}
    component._reward(sample, found, losses)
    assert found.rewards.shape == (8, 3)
    expected = torch.zeros(8, 3)
    for group, output in zip(found.made.batch.groups, found.made.batch.outputs):
        each = ShortArcs()(SpanningTree(), output.draw.z, group.lengths, [])
        for b, (doc, _) in enumerate(group.members):
            expected[:, doc] += each[:, b] / (1 if doc == 2 else 2)
    torch.testing.assert_close(found.rewards, expected)
    assert losses == {"latent_textcat_reward": pytest.approx(expected.mean().item())}


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(IncompatiblePair, match=r"ShortArcs.*KOfN.*arcs"):
        pipeline("spacy-latent.ShortArcs.v1", "KOfN")
    with pytest.raises(LatentError, match=r"reward.*LeaveOneOut"):
        RewardedScoreFunction(LeaveOneOut())  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="reward_weight"):
        RewardedScoreFunction(ShortArcs(), -1.0)
    with pytest.raises(LatentError, match="task_weight is 0"):
        RewardedScoreFunction(None, task_weight=0.0)
    with pytest.raises(LatentError, match="task_weight is 0"):
        RewardedScoreFunction(ShortArcs(), 0.0, 0.0)


def test_a_text_of_which_all_heads_are_unknown_has_no_agreement() -> None:
    """Two roots in one span leave no known head, if trees have one root."""
    nlp = pipeline("spacy-latent.GoldAgreement.v1", "ProjectiveTree")
    heads = {"heads": [0, 1], "deps": ["ROOT", "ROOT"], "cats": {"A": 1.0, "B": 0.0}}
    sample = [Example.from_dict(nlp.make_doc("yes no"), heads)]
    assert learned(nlp, sample, 2) == [0.0, 0.0]
