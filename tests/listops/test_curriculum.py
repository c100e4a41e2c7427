"""The curriculum of ListOps reads expressions in the right order, and refuses invalid settings."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice

import pytest
import spacy
from spacy.util import registry

from spacy_latent import listops
from spacy_latent.errors import LatentError
from spacy_latent.listops.curriculum import read_listops_v1

SIZE = 300


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("listops") / "train.tsv"
    (expressions,) = listops.generate([SIZE], expansion=0.4, max_depth=6, min_length=4)
    listops.write(path, expressions)
    return path


@pytest.fixture(scope="module")
def known(path):
    return {" ".join(tokens): listops.depth(tokens) for _, tokens in listops.read(path)}


def texts(examples):
    return [example.reference.text.strip() for example in examples]


def streaming(**training):
    nlp = spacy.blank("xx")
    nlp.config["training"] = {"max_epochs": -1, "max_steps": 100, "patience": 0, **training}
    return nlp


def curriculum(path, count, **options):
    return texts(islice(read_listops_v1(path, **options)(streaming()), count))


def test_it_is_registered_under_its_name():
    assert registry.get("readers", "spacy-latent.ListOps.v1") is read_listops_v1


def test_without_a_curriculum_it_reads_the_file_once_in_order(path):
    nlp = spacy.blank("xx")
    whole = texts(read_listops_v1(path)(nlp))
    assert whole == [" ".join(tokens) for _, tokens in listops.read(path)]
    assert texts(read_listops_v1(path, limit=7)(nlp)) == whole[:7]


def test_flat_lists_come_first_and_again(path, known):
    flat = {text for text, depth in known.items() if depth == 1}
    count = 8 * len(flat)
    found = curriculum(path, count + SIZE, flat=count)
    assert set(found[:count]) == flat and not set(found[count:]) <= flat
    # All lengths are equally frequent, and so are all expressions of a length.
    lengths = Counter(len(text.split()) for text in found[:count])
    assert max(lengths.values()) - min(lengths.values()) <= 1 < len(lengths)
    assert len({len(text.split()) for text in found[: len(lengths)]}) == len(lengths)
    for length in lengths:
        times = Counter(text for text in found[:count] if len(text.split()) == length)
        assert max(times.values()) - min(times.values()) <= 1


def test_depth_grows_to_that_of_the_file_and_all_of_it_follows(path, known):
    deepest = max(known.values())
    found = curriculum(path, 500 + 2 * SIZE, flat=100, growth=400)
    assert set(found) == set(known)
    depths = [known[text] for text in found]
    assert set(depths[:100]) == {1} and deepest > 3
    nested = sorted(depth for depth in known.values() if depth > 1)
    for given, depth in enumerate(depths[100:500]):
        assert depth <= nested[len(nested) * given // 400]
    for depth in range(1, deepest):
        assert depth in depths[100:500]
    # All expressions are read in repeated passes.
    assert Counter(found[500:]).total() == 2 * SIZE
    assert set(Counter(found[500:]).values()) <= {1, 2, 3} and set(found[500:]) == set(known)


def test_the_order_is_told_by_the_seed(path):
    for options in ({"growth": 50}, {"flat": 50}):
        first = curriculum(path, 200, **options)
        assert first == curriculum(path, 200, **options) != curriculum(path, 200, **options, seed=1)
    # nlp.initialize() calls the reader as well, which must not change what training reads.
    reader, nlp = read_listops_v1(path, flat=5), streaming()
    assert texts(islice(reader(nlp), 9)) == texts(islice(reader(nlp), 9))


def test_what_was_read_once_is_read_again_where_the_file_has_changed(path, tmp_path):
    copy = tmp_path / "train.tsv"
    copy.write_bytes(path.read_bytes())
    reader = read_listops_v1(copy, flat=10, growth=10, seed=1)
    first, again = (texts(islice(reader(streaming()), 400)) for _ in range(2))
    assert first == again == curriculum(path, 400, flat=10, growth=10, seed=1)
    listops.write(copy, [["[MAX", "2", "9", "]"]])
    os.utime(copy, ns=(0, 0))
    assert {*texts(islice(reader(streaming()), 5))} == {"[MAX 2 9 ]"}


def test_values_heads_and_brackets_are_those_of_the_expression(path):
    reader = read_listops_v1(path, heads=True, brackets="parser", flat=3)
    for example in islice(reader(streaming()), 30):
        tokens = [token.text for token in example.reference]
        assert example.reference.cats[str(listops.evaluate(tokens))] == 1.0
        assert [token.head.i for token in example.reference] == listops.gold_heads(tokens)
        spans = example.reference._.latent["parser"].brackets()
        assert {(b.start, b.end) for b in spans if b.end - b.start > 1} == set(
            listops.gold_brackets(tokens)
        )
        assert not example.predicted.has_annotation("HEAD") and not example.predicted._.latent


def test_a_limit_is_of_the_file(path, known):
    assert set(curriculum(path, 200, growth=1, limit=20)) == set(list(known)[:20])


def test_training_that_would_not_begin_or_not_end_is_refused(path):
    reader = read_listops_v1(path, flat=1)
    for epochs in (0, 3):
        with pytest.raises(LatentError, match="max_epochs"):
            next(iter(reader(streaming(max_epochs=epochs))))
    with pytest.raises(LatentError, match=r"max_steps.*patience"):
        next(iter(reader(streaming(max_steps=0))))
    assert next(iter(reader(streaming(max_steps=0, patience=5))))


def test_wrong_values_name_what_is_expected(path, tmp_path):
    for options in ({"flat": -1}, {"growth": -2}, {"limit": -3}):
        with pytest.raises(LatentError, match="numbers"):
            read_listops_v1(path, **options)
    with pytest.raises(LatentError, match="spacy latent generate"):
        list(read_listops_v1(tmp_path / "none.tsv", flat=1)(streaming()))
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    with pytest.raises(LatentError, match="expressions"):
        next(iter(read_listops_v1(empty, growth=1)(streaming())))


def test_a_file_without_flat_lists_begins_with_its_least_depth(tmp_path):
    path = tmp_path / "deep.tsv"
    (expressions,) = listops.generate([60], expansion=0.4, max_depth=6, min_length=10)
    listops.write(path, expressions)
    depths = [listops.depth(text.split()) for text in curriculum(path, 200, flat=20, growth=80)]
    assert set(depths[:20]) == {min(depths)} == {2}
    assert max(depths[20:25]) < max(depths) == max(map(listops.depth, expressions))
