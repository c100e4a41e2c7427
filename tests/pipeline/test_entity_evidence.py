"""Evidence for ``crf_ner`` from texts that are not annotated completely."""

from __future__ import annotations

import math
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Corpus, Example
from typer.testing import CliRunner

from spacy_latent.annotations import annotated_labels, entity_flags
from spacy_latent.cli.app import latent_cli
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.pipeline.evidence_survey import DoubtfulEvidence
from tests.models.test_crf_loss import every_sequence
from tests.pipeline.small_pipelines import TOK2VEC
from tests.pipeline.test_crf_ner import pipeline

WORDS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return made()


def made(**evidence: Any) -> Language:
    nlp = pipeline(evidence=evidence or None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LatentWarning)
        nlp.initialize(lambda: [example(nlp, ents=[(0, 1, "A"), (1, 2, "B")])])
    return nlp


def example(
    nlp: Language,
    ents: list[tuple[int, int, str]] | None = None,
    default: str = "outside",
    words: list[str] = WORDS,
    cats: dict[str, Any] | None = None,
    labels: Any = None,
    flags: Any = None,
) -> Example:
    reference = Doc(nlp.vocab, words=words)
    spans = [Span(reference, start, end, label=label) for start, end, label in ents or ()]
    reference.set_ents(spans, default=default)
    reference.cats = cats or {}
    reference._.annotated_labels, reference._.entity_flags = labels, flags
    return Example(Doc(nlp.vocab, words=words), reference)


def agreeing(nlp: Language, one: Example) -> float:
    """Return the number of tag sequences that agree with an example.

    All sequences have the same weight in an untrained model.
    """
    return agreeing_together(nlp, [one])


def loss_together(nlp: Language, examples: list[Example]) -> float:
    crf: Any = nlp.get_pipe("crf_ner")
    scores = crf.model.predict([one.predicted for one in examples])
    loss: float = crf.get_loss(examples, scores)[0]
    return loss


def agreeing_together(nlp: Language, examples: list[Example]) -> float:
    crf: Any = nlp.get_pipe("crf_ner")
    loss = loss_together(nlp, examples)
    chain = bound_chain(torch.zeros(len(crf.tags) + 2, len(crf.tags)), crf.tags)
    total = sum(math.log(len(every_sequence(chain, len(one.predicted)))) for one in examples)
    return math.exp(total - loss)


def count(nlp: Language, keep: Any) -> int:
    """Return the number of valid tag sequences over WORDS that ``keep`` accepts."""
    tags = nlp.get_pipe("crf_ner").tags  # type: ignore[attr-defined]
    chain = bound_chain(torch.zeros(len(tags) + 2, len(tags)), tags)
    rows = [[tags[i] for i in row] for row in every_sequence(chain, len(WORDS)).tolist()]
    return sum(map(keep, rows))


def ends(row: list[str], label: str) -> int:
    return sum(tag in (f"L-{label}", f"U-{label}") for tag in row)


# ---------------------------------------------------------------- label sets


def test_a_token_may_have_the_tags_of_labels_that_were_not_asked_for(nlp: Language) -> None:
    whole = example(nlp, [(1, 2, "A")])
    assert agreeing(nlp, whole) == pytest.approx(1)
    asked = example(nlp, [(1, 2, "A")], labels=["A"])
    # Each of the two outer tokens is O or U-B.
    assert agreeing(nlp, asked) == pytest.approx(4)
    wanted = count(nlp, lambda row: not any(tag.endswith("-A") for tag in row))
    assert agreeing(nlp, example(nlp, labels=["A"])) == pytest.approx(wanted)
    assert agreeing(nlp, example(nlp, labels=[])) == pytest.approx(count(nlp, lambda row: True))
    assert agreeing(nlp, example(nlp, labels=["B", "A"])) == pytest.approx(1)


def test_what_is_missing_or_blocked_stays_so_whatever_was_asked_for(nlp: Language) -> None:
    missing = example(nlp, default="missing", labels=["A", "B"])
    assert agreeing(nlp, missing) == pytest.approx(count(nlp, lambda row: True))
    blocked = example(nlp, labels=["A"])
    blocked.reference.set_ents([], blocked=[blocked.reference[1:2]], default="outside")
    assert agreeing(nlp, blocked) == pytest.approx(4)


@pytest.mark.parametrize("loss", ["quadratic", "perceptron", "sparsemap"])
def test_other_losses_know_label_sets_too(loss: str) -> None:
    nlp = pipeline(loss=loss)
    nlp.initialize(lambda: [example(nlp, ents=[(0, 1, "A"), (1, 2, "B")])])
    crf: Any = nlp.get_pipe("crf_ner")

    def loss_of(one: Example) -> float:
        return crf.get_loss([one], crf.model.predict([one.predicted]))[0]

    part, whole = example(nlp, [(1, 2, "A")], labels=["A"]), example(nlp, [(1, 2, "A")])
    assert loss_of(part) <= loss_of(whole)
    assert np.isfinite(loss_of(example(nlp, flags={"A": 0})))
    with pytest.raises(LatentError, match="'crf'"):
        loss_of(example(nlp, default="missing", flags={"A": 1}))


