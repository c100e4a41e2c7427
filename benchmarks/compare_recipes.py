"""Evaluate trained recipes on a corpus and print their scores side by side, for project.yml.

    python -m benchmarks compare_recipes corpus/ner/dev.spacy ner_marginals ner_baseline --gpu-id 0

Each pipeline is read from ``training/NAME/model-best``. Its scores go to ``metrics/NAME.json``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys


def commands(arguments: list[str] | None = None) -> list[list[str]]:
    """Return the arguments of ``python -m`` for each evaluation, and for the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare_recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("corpus")
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--gpu-id", type=int, default=-1)
    given = parser.parse_args(arguments)
    metrics = [f"metrics/{name}.json" for name in given.names]
    evaluations = [
        ["spacy", "evaluate", f"training/{name}/model-best", given.corpus, "--output", path]
        for name, path in zip(given.names, metrics)
    ]
    device = ["--gpu-id", str(given.gpu_id)]
    return [
        *(evaluation + device for evaluation in evaluations),
        ["spacy_latent", "evaluate", "compare", *metrics],
    ]


def main() -> None:
    for command in commands():
        subprocess.run([sys.executable, "-m", *command], check=True)


if __name__ == "__main__":
    main()
