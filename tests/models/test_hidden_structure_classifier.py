"""Text classifiers with a hidden structure, in spaCy's components and in this package's."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent.errors import IncompatiblePair
from spacy_latent.models.inspection import latent_module, read_batch
from spacy_latent.models.random_structure import substitute_structures
from tests.pipeline.small_pipelines import TOK2VEC, learn

TREES: dict[str, Any] = {}
SEQUENCES = {
    "structure": {"@misc": "spacy-latent.TagSequence.v1"},
    "scorer": {"@misc": "spacy-latent.EmissionScorer.v1", "num_tags": 3},
}
CHAINS = {
    "structure": {"@misc": "spacy-latent.LinearChain.v1"},
    "scorer": {"@misc": "spacy-latent.TransitionScorer.v1", "num_tags": 2},
}
CHOICES = {
    "structure": {"@misc": "spacy-latent.KOfN.v1", "k": 1, "exactly": False},
    "scorer": {"@misc": "spacy-latent.ItemScorer.v1"},
}
TEXTS = {
    "a b and a": "A",
    "b a a or a b": "A",
    "c b and c": "B",
    "c or b c c": "B",
    "b c d d": "B",
    "a a d": "A",
}


def pipeline(component: str, **model: Any) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    architecture = {
        "@architectures": "spacy-latent.HiddenStructureClassifier.v1",
        "tok2vec": TOK2VEC,
        "exclusive_classes": "multilabel" not in component,
        **model,
    }
    nlp.add_pipe(component, name="classifier", config={"model": architecture})
    return nlp


def labelled(nlp: Language) -> list[Example]:
    return [
        Example.from_dict(
            nlp.make_doc(text), {"cats": {"A": float(label == "A"), "B": float(label == "B")}}
        )
        for text, label in TEXTS.items()
    ]


def trained(component: str, steps: int = 30, **model: Any) -> Language:
    nlp = pipeline(component, **model)
    examples = labelled(nlp)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.01
    learn(nlp, examples, steps, optimizer)
    return nlp


def weights_of(nlp: Language) -> list[Any]:
    shim: Any = nlp.get_pipe("classifier").model.get_ref("latent").shims[0]  # type: ignore[attr-defined]
    return [parameter.detach().clone() for parameter in shim.module.parameters()]


@pytest.mark.parametrize(
    "component", ["textcat", "textcat_multilabel", "latent_textcat", "latent_textcat_multilabel"]
)
def test_components_learn_the_labels(component: str, tmp_path: Any) -> None:
    nlp = trained(component, **SEQUENCES)
    for doc, label in zip(nlp.pipe(TEXTS), TEXTS.values()):
        assert max(doc.cats, key=lambda name: doc.cats[name]) == label
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    texts = ["", *TEXTS]
    assert [doc.cats for doc in loaded.pipe(texts)] == [doc.cats for doc in nlp.pipe(texts)]


@pytest.mark.parametrize("model", [TREES, CHAINS, CHOICES], ids=["trees", "chains", "choices"])
def test_structures_learn_the_labels(model: dict[str, Any]) -> None:
    nlp = trained("textcat", **model)
    right = [doc.cats[label] > 0.5 for doc, label in zip(nlp.pipe(TEXTS), TEXTS.values())]
    assert all(right)


def test_all_weights_learn() -> None:
    nlp = pipeline("textcat", **CHAINS)
    examples = labelled(nlp)
    optimizer = nlp.initialize(lambda: examples)
    before = weights_of(nlp)
    learn(nlp, examples, 2, optimizer)
    assert all(not np.array_equal(a, b) for a, b in zip(before, weights_of(nlp)))


@pytest.mark.parametrize("component", ["latent_textcat", "latent_textcat_multilabel"])
def test_docs_have_the_structure_of_their_likeliest_label(component: str) -> None:
    nlp = trained(component, steps=10, **SEQUENCES)
    pipe: Any = nlp.get_pipe("classifier")
    pipe.cfg["annotate"] = "probabilities"
    docs = list(nlp.pipe(TEXTS))
    layer: Any = latent_module(pipe.model).latent
    vectors = pipe.model.get_ref("tok2vec").predict(docs)
    for doc, rows in zip(docs, vectors):
        label = list(doc.cats.values())
        index = int(np.argmax(label)) + 1
        if component.endswith("multilabel") and max(label) < 0.5:
            index = 0
        read = torch.from_numpy(rows)[None], torch.tensor([len(doc)])
        with torch.no_grad():
            scores = layer.scorer(*read)
            if index:
                scores = scores + layer.composer.of_parts(*read)[index - 1]
        (structure,) = doc._.latent["classifier"].spans
        assert structure.decoded.tolist() == scores[0].argmax(1).tolist()
        marginals = scores[0].softmax(1).numpy()
        for (place, tag), value in zip(structure.parts, structure.probabilities):
            assert value == pytest.approx(marginals[place, tag], abs=1e-5)


def test_log_partitions_of_several_spans_are_summed() -> None:
    nlp = pipeline(
        "latent_textcat",
        **SEQUENCES,
        span_getter={"@misc": "spacy-latent.DocSpans.v1", "max_length": 2},
    )
    nlp.initialize(lambda: labelled(nlp))
    pipe: Any = nlp.get_pipe("classifier")
    docs = [nlp.make_doc("a b c")]
    layer: Any = latent_module(pipe.model).latent
    (rows,) = pipe.model.get_ref("tok2vec").predict(docs)
    read = torch.from_numpy(rows)[None], torch.tensor([3])
    with torch.no_grad():
        every = layer.scorer(*read)[0] + layer.composer.of_parts(*read)[:, 0]
    # Tags are independent of each other, so the sums over spans equal the sums over the doc.
    paths = list(product(range(3), repeat=3))
    totals = torch.stack([every[:, range(3), list(path)].sum(1) for path in paths], 1)
    expected = totals.logsumexp(1).softmax(0)
    assert list(nlp("a b c").cats.values()) == pytest.approx(expected.tolist(), abs=1e-5)
    batch = read_batch(pipe.model, docs)
    assert [len(spans) for spans in batch.spans] == [2]
    likeliest = int(expected.argmax())
    for group, output in zip(batch.groups, batch.outputs):
        for (_, place), scores in zip(group.members, output.scores):
            first, end = batch.spans[0][place]
            torch.testing.assert_close(scores[: end - first], every[likeliest, first:end])


def test_pairs_of_texts_have_hidden_alignments() -> None:
    nlp = pipeline(
        "latent_textcat",
        structure={"@misc": "spacy-latent.ManyToOneAlignment.v1"},
        scorer={"@misc": "spacy-latent.CellScorer.v1"},
        span_getter={"@misc": "spacy-latent.PairSpans.v1"},
    )
    examples = labelled(nlp)
    for example in examples:
        for doc in (example.predicted, example.reference):
            doc.spans["a"], doc.spans["b"] = [doc[:2]], [doc[2:]]
    optimizer = nlp.initialize(lambda: examples)
    losses = learn(nlp, examples, 2, optimizer)
    assert np.isfinite(losses["classifier"])
    doc = nlp(examples[0].predicted)
    assert len(doc._.latent["classifier"].spans) == 1


def test_other_structures_have_the_classes_of_their_own_scores() -> None:
    """The sum over structures has one term if a structure is substituted."""
    nlp = trained("latent_textcat", steps=10, **SEQUENCES)
    pipe: Any = nlp.get_pipe("classifier")
    before = [doc.cats["A"] for doc in nlp.pipe(TEXTS)]
    with substitute_structures([pipe.model], "random"):
        other = [doc.cats["A"] for doc in nlp.pipe(TEXTS)]
    assert not np.allclose(before, other)
    assert before == [doc.cats["A"] for doc in nlp.pipe(TEXTS)]


def test_structures_without_a_sum_are_refused() -> None:
    with pytest.raises(IncompatiblePair):
        pipeline(
            "textcat",
            structure={"@misc": "spacy-latent.OneToOneAlignment.v1"},
            scorer={"@misc": "spacy-latent.CellScorer.v1"},
        )


def test_labels_cannot_be_added_to_a_trained_model() -> None:
    nlp = trained("latent_textcat", steps=1, **SEQUENCES)
    with pytest.raises(ValueError):
        nlp.get_pipe("classifier").add_label("C")  # type: ignore[attr-defined]