@pytest.mark.parametrize("labels", ["A", {"A": 1}, 3, ["A", 3], [""]])
def test_what_are_no_labels_is_refused(nlp: Language, labels: Any) -> None:
    with pytest.raises(LatentError, match="names"):
        agreeing(nlp, example(nlp, labels=labels))


def test_labels_that_nobody_has_are_refused(nlp: Language) -> None:
    for one in (example(nlp, labels=["A", "C"]), example(nlp, flags={"C": 1})):
        with pytest.raises(LatentError, match=r"text 1.*'a b c.*'C'"):
            agreeing(nlp, one)


def test_labels_that_were_asked_for_are_learned_and_one_without_entities_is_told() -> None:
    nlp = pipeline()
    texts = [example(nlp, [(0, 1, "A")], labels=["A"]), example(nlp, labels=["B", "A"])]
    with pytest.warns(LatentWarning, match=r"'B'.*2"):
        nlp.initialize(lambda: texts)
    assert nlp.get_pipe("crf_ner").labels == ("A", "B")  # type: ignore[attr-defined]


# ---------------------------------------------------------------- flags


def test_flags_count_entities(nlp: Language) -> None:
    for flags, keep in (
        ({"A": 1}, lambda row: ends(row, "A") >= 1),
        ({"A": True}, lambda row: ends(row, "A") >= 1),
        ({"A": 3}, lambda row: ends(row, "A") >= 3),
        ({"A": 0}, lambda row: ends(row, "A") == 0),
        ({"A": 2, "B": 1}, lambda row: ends(row, "A") >= 2 and ends(row, "B") >= 1),
        ({"A": 1, "B": 0}, lambda row: ends(row, "A") >= 1 and ends(row, "B") == 0),
    ):
        one = example(nlp, default="missing", flags=flags)
        assert agreeing(nlp, one) == pytest.approx(count(nlp, keep)), flags
    together = [example(nlp, default="missing", flags={"A": n}) for n in (1, 2)]
    wanted = math.prod(count(nlp, lambda row, n=n: ends(row, "A") >= n) for n in (1, 2))
    assert agreeing_together(nlp, together) == pytest.approx(wanted)


def test_flags_and_label_sets_and_entities_add_up(nlp: Language) -> None:
    # The agreeing sequences have a B at the second token, at the third, at each, or over both.
    one = example(nlp, [(0, 1, "A")], labels=["A"], flags={"B": 1})
    assert agreeing(nlp, one) == pytest.approx(4)
    known = example(nlp, [(0, 1, "A")], flags={"A": 1, "B": 0})
    assert agreeing(nlp, known) == pytest.approx(1)


def test_categories_are_flags_by_the_names_that_the_config_gives() -> None:
    nlp = made(flags={"has_a": "A", "has_b": "B"})
    both = example(nlp, default="missing", cats={"has_a": 1.0, "has_b": 0.0, "other": 1.0})
    wanted = count(nlp, lambda row: ends(row, "A") >= 1 and ends(row, "B") == 0)
    assert agreeing(nlp, both) == pytest.approx(wanted)
    perhaps = example(nlp, default="missing", cats={"has_a": 0.9, "has_b": 0.5})
    some = count(nlp, lambda row: ends(row, "A") >= 1)
    wanted_mean = 0.9 * some + 0.1 * (count(nlp, lambda row: True) - some)
    assert agreeing(nlp, perhaps) == pytest.approx(wanted_mean)
    own = example(nlp, default="missing", cats={"has_a": 1.0}, flags={"A": 2})
    assert agreeing(nlp, own) == pytest.approx(count(nlp, lambda row: ends(row, "A") >= 2))
    with pytest.raises(LatentError, match=r"text 1.*has_a"):
        agreeing(nlp, example(nlp, default="missing", cats={"has_a": 1.0}, flags={"A": 0}))
    for impossible in (2.0, "1"):
        with pytest.raises(LatentError, match=rf"is {impossible!r}.*\b0\b"):
            agreeing(nlp, example(nlp, default="missing", cats={"has_a": impossible}))


