"""Tags that depend on the tree of an expression agree with other ways to compute them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from spacy.tokens import DocBin
from spacy.vocab import Vocab
from typer.testing import CliRunner

from spacy_latent.errors import LatentError
from spacy_latent.listops.expressions import generate, gold_heads, write
from spacy_latent.listops.tags import Task, argument_tags, infix_tags, main, write_tagged

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]".split()


def infix(tokens: list[str]) -> list[str]:
    """Convert an expression to infix notation, with a stack of lists."""
    stack: list[list[list[str]]] = [[]]
    operators: list[str] = []
    for token in tokens:
        if token[0] == "[":
            operators.append(token[1:])
            stack.append([])
        elif token == "]":
            arguments, operator = stack.pop(), operators.pop()
            joined = arguments[0]
            for argument in arguments[1:]:
                joined = [*joined, operator, *argument]
            stack[-1].append(["(", *joined, ")"])
        else:
            stack[-1].append([token])
    return stack[0][0]


def test_tags_of_an_expression() -> None:
    assert argument_tags(EXPRESSION) == ["4", "", "", "2", "", "", "", "", ""]
    assert infix_tags(EXPRESSION) == ["-", "MAX", "MAX", "-", "MIN", "-", "MAX", "-", "-"]
    assert argument_tags(["5"]) == [""] and infix_tags(["5"]) == ["-"]


def test_tokens_with_what_stands_after_them_are_infix_notation() -> None:
    (expressions,) = generate([200], max_depth=6, max_length=60)
    for tokens in expressions:
        written: list[str] = []
        for token, tag in zip(tokens, infix_tags(tokens), strict=True):
            written.append({"[": "(", "]": ")"}.get(token[0], token))
            written += [tag] if tag != "-" else []
        assert written == infix(tokens)


def test_docs_have_trees_but_where_a_structure_is_to_learn_them(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", [EXPRESSION, ["5"]])
    write(tmp_path / "dev.tsv", [EXPRESSION])
    arguments = ["infix", str(tmp_path), str(tmp_path / "out"), "--limit", "1"]
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for name, learned in (("train", True), ("dev", False)):
        found = DocBin().from_disk(tmp_path / "out" / f"{name}.spacy")
        (doc,) = found.get_docs(Vocab())
        assert [token.text for token in doc] == EXPRESSION
        assert [token.tag_ for token in doc] == infix_tags(EXPRESSION)
        assert doc.has_annotation("DEP") != learned
        if not learned:
            assert [token.head.i for token in doc] == gold_heads(EXPRESSION)


def test_tokens_without_a_tag_have_none(tmp_path: Path) -> None:
    write(tmp_path / "some.tsv", [EXPRESSION])
    write_tagged(tmp_path / "some.tsv", tmp_path / "some.spacy", Task.arguments, False)
    (doc,) = DocBin().from_disk(tmp_path / "some.spacy").get_docs(Vocab())
    assert [token.tag_ for token in doc] == argument_tags(EXPRESSION)


def test_a_folder_without_expressions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LatentError, match=r"\.tsv"):
        main(Task.infix, tmp_path, tmp_path / "out")
