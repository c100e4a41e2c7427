"""Docs of two texts, their reader, and corpora of pairs."""

from __future__ import annotations

import gzip
import json
import warnings

import pytest
import spacy
from spacy.lang.en import English
from spacy.tokens import DocBin

from spacy_latent.corpora import edinburgh_alignment, snli
from spacy_latent.corpora.sources import DATA_VARIABLE
from spacy_latent.corpora.text_pairs import make_pair_doc, read_text_pairs_v1
from spacy_latent.errors import LatentError, LatentWarning
from tests.conftest import CONTRACTIONS
from tests.corpora.test_sources import DATA

nlp = spacy.blank("en")


def texts(doc):
    return [[span.text for span in doc.spans[key]] for key in ("a", "b")]


def test_each_text_is_tokenised_on_its_own(monkeypatch):
    monkeypatch.setattr(English.Defaults, "tokenizer_exceptions", CONTRACTIONS)
    nlp = spacy.blank("en")
    doc = make_pair_doc(nlp, "It isn't so", "(never)!")
    assert texts(doc) == [["It isn't so"], ["(never)!"]]
    assert [token.norm_ for token in doc[2:4]] == ["not", "so"]
    assert [token.text for token in doc.spans["b"][0]] == ["(", "never", ")", "!"]
    words = make_pair_doc(nlp, ["don't", "."], "he ran")
    assert [token.text for token in words] == ["don't", ".", "he", "ran"]


@pytest.mark.parametrize("first, second", [("a b", ""), ("", "a b"), ("", ""), ([], ["a"])])
def test_an_empty_text_has_an_empty_span_group(first, second):
    doc = make_pair_doc(nlp, first, second)
    assert [bool(group) for group in texts(doc)] == [bool(first), bool(second)]
    (copy,) = DocBin(docs=[doc]).get_docs(nlp.vocab)
    assert texts(copy) == texts(doc)


def test_the_second_text_begins_a_sentence(tmp_path):
    docs = [make_pair_doc(nlp, "a dog", "it ran"), make_pair_doc(nlp, "", "it ran")]
    DocBin(docs=docs).to_disk(tmp_path / "pairs.spacy")
    pair, single = read(tmp_path / "pairs.spacy")
    for doc in (docs[0], pair.predicted, pair.reference):
        assert [sentence.text for sentence in doc.sents] == ["a dog", "it ran"]
    # A doc of a single text has no sentence starts.
    assert not any(doc.has_annotation("SENT_START") for doc in (docs[1], single.predicted))


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: b"", gzip.compress])
def test_a_damaged_file_of_docs_is_named(damage, tmp_path):
    path = tmp_path / "pairs.spacy"
    path.write_bytes(damage(DocBin(docs=[make_pair_doc(nlp, "a dog", "it ran")]).to_bytes()))
    with pytest.raises(LatentError, match=r"pairs\.spacy"):
        read(path)


def read(path, **options):
    return list(read_text_pairs_v1(path, **options)(nlp))