def test_flags_may_be_wrong() -> None:
    nlp = made(flags={"has_a": "A"}, flag_error=0.1)
    some = count(nlp, lambda row: ends(row, "A") >= 1)
    none = count(nlp, lambda row: ends(row, "A") == 0)
    for value, wanted in ((1.0, 0.9 * some + 0.1 * none), (0.0, 0.1 * some + 0.9 * none)):
        one = example(nlp, default="missing", cats={"has_a": value})
        assert agreeing(nlp, one) == pytest.approx(wanted)
    contrary = example(nlp, [(0, 1, "A")], cats={"has_a": 0.0})
    assert agreeing(nlp, contrary) == pytest.approx(0.1)
    many = example(nlp, default="missing", words=["a", "b"], flags={"A": 3})
    assert agreeing(nlp, many) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ents": [(0, 1, "A")], "flags": {"A": 0}}, "'A'.*'a'"),
        ({"default": "missing", "words": ["a", "b"], "flags": {"A": 3}}, "2 tokens"),
        ({"flags": {"A": 1}}, "none"),
        ({"ents": [(0, 2, "A")], "flags": {"A": 2}}, "2.*'a b'"),
        ({"default": "missing", "flags": {"A": 2, "B": 2}}, "3 tokens"),
        ({"ents": [(0, 2, "A")], "default": "missing", "flags": {"B": 2}}, "sequence"),
        ({"labels": ["A"], "flags": {"A": 1}}, "sequence"),
        ({"default": "missing", "words": ["a", "b", " "], "flags": {"A": 3}}, "2 tokens"),
        ({"default": "missing", "words": ["a", "b", " "], "flags": {"A": 2, "B": 1}}, "2 tokens"),
    ],
)
def test_evidence_that_contradicts_itself_names_its_text(
    nlp: Language, given: dict[str, Any], message: str
) -> None:
    fine = example(nlp, default="missing", flags={"A": 1})
    with pytest.raises(LatentError, match=rf"text 2.*'a b.*{message}"):
        agreeing_together(nlp, [fine, example(nlp, **given)])


@pytest.mark.parametrize("given", [{"default": "missing"}, {"labels": []}])
def test_no_unannotated_entity_begins_or_ends_at_white_space(
    nlp: Language, given: dict[str, Any]
) -> None:
    for words, space in (([" ", "b", "c"], 0), (["a", "\n\n", "c"], 1), (["a", "b", " "], 2)):
        for flags, least in (({}, 0), ({"A": 1}, 1), ({"A": 2}, 2)):

            def keep(row: list[str], space: int = space, least: int = least) -> bool:
                return row[space][0] in "OI" and ends(row, "A") >= least

            one = example(nlp, words=words, flags=flags, **given)
            assert agreeing(nlp, one) == pytest.approx(count(nlp, keep)), (words, flags)


@pytest.mark.parametrize("spaced", [True, False])
def test_white_space_between_unannotated_words_may_be_inside_of_an_entity(
    nlp: Language, spaced: bool
) -> None:
    """The reference may have the white space as a token without annotation, or lack it."""
    words = ["a", "b", "\n", "c", "\n", "d"]
    own = words if spaced else [word for word in words if word != "\n"]
    reference = Doc(nlp.vocab, words=own, spaces=[False] * len(own))
    ends_known = [Span(reference, 0, 1, label="A")]
    outside = [reference[len(own) - 1 :]]
    reference.set_ents(ends_known, outside=outside, default="missing")
    predicted = Doc(nlp.vocab, words=words, spaces=[False] * len(words))
    crf: Any = nlp.get_pipe("crf_ner")
    chain = bound_chain(torch.zeros(len(crf.tags) + 2, len(crf.tags)), crf.tags)
    rows = [[crf.tags[i] for i in row] for row in every_sequence(chain, len(words)).tolist()]
    wanted = sum(
        (row[0], row[4], row[5]) == ("U-A", "O", "O") and row[2][0] in "OI" for row in rows
    )
    assert agreeing(nlp, Example(predicted, reference)) == pytest.approx(wanted)


@pytest.mark.parametrize(("text", "least"), [("pain   ", 2), ("   ", 1), ("pain \n\n of tooth", 4)])
def test_white_space_does_not_count_as_entities(nlp: Language, text: str, least: int) -> None:
    reference = nlp.make_doc(text)
    reference.set_ents([], default="missing")
    fine = least - 1
    for flags in ({"A": fine}, {"A": fine, "B": 0}):
        reference._.entity_flags = flags
        assert math.isfinite(loss_together(nlp, [Example(nlp.make_doc(text), reference)]))
    reference._.entity_flags = {"A": least}
    with pytest.raises(LatentError, match=r"text 1.*'A'.*white space"):
        loss_together(nlp, [Example(nlp.make_doc(text), reference)])


@pytest.mark.filterwarnings("ignore:.*white space")
def test_an_annotated_entity_that_ends_in_white_space_counts(nlp: Language) -> None:
    words = ["a", " ", "c"]
    for default, rest in (("outside", 1), ("missing", 3)):
        one = example(nlp, [(0, 2, "A")], default, words=words, flags={"A": 1})
        assert agreeing(nlp, one) == pytest.approx(rest)
    alone = example(nlp, [(0, 1, "A"), (1, 2, "A"), (2, 3, "A")], words=words, flags={"A": 3})
    assert agreeing(nlp, alone) == pytest.approx(1)


