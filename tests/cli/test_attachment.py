"""The report of attachment: its counts, and its messages for pipelines without trees."""

from functools import partial
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus

from spacy_latent.analysis import CONTROLS
from spacy_latent.evaluation.assessment import assess
from tests.cli.commands import latent
from tests.pipeline.small_pipelines import LISTENER, TOK2VEC, examples, initialized, stock

HEADS = [1, 1, 1, 1, 5, 5]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("attachment")
    nlp = spacy.blank("en")
    words, deps = ["I", "like", "London", ".", "You", "hate"], ["s", "ROOT", "o", "punct"]
    doc = Doc(nlp.vocab, words=words, heads=HEADS, deps=[*deps, "s", "ROOT"])
    DocBin(docs=[doc, Doc(nlp.vocab)]).to_disk(path / "dev.spacy")
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    nlp.add_pipe("parser", config=stock("parser", LISTENER))
    initialized(nlp, sample=examples(nlp))
    (path / "both").mkdir()
    nlp.to_disk(path / "both" / "model-best")
    spacy.blank("en").to_disk(path / "none")
    return path


run = partial(latent, "evaluate", "attachment")


def shares(row):
    return [row["without punctuation"], row["all tokens"]]


def refused(*arguments: object) -> str:
    """Run a command that fails, and return its message on one line."""
    return " ".join(run(*arguments, code=1).stderr.split())


def test_the_other_order_is_told_of(files: Path) -> None:
    said = refused(files / "dev.spacy", files / "both" / "model-best")
    assert "is a pipeline" in said and "the corpus last" in said
    said = refused(files / "dev.spacy", files / "dev.spacy")
    assert "is a file" in said and "the corpus last" in said


