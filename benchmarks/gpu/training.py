"""Train as ``spacy train -g 0`` for a hundred steps, and measure speed and waits for the GPU.

The saved pipeline is loaded on the CPU, where it must predict the same. Texts are generated, so
that no corpus is needed: ListOps for the demo, and for other configs random words, one of which
decides the category.
"""

from __future__ import annotations

import io
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
from spacy.tokens import DocBin
from spacy.training import loop
from spacy.training.initialize import init_nlp
from spacy.util import load_config
from thinc.api import require_cpu, require_gpu

from benchmarks.gpu.machine import Machine, Record, fill
from benchmarks.recipes import path_of
from spacy_latent import listops

STEPS, WARM_UP, WATCHED = 100, 20, 10
ENCODER = "components.latent_encoder.model"
MIXED = {f"{ENCODER}.mixed_precision": True}
# Greatest difference between the scores of a category on the GPU and on the CPU.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Training:
    """A training that is measured.

    Attributes:
        what: its name in the table.
        config: name of the recipe.
        overrides: settings of the recipe that are changed.
        half: whether it computes in half precision, so that scores on a CPU may differ.
        rehearsed: whether it is a part of a dry run.
    """

    what: str
    config: str
    overrides: dict[str, Any] = field(default_factory=dict)
    half: bool = False
    rehearsed: bool = False

    @property
    def transformer(self) -> bool:
        return "transformer" in self.config


TRAININGS = (
    Training("marginals of spanning trees, textcat", "sentiment_marginals", rehearsed=True),
    Training(
        "SparseMAP of spanning trees, textcat",
        "sentiment_marginals",
        {
            f"{ENCODER}.estimator.@misc": "spacy-latent.SparseMAP.v1",
            f"{ENCODER}.estimator.prediction": "map",
        },
    ),
    Training(
        "the demo: latent_textcat, projective trees",
        "demo",
        {
            # The last stage, which is measured, begins at once.
            "components.latent_textcat.model.structure.release_at": 1,
            "components.latent_textcat.model.estimator.switch_at": 2,
        },
        rehearsed=True,
    ),
    Training("a transformer under marginals, textcat", "sentiment_transformer"),
    Training("marginals, half precision", "sentiment_marginals", MIXED, half=True),
    Training("a transformer, half precision", "sentiment_transformer", MIXED, True, rehearsed=True),
)


def write_texts(path: Path, size: int) -> None:
    """Write texts of 10 to 40 random words out of 500.

    One word of each is drawn from the first twenty, and decides the category.
    """
    chosen = random.Random(str(path))
    nlp, docs = spacy.blank("en"), []
    for _ in range(size):
        words = [f"w{chosen.randrange(500)}" for _ in range(chosen.randint(10, 40))]
        place = chosen.randrange(len(words))
        decisive = chosen.randrange(20)
        words[place] = f"w{decisive}"
        doc = spacy.tokens.Doc(nlp.vocab, words=words)
        doc.cats = {"positive": float(decisive < 10), "negative": float(decisive >= 10)}
        docs.append(doc)
    DocBin(docs=docs).to_disk(path)


def save_transformer(folder: Path, small: bool) -> None:
    """Save a transformer with random weights: six layers of width 384, or one layer of width 16."""
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(500))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf8")
    width, layers, heads = (16, 1, 2) if small else (384, 6, 12)
    settings = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=256,
    )
    transformers.BertModel(settings).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