def test_flags_of_more_labels_than_a_text_has_tokens_are_refused() -> None:
    """Five flags with 5 tokens have a finite loss. With 4 tokens they need a ``flag_error``."""
    labels = ["A", "B", "C", "D", "E"]
    flags = dict.fromkeys(labels, 1)
    for error in (0.0, 0.1):
        nlp = pipeline(evidence={"flag_error": error})
        ents = [(i, i + 1, label) for i, label in enumerate(labels)]
        nlp.initialize(lambda nlp=nlp, ents=ents: [example(nlp, ents, words=labels)])
        enough = example(nlp, default="missing", words=labels, flags=flags)
        assert math.isfinite(loss_together(nlp, [enough]))
        few = example(nlp, default="missing", words=labels[:4], flags=flags)
        if error:
            assert math.isfinite(loss_together(nlp, [few]))
        else:
            with pytest.raises(LatentError, match=r"text 1.*'E'.*4 tokens"):
                loss_together(nlp, [few])


@pytest.mark.parametrize("flags", [{"A": -1}, {"A": 0.5}, {"A": "yes"}, ["A"], {3: 1}])
def test_what_are_no_flags_is_refused(nlp: Language, flags: Any) -> None:
    with pytest.raises(LatentError, match=r"\b0\b"):
        agreeing(nlp, example(nlp, default="missing", flags=flags))


@pytest.mark.parametrize("labels", ["A", {"A": 1}, ["A", 3], [""], iter(["A"])])
def test_label_sets_that_are_no_list_of_names_are_refused(nlp: Language, labels: Any) -> None:
    with pytest.raises(LatentError):
        agreeing(nlp, example(nlp, default="missing", labels=labels))


def test_flags_and_label_sets_survive_a_file(nlp: Language) -> None:
    one = example(nlp, flags={"A": 2, "B": 0}, labels=("A",))
    data = DocBin(store_user_data=True, docs=[one.reference]).to_bytes()
    (doc,) = DocBin().from_bytes(data).get_docs(nlp.vocab)
    assert annotated_labels(doc) == ("A",) and entity_flags(doc) == {"A": 2, "B": 0}
    (bare,) = DocBin().from_bytes(DocBin(docs=[one.reference]).to_bytes()).get_docs(nlp.vocab)
    assert annotated_labels(bare) is None and entity_flags(bare) == {}


def test_a_category_that_no_text_has_is_told() -> None:
    nlp = pipeline(evidence={"flags": {"has_a": "A"}})
    with pytest.warns(LatentWarning, match=r"'has_a'.*1"):
        nlp.initialize(lambda: [example(nlp, [(0, 1, "A")], cats={"hasa": 1.0})])


def test_labels_that_only_flags_tell_of_are_learned() -> None:
    nlp = pipeline(evidence={"flags": {"has_c": "C"}})
    nlp.initialize(lambda: [example(nlp, [(0, 1, "A")], cats={"has_c": 1.0}, flags={"D": 0})])
    crf: Any = nlp.get_pipe("crf_ner")
    assert crf.labels == ("A", "C", "D")
    texts = [example(nlp, [(0, 1, "A")])]
    other = pipeline(evidence={"flags": {"has_c": "C"}})
    with pytest.raises(LatentError, match="'C'"):
        other.get_pipe("crf_ner").initialize(lambda: texts, labels=["A"])  # type: ignore


def test_labels_of_flags_without_an_entity_are_told() -> None:
    def told(*texts: dict[str, Any], **evidence: Any) -> str:
        nlp = pipeline(evidence=evidence or None)
        given = [example(nlp, **text) for text in texts]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            nlp.initialize(lambda: given)
        said = [str(one.message) for one in found if issubclass(one.category, DoubtfulEvidence)]
        debug = [one.text for one in find_traps(nlp, given) if one.code == "entity-evidence"]
        assert len(debug) == len(said)
        return " ".join(said)

    whole = {"ents": [(0, 1, "A")]}
    assert "'AA'" in told(whole, {"flags": {"AA": 1}})
    assert "'AA'" in told({"default": "missing", "flags": {"AA": 0}})
    assert "'AA'" in told({**whole, "cats": {"x": 1.0}}, flags={"x": "AA"})
    # An entity of another text has the label, so there is no warning.
    assert not told(whole, {"default": "missing", "flags": {"A": 1}})
    assert not told({**whole, "cats": {"x": 1.0}}, flags={"x": "A"})


# ---------------------------------------------------------------- little annotation


def test_entities_alone_are_warned_of_and_nothing_else_is() -> None:
    def told(*texts: dict[str, Any], **evidence: Any) -> bool:
        nlp = pipeline(evidence=evidence or None)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            nlp.initialize(lambda: [example(nlp, **text) for text in texts])
        return any("negative_share" in str(one.message) for one in found)

    marked = {"ents": [(0, 1, "A")], "default": "missing"}
    assert told(marked)
    for fine in ({"negative_share": 0.2}, {"flags": {"x": "A"}}):
        assert not told({**marked, "cats": {"x": 1.0}}, **fine)
    assert not told(marked, {"ents": [(0, 1, "A")]})
    assert not told({"ents": [(0, 1, "A")], "labels": ["A"]})
    assert not told({**marked, "flags": {"B": 0}})


