"""Latent trees of several seeds are compared with each other and with controls."""

from __future__ import annotations

from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin

from benchmarks import induced_trees as program
from benchmarks import learning
from benchmarks.learning_groups import Entry, Group
from spacy_latent.errors import LatentError

WORDS = [list("abcd"), list("wxyz"), ["alone"]]
# A chain; a tree in which w heads x and z, and x heads y; a single word.
GOLD = [[0, 0, 1, 2], [0, 0, 1, 0], [0]]


def row_of(lines: list[str], name: str) -> dict[str, str]:
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    (row,) = (row for row in rows if row[0] == name)
    return dict(zip(head, row, strict=True))


def test_figures_are_those_of_counting_by_hand() -> None:
    flat = [[0, 0, 0, 0], [0, 0, 0, 0], [0]]
    found = {"two": [flat, GOLD], **program.controls(WORDS, [0, 1]), "gold": [GOLD]}
    lines = program.table(WORDS, GOLD, found)
    two = row_of(lines, "two")
    assert two["seeds"] == "2"
    # The depths of flat trees are 1, 1 and 0; the depths of the gold trees are 3, 2 and 0.
    assert two["depth"] == f"{7 / 6:.1f}"
    # The heads of three words differ: c, d and y.
    assert two["heads as with another seed"] == f"{100 * 6 / 9:.1f}"
    assert two["heads as in gold"] == f"{100 * (6 / 9 + 1) / 2:.1f}"
    # The brackets of flat trees are ab, abc, wx and wxy; of the gold trees bcd, cd, xy and wxy.
    assert two["F1 to another seed"] == "25.0"
    assert two["F1 to left-branching"] == f"{100 * (1 + 0.25) / 2:.1f}"
    gold = row_of(lines, "gold")
    assert gold["heads as in gold"] == gold["F1 to gold"] == "100.0"
    assert gold["heads as with another seed"] == "" and gold["F1 to left-branching"] == "25.0"
    chain = row_of(lines, "control: each word on the one before")
    assert chain["seeds"] == "1" and chain["F1 to right-branching"] == "100.0"
    assert row_of(lines, "control: each word on the next")["F1 to left-branching"] == "100.0"
    random = row_of(lines, "control: random trees")
    assert random["seeds"] == "2" and 0 < float(random["heads as with another seed"]) < 100


def treebank(path: Path) -> Path:
    vocab = spacy.blank("en").vocab
    docs = [
        Doc(vocab, words=words, heads=heads, deps=["dep"] * len(words))
        for words, heads in zip(WORDS, GOLD)
    ]
    DocBin(docs=docs).to_disk(path)
    return path


def test_gold_heads_are_counted_within_sentences(tmp_path: Path) -> None:
    path = treebank(tmp_path / "dev.spacy")
    assert program.gold_of(path) == (WORDS, GOLD)
    nlp = spacy.blank("en")
    both = Doc(
        nlp.vocab, words=WORDS[0] + WORDS[1], heads=[0, 0, 1, 2, 4, 4, 5, 4], deps=["dep"] * 8
    )
    DocBin(docs=[both]).to_disk(path)
    assert program.gold_of(path) == (WORDS[:2], GOLD[:2])
    DocBin(docs=[nlp.make_doc("no heads")]).to_disk(path)
    with pytest.raises(LatentError, match="treebank"):
        program.gold_of(path)


def test_it_reads_the_trees_of_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("Title", (), {}, (Entry("one", "latent"), Entry("other", "not asked for")))
    monkeypatch.setattr(program, "GROUPS", {"group": group})
    monkeypatch.setattr(learning, "digest_of", lambda config: "digest")
    monkeypatch.setattr(learning, "has_encoder", lambda config: False)

    def train(run: learning.Run) -> None:
        assert run.entry.config == "one"
        nlp = spacy.blank("en")
        nlp.add_pipe("latent_encoder", config={"annotate": "map"})
        nlp.initialize()
        run.folder.mkdir(parents=True)
        nlp.to_disk(run.folder / "model-best")

    written: list[str] = []
    monkeypatch.setattr(learning, "train", train)
    monkeypatch.setattr(program, "write_section", lambda name, title, lines: written.extend(lines))
    options = ["--group", "group", "--configs", "one", "--seeds", "3", "4"]
    paths = ["--corpus", str(treebank(tmp_path / "dev.spacy")), "--runs", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["induced_trees", *options, *paths])
    program.main()
    assert "3 sentences" in written[0] and "seeds 3, 4" in written[0]
    assert row_of(written[2:], "`one`: latent")["seeds"] == "2"
    assert not any("other`" in line for line in written)
    # An unknown config is refused, since a table without its row would replace the existing one.
    written.clear()
    options[3:4] = ["one", "two"]
    monkeypatch.setattr("sys.argv", ["induced_trees", *options, *paths])
    with pytest.raises(SystemExit):
        program.main()
    assert not written
