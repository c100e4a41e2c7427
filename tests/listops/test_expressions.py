"""Generated expressions and their values agree with the definition of ListOps, and can be read."""

from collections import Counter

import pytest
import spacy
from thinc.api import Config

from spacy_latent import listops
from spacy_latent.errors import LatentError
from spacy_latent.listops.curriculum import read_listops_v1
from tests.repository.recipes import RECIPES, recipe


def slow_value(tokens):
    """Evaluate by rewriting innermost lists, which is independent of the generator's stack."""
    tokens = list(tokens)
    while len(tokens) > 1:
        end = tokens.index("]")
        start = max(i for i in range(end) if tokens[i].startswith("["))
        values = sorted(int(t) for t in tokens[start + 1 : end])
        middle = len(values) // 2
        low = values[middle - 1 + len(values) % 2]
        value = {
            "[MIN": values[0],
            "[MAX": values[-1],
            "[MED": (low + values[middle]) // 2,
            "[SM": sum(values) % 10,
        }[tokens[start]]
        tokens[start : end + 1] = [str(value)]
    return int(tokens[0])


def sample(size=400, **options):
    return listops.generate([size], seed=1, max_length=200, **options)[0]


def test_values_agree_with_rewriting():
    for tokens in sample():
        assert listops.evaluate(tokens) == slow_value(tokens)


def test_shape_follows_the_definition():
    expressions = sample(2000, min_length=4)
    operators = Counter(t for e in expressions for t in e if t.startswith("["))
    assert set(operators) == {"[MIN", "[MAX", "[MED", "[SM"}
    expected = sum(operators.values()) / 4
    assert all(abs(count - expected) < 0.1 * expected for count in operators.values())
    for tokens in expressions:
        heads = listops.gold_heads(tokens)
        arguments = Counter(h for i, h in enumerate(heads) if h != i and tokens[i] != "]")
        assert all(2 <= count <= 5 for count in arguments.values())
        assert heads[0] == 0


def test_options_bound_what_is_made():
    for tokens in sample(operators=("MIN", "MED"), max_depth=3, max_arguments=3, min_length=5):
        assert 5 <= len(tokens) <= 200 and "[MAX" not in tokens and "[SM" not in tokens
        depth = deepest = 0
        for token in tokens:
            depth += token.startswith("[") - (token == "]")
            deepest = max(deepest, depth)
        assert deepest <= 2
    with pytest.raises(LatentError, match="PM"):
        listops.generate([1], operators=("PM",))
    with pytest.raises(LatentError, match="max_length 3"):
        listops.generate([1], min_length=5, max_length=3)


def test_depth_is_levels_of_lists():
    assert listops.depth(["7"]) == listops.depth([]) == 0
    assert listops.depth("[MAX 2 9 ]".split()) == 1
    assert listops.depth("[MAX [MIN 1 2 ] [MIN 1 [SM 2 3 ] ] ]".split()) == 3


def test_the_least_depth_and_what_is_left_out():
    made = sample(60, min_depth=3, max_depth=4)
    assert {listops.depth(tokens) for tokens in made} == {3}
    known = {" ".join(tokens) for tokens in made[:30]}
    again = sample(60, min_depth=3, max_depth=4, without=known)
    assert not known & {" ".join(tokens) for tokens in again}
    with pytest.raises(LatentError, match=r"min_depth 3.*max_depth 3"):
        listops.generate([1], min_depth=3, max_depth=3)


def test_depths_in_equal_shares():
    options = {"min_length": 10, "max_length": 30, "seed": 3}
    splits = listops.generate_depths([60, 30], [1, 2, 4], ["MIN", "MAX"], **options)
    for split, share in zip(splits, (20, 10)):
        found = [listops.depth(tokens) for tokens in split]
        assert Counter(found) == {1: share, 2: share, 4: share}
        # The depths are shuffled, so that a batch has all of them.
        assert found != sorted(found)
    texts = [" ".join(tokens) for split in splits for tokens in split]
    assert len(set(texts)) == 90
    # The least length does not hold for flat lists, which cannot have ten tokens.
    lengths = {listops.depth(text.split()) > 1: set() for text in texts}
    for text in texts:
        lengths[listops.depth(text.split()) > 1].add(len(text.split()))
    assert max(lengths[False]) <= 7 and min(lengths[True]) >= 10 and max(lengths[True]) <= 30
    assert splits == listops.generate_depths([60, 30], [1, 2, 4], ["MIN", "MAX"], **options)
    with pytest.raises(LatentError, match=r"\[10\].*3"):
        listops.generate_depths([10], [1, 2, 3])
    for depths in ([], [2, 2], [0, 1]):
        with pytest.raises(LatentError, match="numbers"):
            listops.generate_depths([4], depths)