def test_debug_finds_entities_alone_and_scorers_that_know_no_label_sets() -> None:
    nlp = pipeline()
    texts = [example(nlp, [(0, 1, "A")], default="missing"), example(nlp, labels=["A"])]
    nlp.initialize(lambda: texts)

    def codes(*given: Example) -> set[str]:
        return {found.code for found in find_traps(nlp, given) if "crf_ner" in found.text}

    assert codes(texts[0]) == {"entity-evidence"} and codes(*texts) == {"label-sets"}
    assert not codes(example(nlp, [(0, 1, "A")]))
    nlp = pipeline(scorer={"@scorers": "spacy-latent.label_set_scorer.v1"})
    nlp.initialize(lambda: texts)
    assert not codes(*texts)


def test_a_share_of_unmarked_tokens_is_taken_as_outside_anew_at_each_step() -> None:
    def draws(seed: int) -> list[float]:
        nlp = made(negative_share=0.5)
        np.random.seed(seed)
        one = example(nlp, [(1, 2, "A")], default="missing")
        return [round(agreeing(nlp, one)) for _ in range(12)]

    first = draws(0)
    # Each outer token may be O, U-A or U-B, and only O if it is drawn as outside.
    assert set(first) <= {1, 3, 9} and len(set(first)) > 1
    assert draws(0) == first != draws(1)
    nlp = made(negative_share=1.0)
    assert agreeing(nlp, example(nlp, default="missing")) == pytest.approx(1)
    # Tokens that are drawn as outside do not contradict a flag.
    assert agreeing(nlp, example(nlp, default="missing", flags={"A": 1})) > 1


# ---------------------------------------------------------------- sources


def told(nlp: Language, seed: int, length: int = 12, **sources: float) -> Example:
    """Return a text whose words "x" have the label A, and no other word has a label.

    Args:
        sources: Probability that a source is right about a token, for each source.
    """
    chance = random.Random(seed)
    words = [chance.choice(["x", "y", "z"]) for _ in range(length)]
    one = example(nlp, words=words, default="missing")
    for name, right in sources.items():
        one.reference.spans[name] = [
            Span(one.reference, i, i + 1, label="A")
            for i, word in enumerate(words)
            if (word == "x") == (chance.random() < right)
        ]
    return one


def test_how_far_to_believe_sources_is_learned_with_the_tagger(tmp_path: Path) -> None:
    rights = {"good": 0.97, "fair": 0.9, "bad": 0.75}
    nlp = pipeline(evidence={"sources": list(rights)})
    # The prior counts as a number of words, so a batch has as many words as in the recipes.
    texts = [told(nlp, seed, 100, **rights) for seed in range(40)]
    optimizer = nlp.initialize(lambda: texts)
    crf: Any = nlp.get_pipe("crf_ner")
    assert crf.labels == ("A",)
    for _ in range(15):
        for start in range(0, len(texts), 10):
            batch = [
                Example(nlp.make_doc(one.reference.text), one.reference)
                for one in texts[start : start + 10]
            ]
            losses = nlp.update(batch, sgd=optimizer)
    assert np.isfinite(losses["crf_ner"])
    found = {one.source: one for one in crf.source_reliability()}
    assert found["good"].recall > found["fair"].recall > found["bad"].recall > 0.4
    assert found["good"].precision > found["fair"].precision > found["bad"].precision
    doc = nlp(Doc(nlp.vocab, words=["y", "x", "z", "x"]))
    assert [(ent.start, ent.label_) for ent in doc.ents] == [(1, "A"), (3, "A")]
    nlp.to_disk(tmp_path)
    again: Any = spacy.load(tmp_path).get_pipe("crf_ner")
    assert again.source_reliability() == crf.source_reliability()
    result = CliRunner().invoke(latent_cli, ["sources", str(tmp_path)])
    assert result.exit_code == 0 and all(name in result.stdout for name in (*rights, "%"))
    result = CliRunner().invoke(latent_cli, ["sources", str(tmp_path), "--json"])
    (rows,) = srsly.json_loads(result.stdout).values()
    assert [row["source"] for row in rows] == list(rights)
    result = CliRunner().invoke(latent_cli, ["sources", str(tmp_path), "--totals"])
    places = [result.stdout.index(name) for name in ("bad", "fair", "good")]
    assert result.exit_code == 0 and places == sorted(places)
    result = CliRunner().invoke(latent_cli, ["sources", str(tmp_path), "--totals", "--json"])
    (rows,) = srsly.json_loads(result.stdout).values()
    assert [row["source"] for row in rows] == ["bad", "fair", "good"] and "label" not in rows[0]
    picture = tmp_path / "sources.svg"
    result = CliRunner().invoke(latent_cli, ["sources", str(tmp_path), "--picture", str(picture)])
    assert result.exit_code == 0
    drawn = picture.read_text(encoding="utf8")
    assert all(f"{name}, A" in drawn for name in rights) and drawn.count("<rect") >= 6
    result = CliRunner().invoke(latent_cli, ["sources", str(tmp_path), "--picture", "x.png"])
    assert result.exit_code == 1
    crf.add_label("B")
    assert [one.label for one in crf.source_reliability()] == ["A", "B"] * 3
    crf.cfg["evidence"] = {"sources": ["good"]}
    with pytest.raises(LatentError, match="3 sources"):
        crf.source_reliability()


