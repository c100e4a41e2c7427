"""The examples of the README agree with the package."""

import re
from pathlib import Path

from spacy.cli.init_config import init_config
from spacy.training import Example
from spacy.util import load_model_from_config, registry
from thinc.api import Config

from spacy_latent.cli.added_structures import filled, with_refusal, with_structure

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf8")

HEAD = """
[nlp]
lang = "en"
pipeline = ["textcat"]

[components]

[components.textcat]
factory = "textcat"

[components.textcat.model]
@architectures = "spacy.TextCatReduce.v1"
exclusive_classes = true
use_reduce_first = false
use_reduce_last = false
use_reduce_max = false
use_reduce_mean = true

"""


def test_the_config_trains_and_annotates():
    (block,) = re.findall(r"```ini\n(.*?)```", README, re.DOTALL)
    nlp = load_model_from_config(Config().from_str(HEAD + block), auto_fill=True)
    gold = {"cats": {"A": 1.0, "B": 0.0}}
    examples = [Example.from_dict(nlp.make_doc("a good film"), gold)]
    optimizer = nlp.initialize(lambda: examples)
    losses = nlp.update(examples, sgd=optimizer)
    assert losses["textcat"] > 0
    for doc in nlp.pipe(["a good film", "a bad one"]):
        assert len(doc._.latent["textcat"].heads) == 3


def test_the_lines_are_what_the_command_adds():
    (block,) = re.findall(r"```ini\n(.*?)```", README, re.DOTALL)
    base = filled(init_config(lang="en", pipeline=["textcat"]))
    made = filled(with_refusal(with_structure(base, [], "spanning-tree", "marginals")))
    shown = load_model_from_config(Config().from_str(HEAD + block), auto_fill=True).config
    # Both configs have been filled with defaults, which the README leaves out.
    assert made["components"].pop("textcat") == shown["components"]["textcat"]
    base["components"].pop("textcat")
    made["nlp"].pop("after_pipeline_creation")
    base["nlp"].pop("after_pipeline_creation")
    assert made == base


def test_every_name_in_the_table_is_registered():
    table = README.split("## Registered names")[1].split("\n\n")[2]
    names = re.findall(r"`([A-Z]\w+)`", table)
    assert len(names) > 35
    for name in names:
        places = [(f"{name}.v1", kind) for kind in ("misc", "architectures", "readers")]
        assert any(registry.has(kind, f"spacy-latent.{full}") for full, kind in places), name