def test_splits_are_disjoint_and_seeded():
    splits = listops.generate([50, 20, 20], min_length=5, max_length=40, seed=7)
    assert [len(split) for split in splits] == [50, 20, 20]
    texts = [" ".join(tokens) for split in splits for tokens in split]
    assert len(set(texts)) == 90
    assert splits == listops.generate([50, 20, 20], min_length=5, max_length=40, seed=7)
    assert splits != listops.generate([50, 20, 20], min_length=5, max_length=40, seed=8)


def test_asking_for_more_than_there_are_is_an_error(monkeypatch):
    with pytest.raises(LatentError, match="expressions"):
        listops.generate([11], max_depth=1)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"max_depth": 0}, "max_depth 0"),
        ({"max_arguments": 1}, "max_arguments 1"),
        ({"expansion": 1.5}, "expansion 1.5"),
        ({"expansion": -0.1}, "expansion -0.1"),
        ({"expansion": 0.9, "max_length": 50}, "10000"),
    ],
)
def test_shapes_that_cannot_be_drawn_are_errors(options, said):
    with pytest.raises(LatentError, match=said):
        listops.generate([5], **options)


@pytest.mark.parametrize(
    "line",
    ["12\t[MAX 2 9 ]", "9\t[MAX 2 9", "9\t2 ] 3", "9\t[FOO 2 9 ]", "9\t[MAX ]", "2\t2 9", "9\t²"],
)
def test_a_line_that_is_no_expression_is_an_error(tmp_path, line):
    path = tmp_path / "bad.tsv"
    path.write_text(f"9\t[MAX 2 9 ]\n{line}\n", encoding="utf8")
    with pytest.raises(LatentError, match="line 2"):
        list(listops.read(path))


def test_gold_tree_by_our_convention():
    tokens = "[MAX 2 [MIN 4 7 ] 3 ]".split()
    assert listops.gold_heads(tokens) == [0, 0, 0, 2, 2, 2, 0, 0]


def test_reader_keeps_the_gold_tree_from_training(tmp_path):
    path = tmp_path / "train.tsv"
    listops.write(path, sample(20, min_length=5))
    nlp = spacy.blank("xx")
    for example in read_listops_v1(path)(nlp):
        assert not example.reference.has_annotation("HEAD")
        assert not example.predicted.has_annotation("HEAD") and not example.predicted.cats
        assert sum(example.reference.cats.values()) == 1.0 and len(example.reference.cats) == 10
    with_heads = list(read_listops_v1(path, heads=True, limit=5)(nlp))
    assert len(with_heads) == 5
    for example in with_heads:
        words = [token.text for token in example.reference]
        assert [token.head.i for token in example.reference] == listops.gold_heads(words)
        assert not example.predicted.has_annotation("HEAD")


def test_gold_brackets_are_those_of_the_published_files():
    """Each pair of parentheses in the published files encloses two constituents."""
    published = "( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )".split()
    tokens = [word for word in published if word not in "()"]
    expected, opened, seen = [], [], 0
    for word in published:
        if word == "(":
            opened.append(seen)
        elif word == ")":
            expected.append((opened.pop(), seen))
        else:
            seen += 1
    assert sorted(listops.gold_brackets(tokens)) == sorted(expected)
    assert listops.gold_brackets(["7"]) == []


@pytest.mark.parametrize(
    "name", [path.stem for path in RECIPES if path.stem.partition("_")[0] in ("demo", "listops")]
)
def test_shipped_configs_train_and_select_without_gold_trees(name):
    config = Config().from_disk(recipe(name))
    # Only this recipe reads gold heads, because its reward is the number of correct heads.
    assert config["corpora"]["train"]["heads"] is (name == "demo_gold_reward")
    # Only SPINN reads gold brackets: its transitions are supervised.
    assert bool(config["corpora"]["train"].get("brackets")) == (name == "listops_spinn")
    weights = config["training"]["score_weights"]
    assert not any(weight for score, weight in weights.items() if score.startswith("latent_"))


def test_gold_trees_of_a_parser_are_given_to_the_reference(tmp_path):
    path = tmp_path / "one.tsv"
    path.write_text("9\t[MAX 2 9 ]\n7\t7\n")
    reader = read_listops_v1(path, brackets="parser")
    nested, single = reader(spacy.blank("xx"))
    found = nested.reference._.latent["parser"].brackets()
    assert [(b.start, b.end) for b in found if b.end - b.start > 1] == [(0, 2), (0, 3), (0, 4)]
    assert len(single.reference._.latent["parser"].brackets()) == 1
    assert not nested.predicted._.latent


def test_published_format_is_read(tmp_path):
    path = tmp_path / "published.tsv"
    path.write_text("9\t( ( ( [MAX 2 ) 9 ) ] )\n")
    assert list(listops.read(path)) == [("9", ["[MAX", "2", "9", "]"])]
    path.write_text("9\t[MAX 2 9 ]\nno label\n")
    with pytest.raises(LatentError, match="line 2"):
        list(listops.read(path))


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(LatentError, match="spacy latent generate"):
        list(read_listops_v1(tmp_path / "none.tsv")(spacy.blank("xx")))