def test_counts_of_sources_wait_for_the_end_of_an_update() -> None:
    nlp = made(sources=["x"])
    one = example(nlp, default="missing")
    one.reference.spans["x"] = [Span(one.reference, 0, 1, label="A")]
    crf: Any = nlp.get_pipe("crf_ner")

    def tokens() -> float:
        return sum(found.tokens for found in crf.source_reliability())

    optimizer = nlp.resume_training()
    for _ in range(2):
        crf.update([one])
    assert tokens() == 0
    crf.finish_update(optimizer)
    assert tokens() == pytest.approx(2)
    crf.finish_update(optimizer)
    assert tokens() == pytest.approx(2)
    # A second initialization resets the counts.
    nlp.initialize(lambda: [one])
    assert tokens() == 0


def test_sources_go_with_all_other_evidence() -> None:
    nlp = made(sources=["x", "y"], negative_share=0.5, flags={"has_a": "A"})
    one = example(nlp, [(0, 1, "A")], default="missing", labels=["A"], flags={"B": 1})
    one.reference.spans["x"] = [Span(one.reference, 0, 2, label="A")]
    # Add overlapping spans, an unknown label and an empty group.
    one.reference.spans["x"] += [Span(one.reference, 1, 2, label="B")]
    one.reference.spans["x"] += [Span(one.reference, 2, 3, label="C")]
    one.reference.spans["y"] = []
    two = example(nlp, default="missing", cats={"has_a": 1.0})
    optimizer = nlp.resume_training()
    for _ in range(3):
        losses = nlp.update([one, two, example(nlp)], sgd=optimizer)
        assert np.isfinite(losses["crf_ner"])
    crf: Any = nlp.get_pipe("crf_ner")
    assert {one.tokens for one in crf.source_reliability() if one.source == "y"} == {0.0}


def test_texts_of_other_pipelines_may_have_labels_that_this_one_does_not_know() -> None:
    nlp = made(sources=["x"])
    crf: Any = nlp.get_pipe("crf_ner")
    crf.cfg["incorrect_spans_key"] = "wrong"
    one, same = (example(spacy.blank("en"), default="missing") for _ in range(2))
    for each in (one, same):
        each.reference.spans["x"] = [Span(each.reference, 0, 1, label="A")]
        each.reference.spans["wrong"] = [Span(each.reference, 1, 2, label="B")]
    for key, label in (("x", "ELSEWHERE"), ("wrong", "ELSEWHERE TOO")):
        one.reference.spans[key] += [Span(one.reference, 2, 3, label=label)]
    losses = [
        loss_together(nlp, [Example(Doc(nlp.vocab, words=WORDS), each.reference)])
        for each in (one, same)
    ]
    assert losses[0] == losses[1] > 0


def test_a_source_that_says_nothing_of_a_text_changes_nothing() -> None:
    nlp, plain = made(sources=["x"]), made()
    one = example(nlp, [(0, 1, "A")], default="missing")
    assert agreeing(nlp, one) == pytest.approx(agreeing(plain, one))
    one.reference.spans["x"] = []
    assert agreeing(nlp, one) < agreeing(plain, one)


@pytest.mark.parametrize(
    ("default", "source", "share"),
    [("outside", None, 1 / 5), ("missing", None, 1 / 2), ("missing", "s", 1 / 2)],
)
def test_tokens_begin_outside_if_annotation_is_missing_or_of_sources(
    default: str, source: str | None, share: float
) -> None:
    one = pipeline(evidence={"sources": [source]} if source else None)
    given = example(one, [(0, 1, "A")], default=default)
    if source:
        given.reference.spans[source] = [Span(given.reference, 0, 1, label="A")]
    with warnings.catch_warnings():
        # Some cases annotate no token as outside, which gives this warning.
        warnings.simplefilter("ignore", DoubtfulEvidence)
        one.initialize(lambda: [given])
    crf: Any = one.get_pipe("crf_ner")
    scores = np.exp(crf.model.predict([given.predicted]).emissions)
    np.testing.assert_allclose(scores[:, 0] / scores.sum(1), share, rtol=1e-5)


