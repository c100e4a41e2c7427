"""Train recipes one after another, for project.yml: ``spacy train`` with each of their configs.

    python -m benchmarks train_recipes sentiment_spigot sentiment_baseline --gpu-id 0 --seed 1
    python -m benchmarks train_recipes mine=ner_crf --paths.train corpus/mine/train.spacy

A recipe is trained into ``training/RECIPE``, or into ``training/NAME`` if it is given as
NAME=RECIPE. Other options override settings of the configs, as in ``spacy train``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.recipes import names, path_of


def commands(arguments: list[str] | None = None) -> list[list[str]]:
    """Return the arguments of ``python -m spacy`` for each recipe."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks train_recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    parser.add_argument("--gpu-id", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=0)
    given, settings = parser.parse_known_args(arguments)
    if len(settings) % 2 or not all(setting.startswith("--") for setting in settings[::2]):
        parser.error(f"{' '.join(settings)}: expected recipes, then settings as --name value")
    unknown = [recipe for recipe in given.recipes if recipe.rpartition("=")[2] not in names()]
    if unknown:
        parser.error(f"no recipe: {', '.join(unknown)}; python -m benchmarks recipes names all")
    trained = []
    for recipe in given.recipes:
        name, _, config = recipe.rpartition("=")
        output = f"training/{name or config}"
        options = ["--gpu-id", str(given.gpu_id), "--system.seed", str(given.seed)]
        trained.append(
            ["train", str(path_of(config)), "--output", output, *options, *settings],
        )
    return trained


def main() -> None:
    for command in commands():
        subprocess.run([sys.executable, "-m", "spacy", *command], check=True)


if __name__ == "__main__":
    main()
