"""Command ``spacy latent warm-up``: compile the kernels of a pipeline before it is deployed."""

from __future__ import annotations

import time
import warnings

import typer

from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, Model
from spacy_latent.cli.pipelines import import_code, load
from spacy_latent.errors import LatentError, LatentWarning, number_of

EXAMPLES = """
Examples:

  spacy latent warm-up training/model-best

  NUMBA_CPU_NAME=generic spacy latent warm-up en_my_pipeline corpus/dev.spacy
"""
# Single texts and batches, and sentences of different lengths, have different kernels.
LENGTHS = (1, 4, 9, 16, 30, 60)
BATCH = 64
# The beginning of the warning of spacy_latent.kernels.core.compilation.
NOT_STORED = "Kernels are compiled in each process"


def warm_up_cli(
    model: Model,
    corpus: str | None = typer.Argument(
        None,
        help="Texts like those to be processed later: .spacy, .jsonl or .txt. Default: generated "
        "texts",
    ),
    limit: int = typer.Option(500, "--limit", "-n", min=1, help="Number of texts to read at most"),
    code: Code = None,
) -> None:
    """Compile and store the machine code of a pipeline by running it once.

    Later processes load the code if the kind of processor, the package and the folder of the code
    are the same. The folder is NUMBA_CACHE_DIR, the package itself, or the user's cache. For an
    image that runs on different processors, set NUMBA_CPU_NAME=generic when you build and run it.
    """
    from spacy_latent.cli.corpus import read_counted
    from spacy_latent.pipeline.inspection import reads_pairs

    with failing("Nothing was compiled"):
        import_code(code)
        nlp = load(model)
        if corpus is not None:
            docs = [example.predicted for example in read_counted(nlp, corpus, limit)[0]]
        elif reads_pairs(nlp):
            raise LatentError(
                "The pipeline reads pairs of texts. Give a corpus of pairs as the second argument."
            )
        else:
            texts = [" ".join(["Anna"] * size) for size in LENGTHS] * BATCH
            docs = [nlp.make_doc(text) for text in texts]
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=NOT_STORED, category=LatentWarning)
            for doc in docs[: len(LENGTHS)]:
                nlp(doc.copy())
            for _ in nlp.pipe(docs):
                pass
    except LatentWarning as warning:
        fail("Machine code could not be stored", str(warning))
    seconds = time.perf_counter() - start
    msg.good(
        f"Ran {number_of(len(docs), 'text')} in {seconds:.1f} s. Later processes load what was "
        "compiled."
    )
