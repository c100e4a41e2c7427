"""Peak memory, and the time of imports and first calls, each measured in its own process.

    python -m benchmarks footprint

Peak memory is the growth of the resident set above its level after a warm-up on short input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from statistics import median

from benchmarks.sections import write_section

SIZES = (125, 250, 500)
DOCS = (20_000, 200_000)
MEMORY = """
import sys, torch
torch.set_num_threads(1)
from benchmarks.cases import scores_for, structures
from benchmarks.scaling import OPERATIONS
structure = next(s for s in structures() if s.name == sys.argv[1])
operation = OPERATIONS[sys.argv[2]]
operation(structure, *scores_for(structure, 16, 1))
def level(field):
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) for l in status if l.startswith(field)) * 1024
for n in sys.argv[3:]:
    scores, lengths = scores_for(structure, int(n), 1)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = level("VmRSS")
    operation(structure, scores, lengths)
    print(level("VmHWM") - before)
"""
DOCUMENT = """
import spacy
nlp = spacy.blank("en")
nlp.add_pipe("latent_encoder")
nlp.add_pipe("textcat", config={"model": {"@architectures": "spacy.TextCatReduce.v1",
    "exclusive_classes": True, "use_reduce_mean": True, "use_reduce_first": False,
    "use_reduce_last": False, "use_reduce_max": False,
    "tok2vec": {"@architectures": "spacy-latent.LatentListener.v1", "width": 96}}})
nlp.get_pipe("textcat").add_label("A"), nlp.get_pipe("textcat").add_label("B")
nlp.initialize()
list(nlp.pipe(["a short text"]))
import time, warnings
warnings.simplefilter("ignore")
def level(field):
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) for l in status if l.startswith(field)) * 1024
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before, start = level("VmRSS"), time.perf_counter()
list(nlp.pipe([" ".join(["word"] * 10000)]))
print(level("VmHWM") - before, time.perf_counter() - start)
"""
FIRST = """
import time, torch
from spacy_latent.structures.spanning_tree import SpanningTree
scores, lengths = torch.randn(2, 11, 11, requires_grad=True), torch.tensor([10, 8])
start = time.perf_counter()
SpanningTree().marginals(scores, lengths).square().sum().backward()
SpanningTree().map(scores.detach(), lengths)
print(time.perf_counter() - start)
"""
COMPONENT = """
import json, random, spacy, sys, time
nlp = spacy.blank("en")
pipe = nlp.add_pipe(sys.argv[1], config=json.loads(sys.argv[2]))
for label in ("PER", "ORG", "LOC"):
    pipe.add_label(label)
nlp.initialize()
"""
# The processor time of the first call of a component for entities, which a first request waits for.
ENTITIES = f"""{COMPONENT}
start = time.process_time()
nlp("Ada Lovelace met Charles Babbage in London.")
print(time.process_time() - start)
"""
# The resident memory of a component for entities after different numbers of short texts.
RESIDENT = (
    COMPONENT
    + """
generator, words = random.Random(0), [f"word{i}" for i in range(20000)]
def level():
    with open("/proc/self/status") as status:
        print(next(int(l.split()[1]) for l in status if l.startswith("VmRSS")) / 1024)
level()
done = 0
for count in map(int, sys.argv[3:]):
    for doc in nlp.pipe(" ".join(generator.choices(words, k=8)) for _ in range(count - done)):
        pass
    done = count
    level()
