"""Training of ``latent_parser`` on sentences without heads."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import SGD, fix_random_seed

from spacy_latent.errors import IncompatiblePair, LatentError, LatentWarning
from spacy_latent.models.evidence_of_docs import evidence_bounds
from spacy_latent.models.labelled_parser import module_of, word_objective_of
from tests.pipeline.small_pipelines import LISTENER, initialized, learn
from tests.pipeline.test_latent_parser import MODEL, PROJECTIVE, SPANNING, joined, parsed, pipeline

DECODER = {"@misc": "spacy-latent.WordsByHeads.v1", "size": 40}
BOUND = {
    "@misc": "spacy-latent.EvidenceBound.v1",
    "decoder": DECODER,
    "prior": {"@misc": "spacy-latent.LearnedArcPrior.v1"},
    "unlabelled_weight": 0.5,
    "labelled_weight": 0.1,
}
AUTOENCODER = {
    "@misc": "spacy-latent.CrfAutoencoder.v1",
    "decoder": DECODER,
    "unlabelled_weight": 0.5,
    "labelled_weight": 0.1,
}
KINDS = {"bound": BOUND, "evidence": AUTOENCODER}
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(evidence: dict[str, Any] | None, **model: Any) -> Language:
    return pipeline(model={**MODEL, "evidence": evidence, **model})


def unlabelled(nlp: Language) -> list[Example]:
    texts = ["She saw the old dog of him", "", "dog", "The dog  left him"]
    return [Example.from_dict(nlp.make_doc(text), {}) for text in texts]


def model_of(nlp: Language) -> Any:
    return nlp.get_pipe("latent_parser").model  # type: ignore[attr-defined]


def weights(nlp: Language) -> dict[str, np.ndarray]:
    """Return the weights of the component's torch module, and of its embedder."""
    found = {
        name: value.numpy().copy() for name, value in module_of(model_of(nlp)).state_dict().items()
    }
    embedder = model_of(nlp).get_ref("tok2vec").to_bytes()
    return {**found, "embedder": np.frombuffer(embedder, dtype="uint8")}


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """Return the first part of the names of the changed weights."""
    return {name.split(".")[0] for name in after if not np.array_equal(before[name], after[name])}


@each_kind
@pytest.mark.parametrize("structure", [SPANNING, PROJECTIVE])
def test_sentences_with_and_without_heads_train_together(kind: str, structure: Any) -> None:
    nlp = made(KINDS[kind], structure=structure)
    sample = joined(nlp) + parsed(nlp)
    optimizer = initialized(nlp, sample=sample)
    before = weights(nlp)
    losses = learn(nlp, [*sample, *unlabelled(nlp)], 2, optimizer)
    key = f"latent_parser_{kind}"
    assert set(losses) == {"latent_parser", key}
    assert 0 < losses["latent_parser"] and 0 < losses[key]
    after = weights(nlp)
    assert moved(before, after) == {"embedder", "evidence", "labeller", "scorer", "starts"}
    if kind == "bound":
        assert not np.array_equal(before["evidence.prior.scores"], after["evidence.prior.scores"])
    assert all(np.isfinite(value).all() for value in after.values())


@each_kind
def test_sentences_without_heads_teach_trees_and_no_labels_or_starts(kind: str) -> None:
    nlp = made(KINDS[kind])
    optimizer = initialized(nlp, sample=parsed(nlp))
    before, lost = weights(nlp), []
    for _ in range(25):
        losses = nlp.update(unlabelled(nlp), sgd=optimizer)
        lost.append(losses[f"latent_parser_{kind}"])
    assert moved(before, weights(nlp)) == {"embedder", "evidence", "scorer"}
    assert lost[-1] < 0.9 * lost[0]
    assert losses["latent_parser"] == pytest.approx(0.5 * lost[-1], rel=1e-5)
    # The initial biases follow the frequencies of the words in the training docs.
    assert np.ptp(before["evidence.decoder.output.bias"]) > 1.0


def test_without_the_block_sentences_without_heads_teach_nothing() -> None:
    nlp = made(None)
    initialized(nlp, sample=parsed(nlp))
    before = weights(nlp)
    for _ in range(2):
        losses = nlp.update(unlabelled(nlp), sgd=SGD(0.1))
    assert losses == {"latent_parser": 0.0}
    assert not moved(before, weights(nlp))


@each_kind
def test_the_block_draws_no_weight_of_the_others_and_predictions_do_not_read_it(kind: str) -> None:
    """The other weights and the annotated doc are the same to the byte with and without it."""
    found = []
    for evidence in (None, KINDS[kind]):
        fix_random_seed(0)
        nlp = made(evidence)
        nlp.initialize(lambda nlp=nlp: parsed(nlp))
        doc = nlp("She saw the old dog")
        found.append((weights(nlp), doc.to_bytes()))
    (without, parse), (with_block, same) = found
    assert all(np.array_equal(value, with_block[name]) for name, value in without.items())
    assert {name.split(".")[0] for name in with_block.keys() - without.keys()} == {"evidence"}
    assert parse == same