class Marks:
    """A replacement of spaCy's training loop that records the time and the words of each step.

    It also records the waits for the GPU in the last steps. Their times do not count, since this
    makes them slower.
    """

    def __init__(self, machine: Machine, steps: int, watched: int) -> None:
        self.machine, self.steps, self.watched = machine, steps, watched
        self.original = loop.train_while_improving
        self.marks: list[tuple[float, int]] = []
        self.places: Counter[str] = Counter()

    def __call__(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        with ExitStack() as watched:
            found = None
            for batch, *rest in self.original(*arguments, **options):
                self.machine.wait()
                self.marks.append((time.perf_counter(), sum(len(example) for example in batch)))
                if len(self.marks) == self.steps - self.watched:
                    found = watched.enter_context(self.machine.waits())
                yield batch, *rest
        if found is not None:
            self.places.update(found.places)

    def words_a_second(self) -> float:
        end = self.steps - self.watched
        marks = self.marks[min(WARM_UP, end - 2) : end]
        words = sum(count for _, count in marks[1:])
        return words / (marks[-1][0] - marks[0][0])


def train(machine: Machine, training: Training, corpus: Path) -> dict[str, Any]:
    steps, watched = (5, 2) if machine.pretended else (STEPS, WATCHED)
    demo = training.config == "demo"
    end = "tsv" if demo else "spacy"
    overrides = {
        "paths.train": str(corpus / f"train.{end}"),
        "paths.dev": str(corpus / f"dev.{end}"),
        "training.max_steps": steps - 1,
        "training.max_epochs": 0,
        "training.patience": 0,
        "training.eval_frequency": 10 * steps,
        "system.gpu_allocator": None if machine.pretended else "pytorch",
        **training.overrides,
    }
    if training.transformer:
        overrides["paths.encoder"] = str(corpus / "encoder")
        overrides["components.textcat.model.tok2vec.width"] = 16 if machine.pretended else 384
    if machine.pretended:
        overrides["training.batcher.size"] = 60
    marks = Marks(machine, steps, watched)
    target = machine.folder / "pipeline"
    target.mkdir(exist_ok=True)
    loop.train_while_improving = marks
    try:
        nlp = init_nlp(load_config(path_of(training.config), overrides=overrides))
        loop.train(nlp, target, use_gpu=0, stdout=io.StringIO())
    finally:
        loop.train_while_improving = marks.original
    texts = texts_of(corpus, demo)
    there = [doc.cats for doc in nlp.pipe(texts)]
    require_cpu()
    here = [doc.cats for doc in spacy.load(target / "model-last").pipe(texts)]
    apart = max(abs(one[key] - two[key]) for one, two in zip(there, here) for key in one)
    found = {
        "words_per_second": marks.words_a_second(),
        "waits_per_step": sum(marks.places.values()) / watched,
        "places": marks.places.most_common(12),
        "apart_on_cpu": apart,
    }
    if not (apart <= TOLERANCE or training.half):
        found["failed"] = f"loaded on a CPU, its scores are {apart:.3f} off"
    return found


def texts_of(corpus: Path, demo: bool) -> list[str]:
    if demo:
        return [" ".join(tokens) for _, tokens in listops.read(corpus / "dev.tsv")][:20]
    docs = DocBin().from_disk(corpus / "dev.spacy").get_docs(spacy.blank("en").vocab)
    return [doc.text for doc in docs][:20]


def run(machine: Machine, record: Record) -> None:
    failures = 0
    with TemporaryDirectory() as folder:
        corpus = Path(folder)
        size = 60 if machine.pretended else 6000
        write_texts(corpus / "train.spacy", size)
        write_texts(corpus / "dev.spacy", 50)
        made = listops.generate(
            [size, 50],
            operators=("MIN", "MAX", "MED"),
            max_depth=4,
            min_length=8,
            max_length=25,
        )
        for name, lines in zip(("train", "dev"), made):
            listops.write(corpus / f"{name}.tsv", lines)
        for training in TRAININGS:
            if machine.pretended and not training.rehearsed:
                continue
            if training.transformer:
                missing = [n for n in ("transformers", "spacy_transformers") if not find_spec(n)]
                if missing:
                    record(training=training.what, failed=f"{missing[-1]} is not installed")
                    continue
                (corpus / "encoder").mkdir(exist_ok=True)
                save_transformer(corpus / "encoder", machine.pretended)
            start = time.perf_counter()
            try:
                require_gpu(0)
                found = train(machine, training, corpus)
            except Exception as error:
                import traceback

                traceback.print_exc()
                found = {"failed": repr(error)[:300]}
            seconds = round(time.perf_counter() - start, 1)
            record(training=training.what, seconds=seconds, **found)
            failures += "failed" in found
    if failures:
        raise SystemExit(f"{failures} trainings failed.")


def report(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{STEPS} steps of each config; waits counted in the last {WATCHED}; the last column is "
        "the largest difference of a category's score when the saved pipeline is loaded on a CPU.",
        "",
        "| training | words/s | waits a step | seconds in all | apart on a CPU |",
        "|---|---:|---:|---:|---:|",
    ]
    for line in records:
        if "failed" in line and "apart_on_cpu" not in line:
            lines.append(
                fill("{}", [line["training"], line["failed"].replace("|", "/"), "", "", ""])
            )
            continue
        numbers = [f"{line['words_per_second']:,.0f}", f"{line['waits_per_step']:.1f}"]
        apart = f"{line['apart_on_cpu']:.0e}"
        lines.append(fill("{}", [line["training"], *numbers, f"{line['seconds']:.0f}", apart]))
    return lines