"""
)
IMPORT = "import time; s = time.perf_counter(); import {}; print(time.perf_counter() - s)"
# Only numba is looked for, because spaCy itself loads torch if it is installed.
BLANK = (
    "import sys, spacy; nlp = spacy.blank('en'); nlp.add_pipe('textcat'); "
    "print(int('numba' in sys.modules))"
)


def run(program: str, *arguments: str, cache: str | None = None) -> list[float]:
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{ran.stderr[-2000:]}")
    return [float(value) for value in ran.stdout.split()]


def memory_lines() -> list[str]:
    from benchmarks.cases import scores_for, structures
    from benchmarks.scaling import OPERATIONS

    lines = [
        "Peak memory of one item above the inputs, in MB; and at the longest, in multiples of the "
        "float32 scores.",
        "",
        f"| structure | operation | {' | '.join(f'n = {n}' for n in SIZES)} | × scores |",
        f"|---|---|{'---:|' * (len(SIZES) + 1)}",
    ]
    for structure in structures():
        for name in OPERATIONS:
            if name.startswith("marginals") and "marginals" not in structure.tractable:
                continue
            # SparseMAP would take minutes for hundreds of words.
            sizes = SIZES[:1] if name.startswith("SparseMAP") else SIZES
            peaks = run(MEMORY, structure.name, name, *map(str, sizes))
            cells = [f"{peak / 2**20:.1f}" for peak in peaks]
            cells += [""] * (len(SIZES) - len(cells))
            share = peaks[-1] / (4 * scores_for(structure, sizes[-1], 1)[0].numel())
            lines.append(f"| {structure.name} | {name} | {' | '.join(cells)} | {share:.1f} |")
            print(lines[-1], flush=True)
    return lines


def resident_lines() -> list[str]:
    titles = " | ".join(f"after {count:,} docs" for count in DOCS)
    lines = [
        "Memory of a process that reads docs of eight words with `nlp.pipe`, in MB.",
        "",
        f"| component | before | {titles} |",
        f"|---|---:|{'---:|' * len(DOCS)}",
    ]
    for name, settings in (("crf_ner", {"annotate": "probabilities"}), ("ner", {})):
        levels = run(RESIDENT, name, json.dumps(settings), *map(str, DOCS))
        lines.append(f"| `{name}` | {' | '.join(f'{level:.0f}' for level in levels)} |")
    return lines


def time_lines() -> list[str]:
    plain, own = [], []
    for _ in range(7):
        plain += run(IMPORT.format("spacy"))
        own += run(IMPORT.format("spacy, spacy_latent"))
    above = median(own) - median(plain)
    loaded = "yes" if run(BLANK)[0] else "no"
    with tempfile.TemporaryDirectory() as cache:
        cold = run(FIRST, cache=cache)[0]
        warm = median(run(FIRST, cache=cache)[0] for _ in range(3))
    settings = json.dumps({"annotate": "probabilities"})
    compiled, later, stock = [], [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            compiled += run(ENTITIES, "crf_ner", settings, cache=cache)
            later += run(ENTITIES, "crf_ner", settings, cache=cache)
            stock += run(ENTITIES, "ner", "{}")
    peak, seconds = run(DOCUMENT)
    return [
        "| what | measured | bound |",
        "|---|---:|---:|",
        f"| `import spacy_latent` above `import spacy`, s | {above:.3f} | 0.3 |",
        f"| numba loaded by a pipeline without latent components | {loaded} | no |",
        f"| first call of a tree, nothing compiled, s | {cold:.1f} | 20 |",
        f"| first call of a tree, compiled code on disk, s | {warm:.2f} | 2 |",
        "| first call of `crf_ner` with probabilities, nothing compiled, s of a processor | "
        f"{median(compiled):.2f} | 5 |",
        "| first call of `crf_ner` with probabilities, compiled code on disk, s of a processor | "
        f"{median(later):.2f} | 0.5 |",
        f"| first call of `ner`, s of a processor | {median(stock):.3f} | |",
        f"| 10,000 tokens through `nlp.pipe`, peak above the pipeline, MB | {peak / 2**20:.0f} "
        "| 1000 |",
        f"| 10,000 tokens through `nlp.pipe`, s | {seconds:.2f} | |",
    ]


def main() -> None:
    if not os.path.exists("/proc/self/clear_refs"):
        sys.exit("Peak memory is read from /proc, which this system does not have.")
    times = time_lines()
    resident = resident_lines()
    print("\n".join([*times, *resident]))
    lines = [f"{date.today()}; memory on one thread.", "", *times, "", *resident, ""]
    lines += memory_lines()
    write_section("footprint", "Imports, first calls, memory", lines)


if __name__ == "__main__":
    main()
