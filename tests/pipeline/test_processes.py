"""``nlp.pipe(n_process=2)`` gives the annotations of a single process.

The processes are forked or spawned. The parent has used torch's threads before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc

from tests.conftest import HERE, STAND_INS
from tests.pipeline.small_pipelines import LISTENER, TOK2VEC, examples, initialized, learn, stock

COMPONENTS = ("crf_ner", "latent_parser", "tree_spancat", "latent_encoder")
TEXTS = ["I like London a lot", "", "I hate Paris"] * 3
# One program tests both ways, since most of its time goes into imports.
PROGRAM = """
import multiprocessing, sys
import spacy, srsly, torch
from tests.pipeline.test_processes import TEXTS, found

if __name__ == "__main__":
    torch.set_num_threads(2)
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum()
    nlp = spacy.load(sys.argv[1])
    list(nlp.pipe(TEXTS))
    for method in ("fork", "spawn"):
        multiprocessing.set_start_method(method, force=True)
        docs = nlp.pipe(TEXTS, n_process=2, batch_size=2)
        print(srsly.json_dumps([method, [found(doc) for doc in docs]]))
"""


def found(doc: Doc) -> list[Any]:
    """Return the annotations of all components on a doc."""
    return [
        [[span.start, span.end, span.label_] for span in doc.ents],
        [[token.head.i, token.dep_] for token in doc],
        [[span.start, span.end, span.label_] for span in doc.spans["sc"]],
        {name: len(doc._.latent[name].spans) for name in COMPONENTS if name in doc._.latent},
        [int(head) for head in doc._.latent["latent_encoder"].heads] if len(doc) else [],
        max(doc.cats, key=doc.cats.__getitem__),
    ]


def trained() -> Language:
    nlp = spacy.blank("en")
    for name in COMPONENTS:
        nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    optimizer = initialized(nlp)
    sample = examples(nlp)
    learn(nlp, sample, 40, optimizer)
    return nlp


def test_trap_10_processes_give_what_one_gives_after_torch_has_used_threads(tmp_path: Path) -> None:
    nlp = trained()
    nlp.to_disk(tmp_path / "model")
    wanted = [found(doc) for doc in nlp.pipe(TEXTS)]
    # Check that there are annotations to compare.
    entities, arcs, spans, latent, heads, category = wanted[0]
    assert entities == [[2, 3, "GPE"]] == spans and arcs[1] == [1, "ROOT"]
    assert min(latent[name] for name in COMPONENTS) >= 1
    assert len(heads) == 5 and category != wanted[2][-1]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (STAND_INS, HERE.parent)))},
    )
    lines = [srsly.json_loads(line) for line in done.stdout.splitlines()]
    assert lines == [["fork", wanted], ["spawn", wanted]], done.stderr