@each_kind
def test_the_weights_say_how_much_words_count(kind: str) -> None:
    """Weights of 0 give the same training as without the block, except for rounding."""
    results = []
    for evidence in (None, {**KINDS[kind], "unlabelled_weight": 0.0, "labelled_weight": 0.0}):
        nlp = made(evidence)
        initialized(nlp, sample=parsed(nlp))
        for _ in range(3):
            losses = nlp.update([*parsed(nlp), *unlabelled(nlp)], sgd=SGD(0.01))
        results.append((losses["latent_parser"], weights(nlp)))
    (loss, without), (other, with_none) = results
    assert loss == pytest.approx(other, rel=1e-5)
    for name, value in without.items():
        if name != "embedder":
            assert np.allclose(value, with_none[name], atol=1e-5), name


def test_a_weight_may_follow_a_schedule_and_goes_on_after_loading() -> None:
    schedule = {"@schedules": "warmup_linear.v1", "initial_rate": 1.0, "warmup_steps": 4}
    schedule["total_steps"] = 100

    def share(nlp: Language) -> float:
        losses = nlp.update(unlabelled(nlp), sgd=optimizer)
        return losses["latent_parser"] / losses["latent_parser_evidence"]

    nlp = made({**AUTOENCODER, "unlabelled_weight": schedule})
    optimizer = initialized(nlp, sample=parsed(nlp))
    shares = [share(nlp) for _ in range(3)]
    assert shares == pytest.approx([0.0, 0.25, 0.5])
    loaded = made({**AUTOENCODER, "unlabelled_weight": schedule})
    loaded.from_bytes(nlp.to_bytes())
    assert share(loaded) == share(nlp) == pytest.approx(0.75)


@each_kind
def test_it_is_saved_and_predicts_in_several_ways(kind: str, tmp_path) -> None:
    nlp = made(KINDS[kind])
    optimizer = initialized(nlp, sample=parsed(nlp))
    learn(nlp, [*parsed(nlp), *unlabelled(nlp)], 5, optimizer)
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    kept, found = weights(nlp), weights(loaded)
    assert "evidence.decoder.heads.weight" in kept
    assert all(np.array_equal(value, found[name]) for name, value in kept.items())
    text = "The old dog saw him"
    parse = [token.head.i for token in nlp(text)]
    for parameter in word_objective_of(model_of(loaded)).parameters():
        parameter.data.zero_()
    for again in (loaded, pickle.loads(pickle.dumps(nlp))):
        docs = [again(text), *again.pipe([text, "dog", text])]
        assert all([t.head.i for t in doc] == parse for doc in (docs[0], docs[1], docs[3]))
    # The loaded pipeline can be trained further.
    losses = loaded.update([*parsed(nlp), *unlabelled(nlp)], sgd=optimizer)
    assert losses[f"latent_parser_{kind}"] > 0


def test_sentences_are_those_of_the_predicted_doc_or_the_whole_doc_is_one() -> None:
    # The embedder has no context, so sentences cannot influence each other through their vectors.
    embed = {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": 16,
        "attrs": ["NORM"],
        "rows": [50],
        "include_static_vectors": False,
    }
    nlp = made(AUTOENCODER, tok2vec=embed)
    initialized(nlp, sample=parsed(nlp))
    words = ["She", "left", "He", "saw", "him"]
    split = Doc(nlp.vocab, words=words, sent_starts=[True, False, True, False, False])
    whole = Doc(nlp.vocab, words=words)
    docs = [split, Doc(nlp.vocab, words=words[:2]), Doc(nlp.vocab, words=words[2:]), whole]
    found = evidence_bounds(model_of(nlp), docs)
    assert found[0] == pytest.approx(found[1] + found[2], rel=1e-6)
    assert found[3] != pytest.approx(found[0], rel=1e-4)
    losses = nlp.update([Example(split, Doc(nlp.vocab, words=words))], sgd=SGD(0.0))
    assert losses["latent_parser_evidence"] == pytest.approx(-found[0], rel=1e-6)


