"""What configs learn: every config of a group trained with every seed, in a table.

    python -m benchmarks learning rationales --seeds 0 1 2 3 4
    python -m benchmarks learning systems --only rationale_fusedmax

Each run is ``spacy train`` in a process of its own, on one thread; its figures are those of the
checkpoint that is best on the development set, there, or on the test set where a group has one.
They are kept in RUNS, so that a group can be measured in several sittings: what is there is not
trained again. The table goes to the terminal and to the group's section of RESULTS.md, with what
is there so far. The corpora are those of project.yml, made by its commands.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

import spacy
import torch

from benchmarks.sections import write_section

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "training" / "learning"
Figures = dict[str, str]


@dataclass(frozen=True)
class Entry:
    """One row. config: in configs/, without its ending. what: a note for it. listops: the folder of
    expressions on whose test set it is judged, by ``spacy_latent.cli.listops report``. model: which
    of those that training keeps; the last where there are no others to choose a better one by."""

    config: str
    what: str = ""
    listops: str | None = None
    model: str = "model-best"


@dataclass(frozen=True)
class Group:
    """title: of the section. corpora: commands of project.yml that make them. figures: columns, and
    what their shares are called in the scores; empty where a model has no such score."""

    title: str
    corpora: tuple[str, ...]
    figures: Figures
    entries: tuple[Entry, ...]


DEMO, LISTOPS = "corpus/demo", "corpus/listops"
ACCURACY = {"accuracy": "cats_micro_f"}
# Groups of spacy_latent.analysis.groups_by_operator.
WITH_SUMS = ("with SM", "without SM")
# All four operators, up to 100 tokens, the curriculum of flat lists first.
LISTOPS_ENTRIES = (
    Entry("listops_lstm", "control: no structure", LISTOPS),
    Entry("listops_spinn", "SPINN, given transitions: the composer with gold trees", LISTOPS),
    Entry("listops_score_function", "score function, projective", LISTOPS),
    Entry("listops_marginals_projective", "structured attention, projective", LISTOPS),
    Entry("listops_marginals", "structured attention, non-projective", LISTOPS),
    Entry("listops_sparsemap", "SparseMAP, projective", LISTOPS),
    Entry("listops_perturb_and_map", "perturb-and-parse, projective", LISTOPS),
    Entry("listops_straight_through", "straight-through, projective", LISTOPS),
    Entry("listops_spigot", "SPIGOT, projective", LISTOPS),
    Entry("listops_sparsemap_tree_lstm", "Tree-LSTM over SparseMAP's trees", LISTOPS),
    Entry("listops_reinforce_shift_reduce", "RL-SPINN", LISTOPS),
    Entry("listops_beam_straight_through", "shift-reduce, beam, straight-through", LISTOPS),
    Entry("listops_beam_merges", "merges, mixture of a beam: a beam tree cell", LISTOPS),
    Entry("listops_ppo_merges", "merges by PPO", LISTOPS),
    Entry("listops_gumbel_tree_lstm", "Gumbel Tree-LSTM", LISTOPS),
)
GROUPS = {
    "listops": Group(
        "Learning: ListOps with four operators",
        ("listops-data",),
        {
            **ACCURACY,
            **{name: name for name in WITH_SUMS},
            "spans F1": "brackets",
            "attachment": "attachment",
            "with gold trees": "gold",
        },
        LISTOPS_ENTRIES,
    ),
    "demo": Group(
        "Learning: the demo's trees",
        ("demo-data",),
        {"attachment": "attachment", **ACCURACY},
        tuple(
            Entry(f"demo{name}", listops=DEMO)
            for name in (
                "",
                "_score_function",
                "_sparsemap_marginalization",
                "_perturb_and_map",
                "_straight_through",
                "_implicit_mle",
            )
        ),
    ),
    "systems": Group(
        "Learning: systems of the literature",
        ("listops-data", "sentiment-data", "ner-data", "pairs-snli-data", "tree-data"),
        {
            **ACCURACY,
            "spans F1": "brackets",
            "attachment": "attachment",
            "entity F1": "ents_f",
            "of the parser": "dep_uas",
        },
        (
            *LISTOPS_ENTRIES,
            Entry("sentiment_baseline", "control: no structure"),
            Entry("sentiment_marginals", "structured attention, non-projective"),
            Entry("sentiment_segments", "structured attention, segments"),
            Entry("sentiment_perturb_and_parse", "perturb-and-parse, graph convolution"),
            Entry("sentiment_spigot", "SPIGOT"),
            Entry("rationale_full_text", "control: all words"),
            Entry("rationale_fusedmax", "fusedmax attention"),
            Entry("rationale_learning_to_explain", "learning to explain, I-MLE"),
            Entry("rationale_hard_kuma", "HardKuma rationales"),
            Entry("rationale_one_word", "latent categorical, sparse marginalization"),
            Entry("pairs_snli_one_to_one", "structured alignment, SparseMAP matching"),
            Entry("pairs_snli_attention", "control: attention"),
            Entry("ner_crf", "CRF tagger"),
            Entry("ner_crf_quadratic", "L2 tagger: quadratic smoothing"),
            Entry("ner_baseline", "control: spaCy's ner"),
            Entry("tree_ewt_spigot_parser", "syntax under a parser, SPIGOT"),
        ),
    ),
    "rationales": Group(
        "Learning: rationales of sentence polarity",
        ("sentiment-data",),
        {**ACCURACY, "words": "rationale_rate"},
        (
            Entry("rationale_full_text", "control: all words"),
            Entry("rationale_learning_to_explain"),
            Entry("rationale_k_of_n"),
            Entry("rationale_budget"),
            Entry("rationale_contiguous"),
            Entry("rationale_hard_kuma"),
            Entry("rationale_hard_concrete"),
            Entry("rationale_fusedmax"),
            Entry("rationale_one_word"),
        ),
    ),
    "entities": Group(
        "Learning: entities of WNUT-17",
        ("ner-data",),
        {"F1": "ents_f", "calibration error": "ents_ece"},
        (Entry("ner_crf"), Entry("ner_baseline")),
    ),
    "trees": Group(
        "Learning: supervised trees of UD English EWT",
        ("tree-data",),
        {"attachment": "latent_uas", "of the parser": "dep_uas"},
        (Entry("tree_ewt_supervised"), Entry("tree_ewt_parser")),
    ),
    "alignments": Group(
        "Learning: paraphrases and their alignments",
        ("pairs-alignment-data",),
        {**ACCURACY, "alignment F1": "latent_align_f"},
        (
            Entry("pairs_alignment_one_to_one", model="model-last"),
            Entry("pairs_alignment_monotone", model="model-last"),
            Entry("pairs_alignment_attention", model="model-last"),
        ),
    ),
}


def of_listops(metrics: dict[str, Any]) -> dict[str, float]:
    """The figures of the model, which are before those of the controls, on the first corpus."""
    scores: dict[str, float] = {ACCURACY["accuracy"]: metrics["accuracy"]}
    if "brackets" in metrics:
        scores["brackets"] = next(iter(metrics["brackets"].values()))
    elif "attachment" in metrics:
        scores["attachment"] = next(iter(metrics["attachment"].values()))["without ]"]
    part = next(iter(metrics.get("corpora", {}).values()), {})
    for name, group in part.get("by_operator", {}).items():
        if name in WITH_SUMS:
            scores[name] = next(iter(group["models"].values()))["accuracy"][0]
    own = next(iter(part.get("by_depth", {}).get("all", {}).get("models", {}).values()), {})
    if "spans" in own:
        scores["brackets"] = own["spans"][0]
    if "gold" in own.get("accuracy_with", {}):
        scores["gold"] = own["accuracy_with"]["gold"][0]
    return scores


def train(entry: Entry, seed: int, runs: Path) -> dict[str, Any]:
    """The scores of one run and what it took, from the file where they are if it was done."""
    kept = runs / f"{entry.config}-{seed}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf8"))
        return found
    output = kept.with_suffix("")
    command = [
        *(sys.executable, "-m", "spacy", "train", f"configs/{entry.config}.cfg"),
        *("--output", str(output), "--system.seed", str(seed)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    model = output / entry.model
    scores = json.loads((model / "meta.json").read_text(encoding="utf8"))["performance"]
    if entry.listops is not None:
        metrics = output / "metrics.json"
        report = [*(sys.executable, "-m", "spacy_latent.cli.listops", "report"), str(model)]
        report += [f"{entry.listops}/test.tsv", "--metrics", str(metrics)]
        subprocess.run(report, cwd=ROOT, env=environment, check=True, capture_output=True)
        scores = of_listops(json.loads(metrics.read_text(encoding="utf8")))
    shutil.rmtree(output)
    found = {
        "scores": {key: value for key, value in scores.items() if isinstance(value, float)},
        "seconds": round(seconds, 1),
        "processor_seconds": round(after.ru_utime - before.ru_utime, 1),
    }
    kept.write_text(json.dumps(found, indent=1), encoding="utf8")
    return found


def cell(values: Sequence[float]) -> str:
    """In percent: each, and where there are several mean, least and most."""
    if not values:
        return ""
    shares = [100 * value for value in values]
    each = ", ".join(f"{share:.1f}" for share in shares)
    if len(shares) == 1:
        return each
    return f"{each}; mean {mean(shares):.1f} ({min(shares):.1f} to {max(shares):.1f})"


def table(group: Group, found: dict[Entry, dict[int, dict[str, Any]]]) -> list[str]:
    columns = list(group.figures)
    lines = [
        f"| config | seeds | {' | '.join(columns)} | minutes of a processor |",
        f"|---|---|{'---|' * len(columns)}---:|",
    ]
    for entry, runs in found.items():
        if not runs:
            continue
        cells = [
            cell([run["scores"][key] for run in runs.values() if key in run["scores"]])
            for key in group.figures.values()
        ]
        minutes = mean(run["processor_seconds"] for run in runs.values()) / 60
        seeds = ", ".join(map(str, runs))
        name = f"`{entry.config}`" + (f": {entry.what}" if entry.what else "")
        row = [name, seeds, *cells, f"{minutes:.1f}"]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def measured(group: Group, runs: Path) -> dict[Entry, dict[int, dict[str, Any]]]:
    """What is there of all entries, by seed."""
    found: dict[Entry, dict[int, dict[str, Any]]] = {}
    for entry in group.entries:
        files = {
            int(path.stem.rsplit("-", 1)[1]): path
            for path in runs.glob(f"{entry.config}-[0-9]*.json")
        }
        found[entry] = {
            seed: json.loads(files[seed].read_text(encoding="utf8")) for seed in sorted(files)
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--only", nargs="+", help="configs, without their ending")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where scores are kept")
    given = parser.parse_args()
    group, runs = GROUPS[given.group], given.runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    for command in group.corpora:
        subprocess.run(
            [sys.executable, "-m", "spacy", "project", "run", command, str(ROOT)], check=True
        )
    for seed in given.seeds:
        for entry in group.entries:
            if given.only is None or entry.config in given.only:
                train(entry, seed, runs)
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, one thread. "
        "Figures in percent.",
        "",
        *table(group, measured(group, runs)),
    ]
    write_section(f"learning_{given.group}", group.title, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