@pytest.mark.parametrize("name", ["crf_ner", "tree_spancat"])
def test_an_augmenter_that_drops_the_labels_of_texts_is_told(name: str, tmp_path: Path) -> None:
    """A text that the augmenter changed would count as annotated for all labels."""
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    doc = nlp.make_doc("one two")
    doc.set_ents([Span(doc, 0, 1, label="A")])
    doc.spans["sc"] = list(doc.ents)
    DocBin(docs=[doc], store_user_data=True).to_disk(tmp_path / "whole.spacy")
    doc._.annotated_labels = ["A"]
    DocBin(docs=[doc], store_user_data=True).to_disk(tmp_path / "some.spacy")
    augmenter = {"@augmenters": "spacy.lower_case.v1", "level": 0.0}
    for file, given, told in (
        ("some", augmenter, True),
        ("some", None, False),
        ("whole", augmenter, False),
    ):
        nlp.config["corpora"]["train"]["augmenter"] = given
        corpus = Corpus(tmp_path / f"{file}.spacy")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            nlp.initialize(lambda corpus=corpus: corpus(nlp))
        said = [str(one.message) for one in found if issubclass(one.category, DoubtfulEvidence)]
        assert any("augmenter" in one for one in said) == told
        codes = {one.code for one in find_traps(nlp, list(corpus(nlp)))}
        assert ("augmented-evidence" in codes) == told


@pytest.mark.parametrize(
    "category", ["has.a", "Has A", "has-a", "é", "${a}", "a#b", "a;b", "rem a"]
)
def test_categories_of_flags_come_back_from_disk(category: str, tmp_path: Path) -> None:
    nlp = pipeline(evidence={"flags": {category: "A"}})
    nlp.initialize(lambda: [example(nlp, [(0, 1, "A")], cats={category: 1.0})])
    nlp.to_disk(tmp_path)
    crf: Any = spacy.load(tmp_path).get_pipe("crf_ner")
    assert crf.cfg["evidence"] == {"flags": {category: "A"}}


def test_a_source_that_no_text_has_is_told() -> None:
    nlp = pipeline(evidence={"sources": ["annotator"]})
    with pytest.warns(DoubtfulEvidence, match="'annotator'"):
        nlp.initialize(lambda: [example(nlp, [(0, 1, "A")])])


def annotated_by(default: str = "missing", **sources: str) -> tuple[Language, Example]:
    """Return a pipeline with sources, and a text whose first token each gives its own label."""
    nlp = pipeline(evidence={"sources": list(sources)})
    one = example(nlp, default=default)
    for source, label in sources.items():
        one.reference.spans[source] = [Span(one.reference, 0, 1, label=label)]
    return nlp, one


@pytest.mark.parametrize(
    ("default", "sources", "labels", "message"),
    [
        # Every entity of the sources contradicts the annotation.
        ("outside", {"x": "A", "y": "A"}, None, "outside"),
        ("missing", {"x": "CHEM", "y": "Chemical"}, None, "CHEM"),
        ("missing", {"x": "A", "y": "B"}, ["A"], "'B'"),
        ("missing", {"x": "A", "y": "A"}, None, None),
        # Sources may be for different labels.
        ("missing", {"x": "A", "y": "B"}, None, None),
        ("missing", {"x": "CARDINAL", "y": "ORDINAL"}, None, None),
        ("missing", {"x": "drug", "y": "drug_dose"}, None, None),
        ("missing", {"x": "Disease", "y": "DiseaseClass"}, None, None),
        ("missing", {"x": "TYPE_1", "y": "TYPE_2"}, None, None),
        ("missing", {"x": "PER", "y": "PERSON"}, None, "PERSON"),
        ("missing", {"x": "drug", "y": "DRUGS"}, None, "DRUGS"),
    ],
)
def test_doubtful_sources_are_told(
    default: str, sources: dict[str, str], labels: list[str] | None, message: str | None
) -> None:
    nlp, one = annotated_by(default, **sources)
    nlp.config["initialize"]["components"] = {"crf_ner": {"labels": labels}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DoubtfulEvidence)
        nlp.initialize(lambda: [one])
    said = [str(each.message) for each in caught if each.category is DoubtfulEvidence]
    assert len(said) == (message is not None) and all(message in text for text in said)


def test_each_label_that_only_sources_have_is_told_once() -> None:
    nlp, one = annotated_by(x="A", y="B")
    nlp.config["initialize"]["components"] = {"crf_ner": {"labels": ["A"]}}
    with pytest.warns(DoubtfulEvidence, match="'B'"):
        nlp.initialize(lambda: [one])
    for label, times in (("B", 0), ("C", 1), ("D", 1)):
        one.reference.spans["y"] = [Span(one.reference, 0, 1, label=label)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LatentWarning)
            for _ in range(2):
                nlp.update([one], sgd=nlp.resume_training())
        assert sum(repr(label) in str(each.message) for each in caught) == times


def test_texts_that_are_annotated_for_no_label_are_told_like_missing_tokens() -> None:
    nlp = pipeline()
    with pytest.warns(DoubtfulEvidence, match="empty list"):
        nlp.initialize(lambda: [example(nlp, [(0, 1, "A")], labels=[])])