def test_json_lines(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"text_a": "A dog.", "text_b": "Dogs", "label": "yes"},
        {"text_a": ["A", "dog."], "text_b": "", "label": "no"},
        {"text_a": "a", "text_b": "b", "cats": {"how": 0.25}},
        {"text_a": "a", "text_b": "b"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf8")
    with pytest.warns(LatentWarning, match="1 of 4 pairs"):
        examples = read(path)
    assert [example.reference.cats for example in examples] == [
        {"no": 0.0, "yes": 1.0},
        {"no": 1.0, "yes": 0.0},
        {"how": 0.25},
        {},
    ]
    for example in examples:
        assert texts(example.predicted) == texts(example.reference)
        assert not example.predicted.cats
        assert [t.text for t in example.predicted] == [t.text for t in example.reference]
    with pytest.warns(LatentWarning):
        assert len(read(path, limit=2)) == 2 and len(read(path, limit=-1)) == len(read(path))


def test_tables_with_quotation_marks_and_other_names(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('gold\tpremise\tclaim\nx\t"So\the "said"\ny\tb\t\n', encoding="utf8")
    names = {"first": "premise", "second": "claim", "label": "gold"}
    one, other = read(path, **names)
    assert texts(one.predicted) == [['"So'], ['he "said"']]
    assert one.reference.cats == {"x": 1.0, "y": 0.0}
    assert texts(other.predicted) == [["b"], []]
    with pytest.raises(LatentError, match=r"line 2.*'text_a'.*'premise'"):
        read(path)


@pytest.mark.parametrize("row", ["a\tb", "a\tb\tx\ty", "a"])
def test_a_row_with_other_columns_than_the_header_is_refused(tmp_path, row):
    """A missing tab would drop the label, and an additional tab would shift it."""
    path = tmp_path / "pairs.tsv"
    path.write_text(f"text_a\ttext_b\tlabel\na\tb\tx\n\n{row}\n", encoding="utf8")
    columns = row.count("\t") + 1
    with pytest.raises(LatentError, match=rf"line 4.*{columns}.*3"):
        read(path)


def test_files_as_other_programs_write_them(tmp_path):
    """Files may have a byte order mark, Windows line ends, empty lines and very long texts."""
    long = "a " * 100_000
    path = tmp_path / "pairs.tsv"
    text = f"\ufeff\r\ntext_a\ttext_b\tlabel\r\n\r\na\t{long}\tx\r\n \r\n"
    path.write_bytes(text.encode("utf8"))
    (example,) = read(path)
    assert example.reference.cats == {"x": 1.0} and len(example.predicted) == 100_001
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text_a": "a", "text_b": "b"}\r\n')
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.tsv", "text_a\ttext_b\n\u00e4\tb\n".encode("latin1"), "UTF-8"),
        ("a.tsv", b"text_a\ttext_b\ttext_b\na\tb\tc\n", "'text_b'"),
        ("a.jsonl", b'{"text_a": "", "text_b": "", "cats": {"x": null}}', "line 1.*'cats'.*'x'"),
        ("a.jsonl", b'{"text_a": "", "text_b": "", "cats": ["x"]}', "line 1.*'cats'"),
        ("a.jsonl", b'{"text_a": "a", "text_b": ["b", "", "c"]}', "line 1.*'text_b'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LatentError, match=said):
        read(tmp_path / name)


@pytest.mark.parametrize("label", [["yes", "no"], [], {"yes": 1.0}, 3.5, float("nan")])
def test_a_label_that_is_no_single_one_is_refused(tmp_path, label):
    """A list, a score or a mapping as a label would become an unintended category."""
    path = tmp_path / "pairs.jsonl"
    row = {"text_a": "a", "text_b": "b", "label": label}
    path.write_text(json.dumps(row), encoding="utf8")
    with pytest.raises(LatentError, match=r"line 1.*'label'.*cats"):
        read(path)
    path.write_text(json.dumps({**row, "cats": {"yes": 1.0}}), encoding="utf8")
    assert read(path)[0].reference.cats == {"yes": 1.0}


def test_whole_numbers_are_one_category_however_they_are_written(tmp_path):
    path = tmp_path / "pairs.jsonl"
    lines = [
        json.dumps({"text_a": "a", "text_b": "b", "label": label}) for label in (1, 1.0, "1", 2)
    ]
    path.write_text("\n".join(lines), encoding="utf8")
    cats = [example.reference.cats for example in read(path)]
    assert cats == [{"1": 1.0, "2": 0.0}] * 3 + [{"1": 0.0, "2": 1.0}]


def test_scores_in_a_table_are_warned_of(tmp_path):
    """Each number would silently become a category."""
    path = tmp_path / "pairs.csv"
    path.write_text("text_a,text_b,label\na,b,3\na,b,4.5\n", encoding="utf8")
    with pytest.warns(LatentWarning, match=r"4\.5 in line 3.*cats"):
        assert read(path)[0].reference.cats == {"3": 1.0, "4.5": 0.0}
    for labels in ("1.0", "v1.5", "1.5.2"):
        path.write_text(f"text_a,text_b,label\na,b,3\na,b,{labels}\n", encoding="utf8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(path)


def test_pairs_without_a_label_among_others_are_warned_of(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("text_a\ttext_b\tlabel\na\tb\tx\na\tb\t\na\tb\t\n", encoding="utf8")
    with pytest.warns(LatentWarning, match=r"2 of 3.*'label'.*line 3"):
        examples = read(path)
    assert [example.reference.cats for example in examples] == [{"x": 1.0}, {}, {}]
    path.write_text("text_a\ttext_b\na\tb\n", encoding="utf8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not read(path)[0].reference.cats


def test_a_table_with_commas_is_read_as_spreadsheets_write_it(tmp_path):
    path = tmp_path / "pairs.csv"
    written = (
        'ticket,article,verdict\r\n"No, it ""broke""",Repairs,yes\r\n'
        '"two\r\nlines",Returns,no\r\n,,\r\n\r\nLate,"Post, parcels",yes\r\n'
    )
    path.write_bytes(written.encode("utf-8-sig"))
    examples = read(path, first="ticket", second="article", label="verdict")
    found = [example.reference for example in examples]
    texts = [(doc.spans["a"][0].text, doc.spans["b"][0].text) for doc in found]
    assert texts[0] == ('No, it "broke"', "Repairs")
    assert texts[2] == ("Late", "Post, parcels")
    assert [max(doc.cats, key=doc.cats.__getitem__) for doc in found] == ["yes", "no", "yes"]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('text_a,text_b,label\n"two\nlines",b,x\nno, marks,b,x\n', 4),
        ('text_a,text_b,label\na,b,x\n"a"b,b,x\n', 3),
        ('text_a,text_b,label\na,b,x\n"a,b,x\n', 3),
    ],
)
def test_a_table_with_commas_that_cannot_be_read_is_an_error_with_the_line(tmp_path, rows, line):
    path = tmp_path / "pairs.csv"
    path.write_text(rows, encoding="utf8")
    with pytest.raises(LatentError, match=f"line {line}"):
        read(path)


def test_semicolons_in_place_of_commas_are_named(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("text_a;text_b;label\na;b;x\n", encoding="utf8")
    with pytest.raises(LatentError, match="semicolon"):
        read(path)


def test_numbers_of_a_table_with_missing_labels_are_whole_again(tmp_path):
    # pandas writes a column of integers with a missing value like this. The suffix is in capitals.
    path = tmp_path / "PAIRS.CSV"
    path.write_text("text_a,text_b,label\na,b,1.0\na,b,\na,b,0.0\n", encoding="utf8")
    with pytest.warns(LatentWarning):
        examples = read(path)
    cats = [example.reference.cats for example in examples]
    assert cats == [{"0": 0.0, "1": 1.0}, {}, {"0": 1.0, "1": 0.0}]


def test_files_that_cannot_be_read_are_named(tmp_path):
    for path in (None, tmp_path / "missing.tsv"):
        with pytest.raises(LatentError, match="exist"):
            read(path)
    other = tmp_path / "pairs.xlsx"
    other.write_text("")
    with pytest.raises(LatentError, match=r"\.jsonl.*\.tsv.*\.csv.*\.spacy"):
        read(other)
    broken = tmp_path / "pairs.jsonl"
    for line in ("{", "[1]"):
        broken.write_text(line)
        with pytest.raises(LatentError, match="line 1"):
            read(broken)


def test_premises_are_in_one_part():
    lines = {"text_a": "", "text_b": "", "label": ""}
    for k in range(20):
        for label in snli.LABELS:
            lines["text_a"] += f"premise {k} \n"
            lines["text_b"] += f"{label} {k} \n"
            lines["label"] += f"{label}\n"
    pairs = snli.read_pairs(lines)
    assert pairs[0] == {
        "text_a": ["premise", "0"],
        "text_b": ["contradiction", "0"],
        "label": "contradiction",
    }
    parts = snli.split_pairs(pairs, seed=1)
    assert parts == snli.split_pairs(pairs, seed=1) != snli.split_pairs(pairs, seed=2)
    assert (len(parts["train"]), len(parts["dev"])) == (48, 12)
    premises = [{tuple(pair["text_a"]) for pair in part} for part in parts.values()]
    assert not premises[0] & premises[1]
    with pytest.raises(LatentError, match="lines"):
        snli.read_pairs({**lines, "label": "neutral"})
    with pytest.raises(LatentError, match=r"Line 1.*'-'"):
        snli.read_pairs({"text_a": "a", "text_b": "b", "label": "-"})


def paraphrases(count):
    made = []
    for k in range(count):
        words = [f"a{k}", "the", f"b{k // 2}"]
        links = "0-0 2-2"
        row = {"source": " ".join(words), "target": " ".join(words[::-1]), "sureAlign": links}
        made.append({"id": f"news:{k}", **row})
    made.append({**made[0], "id": "mtc-1"})
    wider = [{**row, "sureAlign": row["sureAlign"] + " 1-1"} for row in made]
    return edinburgh_alignment.read_paraphrases(json.dumps(made), json.dumps(wider))


def test_paraphrases_and_pairs_that_are_none(tmp_path):
    pairs = paraphrases(20)
    assert len(pairs) == 20 and pairs[0].sure == ((0, 0), (2, 2))
    assert pairs[0].possible == ((0, 0), (1, 1), (2, 2))
    parts = edinburgh_alignment.split_paraphrases(pairs, seed=0)
    assert parts == edinburgh_alignment.split_paraphrases(pairs, seed=0)
    right = {(pair.first, pair.second) for pair in pairs}
    for name, size in (("train", 16), ("dev", 4)):
        chosen = [pair for pair, label in parts[name] if label == edinburgh_alignment.PARAPHRASE]
        assert len(chosen) == size
        others = [pair for pair, label in parts[name] if label == edinburgh_alignment.OTHER]
        assert size <= len(others) <= 2 * size
        assert not {(pair.first, pair.second) for pair in others} & right
        assert {pair.second for pair in others} <= {pair.second for pair in chosen}
    edinburgh_alignment.write_examples(tmp_path / "dev.spacy", parts["dev"], gold=True)
    for example in read(tmp_path / "dev.spacy"):
        assert not example.predicted.user_data
        if example.reference.cats[edinburgh_alignment.PARAPHRASE]:
            cells = example.reference._.latent["sure"].cells()
            assert [(cell.source, cell.target) for cell in cells] == [(0, 3), (2, 5)]
        else:
            assert "sure" not in example.reference._.latent
    with pytest.raises(LatentError, match="3-0"):
        edinburgh_alignment._links("3-0", ("a",), ("b",))


@pytest.mark.skipif(not (DATA / "snli-dev").is_dir(), reason="the data are not here")
def test_the_published_files_convert(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    snli.main(tmp_path / "snli")
    edinburgh_alignment.main(tmp_path)
    sizes = [
        sum(1 for _ in (tmp_path / "snli" / f"{name}.jsonl").open()) for name in ("train", "dev")
    ]
    assert sizes == [7_870, 1_972]
    docs = list(DocBin().from_disk(tmp_path / "dev.spacy").get_docs(nlp.vocab))
    gold = [doc for doc in docs if doc.cats["PARAPHRASE"]]
    assert len(gold) == 93 and all(doc._.latent["sure"].cells() for doc in gold)
    train = list(DocBin().from_disk(tmp_path / "train.spacy").get_docs(nlp.vocab))
    assert not any(doc.user_data for doc in train)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_table_may_have_long_texts(tmp_path, ending):
    between, path = "," if ending == ".csv" else "\t", tmp_path / f"pairs{ending}"
    rows = [["text_a", "text_b", "label"], ["word " * 40_000, "word", "same"]]
    path.write_text("\n".join(map(between.join, rows)), encoding="utf8")
    (example,) = read_text_pairs_v1(str(path))(nlp)
    assert len(example.reference) == 40_001