def test_what_cannot_be_read_is_named(files: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in refused(tmp_path / "empty", files / "dev.spacy")
    broken = tmp_path / "broken.spacy"
    broken.write_bytes(b"no docs")
    said = refused(files / "both" / "model-best", broken)
    assert "broken.spacy cannot be read" in said


@pytest.mark.parametrize("options", [[], ["--gold-preproc"]])
def test_trees_of_a_pipeline_beside_controls(files: Path, options: list[str]):
    metrics = files / "metrics" / "trees.json"
    model = files / "both" / "model-best"
    result = run(model, files / "dev.spacy", "--metrics", metrics, *options)
    figures = srsly.read_json(metrics)
    assert set(figures) == {"both: token.head", "both: latent_encoder", *CONTROLS}
    assert shares(figures["previous token"]) == pytest.approx([1 / 5, 1 / 6])
    # The control has no next token for the last one, which is a root in the gold tree, too.
    assert shares(figures["next token"]) == pytest.approx([3 / 5, 3 / 6])
    low, high = figures["next token"]["all tokens, 95 %"]
    assert low <= 3 / 6 <= high
    # The three arcs without the full stop join neighbours. The gold tree has no sets of words
    # except those of its roots, which do not count.
    assert figures["next token"]["undirected"] == pytest.approx(3 / 3)
    assert figures["next token"]["yields"] == 0.0 and figures["next token"]["one arc"] is None
    nlp = spacy.load(model)
    texts = ["I like London .", "You hate"] if options else ["I like London . You hate"]
    found: dict[str, list[int]] = {"token.head": [], "latent_encoder": []}
    for doc in map(nlp.make_doc, texts):
        if options:
            for token in doc:
                token.is_sent_start = token.i == 0
        doc, shift = nlp(doc), len(found["token.head"])
        found["token.head"] += [token.head.i + shift for token in doc]
        found["latent_encoder"] += (doc._.latent["latent_encoder"].heads + shift).tolist()
    for name, heads in found.items():
        share = sum(own == gold for own, gold in zip(heads, HEADS)) / 6
        assert figures[f"both: {name}"]["all tokens"] == pytest.approx(share)
    assert f"{100 * figures['both: token.head']['all tokens']:.1f}" in result.output


def test_the_report_says_the_same(files: Path):
    nlp = spacy.load(files / "both" / "model-best")
    found = list(Corpus(files / "dev.spacy")(nlp))
    figures = assess(nlp, found, random=False).figures.components["latent_encoder"]
    run(files / "both" / "model-best", files / "dev.spacy", "--metrics", files / "m.json")
    own = srsly.read_json(files / "m.json")["both: latent_encoder"]
    share, low, high = figures.reference.rows["latent_encoder"]["directed"]
    expected = [own["all tokens"], *own["all tokens, 95 %"]]
    assert [share, low, high] == pytest.approx(expected)


def test_what_is_not_there_is_named(files: Path):
    result = run(files / "none", files / "dev.spacy", code=1)
    assert "neither a parse nor latent heads" in result.output
    bare = DocBin(docs=[Doc(spacy.blank("en").vocab, words=["a"])])
    bare.to_disk(files / "bare.spacy")
    assert "no heads" in run(files / "both" / "model-best", files / "bare.spacy", code=1).output
    assert "other.spacy" in run(files / "both" / "model-best", files / "other.spacy", code=1).output


def test_where_nothing_counts_there_is_no_figure(files: Path) -> None:
    vocab = spacy.blank("en").vocab
    DocBin(docs=[Doc(vocab, words=["!"], heads=[0], deps=["punct"])]).to_disk(files / "mark.spacy")
    metrics = files / "mark.json"
    run(files / "both" / "model-best", files / "mark.spacy", "--metrics", metrics)
    assert shares(srsly.read_json(metrics)["both: latent_encoder"]) == [None, 1.0]


def test_models_whose_folders_have_one_name(files: Path, tmp_path: Path):
    (tmp_path / "both").mkdir()
    other = tmp_path / "both" / "model-best"
    spacy.load(files / "both" / "model-best").to_disk(other)
    metrics = tmp_path / "trees.json"
    models = [files / "both" / "model-best", other]
    run(*models, files / "dev.spacy", "--metrics", metrics)
    rows = set(srsly.read_json(metrics)) - set(CONTROLS)
    assert rows == {f"{path}: {row}" for path in models for row in ("token.head", "latent_encoder")}


def test_inline_structures_are_judged_too(files: Path, tmp_path: Path):
    nlp = spacy.blank("en")
    inline = {"@architectures": "spacy-latent.LatentTok2Vec.v1", "tok2vec": TOK2VEC}
    nlp.add_pipe("tagger", config=stock("tagger", inline))
    initialized(nlp, sample=examples(nlp))
    nlp.to_disk(tmp_path / "inline")
    metrics = tmp_path / "trees.json"
    run(tmp_path / "inline", files / "dev.spacy", "--metrics", metrics)
    assert set(srsly.read_json(metrics)) == {"inline: tagger", *CONTROLS}


def test_a_latent_parser_and_its_parse_have_rows_that_tell_them_apart(
    files: Path, tmp_path: Path
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_parser", name="parser", config={"model": {"tok2vec": TOK2VEC}})
    initialized(nlp, sample=examples(nlp))
    (tmp_path / "training").mkdir()
    nlp.to_disk(tmp_path / "training" / "model-best")
    metrics = tmp_path / "trees.json"
    result = run(tmp_path / "training" / "model-best", files / "dev.spacy", "--metrics", metrics)
    rows = set(srsly.read_json(metrics)) - set(CONTROLS)
    assert rows == {"training: token.head", "training: parser"}
    said = " ".join(result.output.split())
    assert "token.head is the parse" in said and "its trees in doc._.latent" in said
    # With only one kind of trees, its name is not explained.
    nlp = spacy.load(files / "both" / "model-best", exclude=["parser"])
    nlp.to_disk(tmp_path / "alone")
    assert "is the parse" not in run(tmp_path / "alone", files / "dev.spacy").output