def test_a_doc_in_part_with_heads() -> None:
    """A sentence with heads has the weight of labelled ones, and one without has the other weight.

    Here the labelled weight is 0, so the evidence of the first sentence is not in the loss.
    """
    nlp = made({**AUTOENCODER, "labelled_weight": 0.0})
    initialized(nlp, sample=parsed(nlp))
    words = ["She", "left", "He", "saw", "him"]
    starts = [True, False, True, False, False]
    alone = Doc(nlp.vocab, words=words)
    alone.from_array("SENT_START", np.array([1, -1, 1, -1, -1]).astype("uint64"))
    reference = Doc(
        nlp.vocab,
        words=words,
        heads=[1, 1, None, None, None],
        deps=["nsubj", "ROOT", None, None, None],
    )
    predicted = Doc(nlp.vocab, words=words, sent_starts=starts)
    frozen = SGD(0.0)
    none = nlp.update([Example(predicted, Doc(nlp.vocab, words=words))], sgd=frozen)
    some = nlp.update([Example(predicted, reference)], sgd=frozen)
    without = made(None)
    initialized(without, sample=parsed(without))
    supervised = without.update([Example(predicted, reference)], sgd=frozen)["latent_parser"]
    counted = some["latent_parser"] - supervised
    assert 0 < counted < none["latent_parser"]
    assert supervised > 0


@each_kind
def test_a_sentence_whose_heads_no_tree_has_does_not_count(kind: str) -> None:
    nlp = made(KINDS[kind], structure={**SPANNING, "max_arc_length": 1})
    initialized(nlp, sample=parsed(nlp))
    words = ["too", "long", "arc"]
    reference = Doc(nlp.vocab, words=words, heads=[2, None, 2], deps=["amod", None, "ROOT"])
    wrong = Example(Doc(nlp.vocab, words=words), reference)
    with pytest.warns(LatentWarning, match="agrees"):
        alone = nlp.update([wrong], sgd=SGD(0.0))
    assert alone == {"latent_parser": 0.0, f"latent_parser_{kind}": 0.0}
    wanted = nlp.update(unlabelled(nlp), sgd=SGD(0.0))
    losses = nlp.update([wrong, *unlabelled(nlp)], sgd=SGD(0.0))
    assert losses == pytest.approx(wanted, rel=1e-5)


@each_kind
def test_bounds_of_docs_are_what_training_reports(kind: str) -> None:
    nlp = made(KINDS[kind])
    initialized(nlp, sample=parsed(nlp))
    examples = unlabelled(nlp)
    bounds = evidence_bounds(model_of(nlp), [example.predicted for example in examples])
    assert bounds.shape == (4,) and bounds[1] == 0 and (bounds[[0, 2, 3]] < 0).all()
    losses = nlp.update(examples, sgd=SGD(0.0))
    assert losses[f"latent_parser_{kind}"] == pytest.approx(-bounds.sum(), rel=1e-5)
    without = made(None)
    initialized(without, sample=parsed(without))
    with pytest.raises(LatentError, match="bound"):
        evidence_bounds(model_of(without), [])


def test_over_a_shared_embedder() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": MODEL["tok2vec"]}})
    shared = {**MODEL, "tok2vec": LISTENER, "evidence": AUTOENCODER}
    nlp.add_pipe("latent_parser", config={"model": shared})
    optimizer = initialized(nlp, sample=parsed(nlp))
    encoder = nlp.get_pipe("latent_encoder").model  # type: ignore[attr-defined]
    before = encoder.to_bytes()
    losses = learn(nlp, unlabelled(nlp), 3, optimizer)
    assert losses["latent_parser_evidence"] > 0
    assert encoder.to_bytes() != before


@pytest.mark.parametrize(
    ("evidence", "error", "message"),
    [
        (SPANNING, LatentError, "evidence.*WordObjective"),
        (
            {**BOUND, "decoder": {"@misc": "spacy-latent.BagOfWords.v1"}},
            LatentError,
            "decoder.*BagOfWords.*ArcDecoder.*WordsByHeads",
        ),
        (
            {**BOUND, "prior": {"@misc": "spacy-latent.LearnedPrior.v1"}},
            IncompatiblePair,
            "LearnedPrior.*SpanningTree",
        ),
    ],
)
def test_what_does_not_fit_is_refused_when_the_config_is_loaded(evidence, error, message) -> None:
    with pytest.raises(error, match=message):
        made(evidence)


def test_words_that_nobody_wrote_are_refused() -> None:
    nlp = made({**AUTOENCODER, "decoder": {**DECODER, "attr": "TAG"}})
    with pytest.raises(LatentError, match="TAG"):
        initialized(nlp, sample=parsed(nlp))


def test_a_classifier_takes_no_decoder_of_heads() -> None:
    nlp = spacy.blank("en")
    tok2vec = MODEL["tok2vec"]
    model = {
        "@architectures": "spacy-latent.DocumentCode.v1",
        "exclusive_classes": True,
        "tok2vec": tok2vec,
    }
    for evidence, message in (
        (AUTOENCODER, "evidence.*CrfAutoencoder.*EvidenceBound"),
        (
            {**BOUND, "prior": None},
            "decoder.*WordsByHeads.*Decoder.*BagOfWords",
        ),
    ):
        with pytest.raises(LatentError, match=message):
            nlp.add_pipe("latent_textcat", config={"model": {**model, "evidence": evidence}})
