"""Components of a user: subclasses of ours under factories of their own, and any others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from spacy_latent.cli.pairs import model_row
from spacy_latent.evaluation.assessment import assess
from spacy_latent.evaluation.controls import control_config
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.factories import factory_of
from spacy_latent.pipeline.latent_encoder import LatentEncoder, inspect_docs
from spacy_latent.pipeline.latent_textcat import LatentTextCategorizer
from spacy_latent.pipeline.missing_upstreams import missing_upstreams
from spacy_latent.pipeline.scores_given import about_scores
from tests.cli.test_pairs import save_aligned
from tests.models.pair_pipelines import pipeline, trained
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, latent_pipeline, stock


class OwnEncoder(LatentEncoder):
    """Encoder with a setting of its own; the arguments have no types, as in a user's first try."""

    def __init__(self, *arguments, depth: int = 1, **settings):
        super().__init__(*arguments, **settings)
        self.configure("depth", depth)


class OwnCategorizer(LatentTextCategorizer):
    pass


@Language.factory("own_guess", assigns=["doc.cats"])
class OwnGuess:
    """Component whose ``cfg`` is no mapping, and which has no labels and no method ``pipe``."""

    cfg = SimpleNamespace()

    def __init__(self, nlp: Language, name: str) -> None:
        self.name = name

    def __call__(self, doc: Doc) -> Doc:
        doc.cats["length"] = 0.5
        return doc


for usual, component in (("latent_encoder", OwnEncoder), ("latent_textcat", OwnCategorizer)):
    known = Language.get_factory_meta(usual)
    Language.factory(
        f"own_{usual}",
        default_config=known.default_config,
        default_score_weights=known.default_score_weights,
        func=factory_of(component, f"own_{usual}"),
    )


def test_a_constructor_without_named_arguments_has_the_settings_of_its_base(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    config = {"depth": 2, "threshold": 0.5, "model": {"tok2vec": TOK2VEC}}
    assert isinstance(nlp.add_pipe("own_latent_encoder", config=config), OwnEncoder)
    initialized(nlp)
    nlp.to_disk(tmp_path)
    cfg = spacy.load(tmp_path).get_pipe("own_latent_encoder").cfg
    assert (cfg["depth"], cfg["threshold"]) == (2, 0.5)


def test_the_control_of_an_own_encoder_is_not_supervised() -> None:
    config = latent_pipeline(encoder={"supervision": 1.0, "teacher_forcing": True}).config
    config["components"]["latent_encoder"]["factory"] = "own_latent_encoder"
    block = control_config(config)[0]["components"]["latent_encoder"]
    assert (block["supervision"], block["teacher_forcing"]) == (0.0, False)


def test_nothing_above_an_own_encoder_listens_to_a_wildcard() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    nlp.add_pipe("own_latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    wildcard = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}
    nlp.add_pipe("tagger", config=stock("tagger", wildcard))
    initialized(nlp)
    assert "wildcard" in {finding.code for finding in find_traps(nlp)}


def test_messages_name_an_own_encoder() -> None:
    nlp = spacy.blank("en")
    settings = {"supervision": 1.0, "model": {"tok2vec": TOK2VEC}}
    nlp.add_pipe("own_latent_encoder", name="own", config=settings)
    nlp.initialize(lambda: examples(nlp))
    (told,) = about_scores(nlp, examples(nlp))
    assert 'component = "own"' in told.text
    listener = {"@architectures": "spacy-latent.LatentListener.v1", "width": 96, "upstream": "owm"}
    nlp.add_pipe("tagger", config=stock("tagger", listener))
    (missing,) = missing_upstreams(nlp)
    assert "Did you mean 'own'?" in missing


def test_the_alignments_of_an_own_classifier_are_judged(tmp_path: Path) -> None:
    nlp = trained(pipeline())
    save_aligned(nlp, tmp_path / "dev.spacy")
    nlp.to_disk(tmp_path / "own")
    config = (tmp_path / "own" / "config.cfg").read_text()
    config = config.replace('factory = "latent_textcat"', 'factory = "own_latent_textcat"')
    (tmp_path / "own" / "config.cfg").write_text(config)
    assert model_row(tmp_path / "own", tmp_path / "dev.spacy")["f1"] == 1.0


def test_the_cfg_of_a_component_may_be_anything() -> None:
    nlp = latent_pipeline("textcat")
    nlp.add_pipe("own_guess")
    initialized(nlp)
    assert "accuracy" in assess(nlp, examples(nlp)).figures.task.measures
    find_traps(nlp, examples(nlp))


@pytest.mark.parametrize(
    "factory", ["latent_encoder", "latent_textcat", "crf_ner", "latent_parser", "tree_spancat"]
)
def test_a_component_runs_on_docs_without_a_tensor(factory: str) -> None:
    """spaCy's ``doc_cleaner`` sets ``doc.tensor`` to None."""
    nlp = spacy.blank("en")
    nlp.add_pipe("doc_cleaner")
    nlp.add_pipe(factory, config={"model": {"tok2vec": TOK2VEC}})
    initialized(nlp)
    assert len(nlp("I like London")._.latent[factory].spans) == 1
    inspect_docs(nlp, [nlp("I like London")])