def test_a_span_of_a_source_that_does_not_fit_the_tokens_says_nothing_of_them() -> None:
    nlp = made(sources=["x"])
    one = example(nlp, default="missing", words=["a", "bc"])
    reference = Doc(nlp.vocab, words=["a", "b", "c"], spaces=[True, False, False])
    reference.set_ents([], default="missing")
    reference.spans["x"] = [Span(reference, 0, 1, label="A"), Span(reference, 1, 2, label="A")]
    misaligned = Example(one.predicted, reference)
    crf: Any = nlp.get_pipe("crf_ner")
    with pytest.warns(LatentWarning, match="'b'"):
        (written,) = crf._evidence_reader().written(misaligned)
    assert written.classes.tolist() == [1, -1]
    optimizer = nlp.resume_training()
    nlp.update([misaligned], sgd=optimizer)
    assert sum(found.expected_tokens for found in crf.source_reliability()) < 1.0 + 1e-6


def test_learned_reliability_belongs_to_the_names_of_sources() -> None:
    nlp, one = annotated_by(x="A", y="A")
    optimizer = nlp.initialize(lambda: [one])
    nlp.update([one], sgd=optimizer)
    crf: Any = nlp.get_pipe("crf_ner")
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert again.get_pipe("crf_ner").source_reliability() == crf.source_reliability()  # type: ignore[attr-defined]
    for names in (["y", "x"], ["x", "z"]):
        crf.cfg["evidence"] = {"sources": names}
        with pytest.raises(LatentError, match="x, y"):
            crf.source_reliability()


def test_counts_of_another_process_come_with_the_names_of_sources() -> None:
    nlp, one = annotated_by(x="A", y="A")
    optimizer = nlp.initialize(lambda: [one])
    crf: Any = nlp.get_pipe("crf_ner")
    nlp.update([example(nlp)])
    # Other processes had texts with sources. Their counts arrive as gradients.
    table = crf.model.get_ref("transitions")
    for name in ("source_labels", "source_places"):
        table.inc_grad(name, np.ones(table.get_param(name).shape, dtype="float32"))
    crf.finish_update(optimizer)
    assert all(found.tokens > 0 for found in crf.source_reliability())
    crf.cfg["evidence"] = {"sources": ["x", "y", "z"]}
    with pytest.raises(LatentError, match="x, y"):
        nlp.update([one])


def test_a_rejected_span_of_many_tokens_is_left_out() -> None:
    nlp = pipeline(incorrect_spans_key="wrong")
    one = example(nlp, [(0, 1, "A")], default="missing", words=["a"] * 300)
    one.reference.spans["wrong"] = [Span(one.reference, 1, 299, label="A")]
    nlp.initialize(lambda: [example(nlp, [(0, 1, "A")]), one])
    crf: Any = nlp.get_pipe("crf_ner")
    with pytest.warns(LatentWarning, match="298"):
        loss_together(nlp, [one])
    assert crf._gold_reader().incorrect_runs(one) == []
    one.reference.spans["wrong"] = [Span(one.reference, 1, 101, label="A")]
    assert len(crf._gold_reader().incorrect_runs(one)) == 1


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ({"flag": {}}, "'flag'.*flags"),
        ({"flags": ["a"]}, "category"),
        ({"flags": {"a": "A", "b": "A"}}, "once"),
        ({"flags": {"has:a": "A"}}, "'has:a'"),
        ({"flags": {"#a": "A"}}, "'#a'"),
        ({"flag_error": 0.5}, r"0\.5"),
        ({"flag_error": -0.1}, "flag_error"),
        ({"negative_share": 1.5}, "negative_share"),
        ({"sources": "x"}, "names"),
        ({"sources": ["x", "x"]}, "once"),
    ],
)
def test_impossible_settings_are_refused(evidence: dict[str, Any], message: str) -> None:
    with pytest.raises(LatentError, match=message):
        pipeline(evidence=evidence)


def test_only_the_crf_takes_counts() -> None:
    pipeline(loss="quadratic", evidence={"negative_share": 0.1})
    with pytest.raises(LatentError, match="'crf'"):
        pipeline(loss="quadratic", evidence={"flag_error": 0.1})
    nlp = pipeline(loss="quadratic")
    nlp.initialize(lambda: [example(nlp, [(0, 1, "A")])])
    absent = example(nlp, default="missing", flags={"A": 0})
    assert np.isfinite(loss_together(nlp, [absent]))
    with pytest.raises(LatentError, match=r"text 2.*'a b c.*entity_flags.*'quadratic'"):
        loss_together(nlp, [absent, example(nlp, default="missing", flags={"A": 1})])


def test_a_group_is_either_wrong_or_of_a_source() -> None:
    with pytest.raises(LatentError, match=r"evidence\.sources.*'x'"):
        pipeline(incorrect_spans_key="x", evidence={"sources": ["x"]})


def test_settings_come_back_from_disk(tmp_path: Any) -> None:
    nlp = made(flags={"has_a": "A"}, flag_error=0.1)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert again.get_pipe("crf_ner").cfg["evidence"] == {  # type: ignore[attr-defined]
        "flags": {"has_a": "A"},
        "flag_error": 0.1,
    }
