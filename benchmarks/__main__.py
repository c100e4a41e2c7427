from __future__ import annotations

import sys
from importlib import import_module

PROGRAMS = (
    "inference",
    "attention",
    "profile",
    "pipeline",
    "steps",
    "training",
    "ranks",
    "samples",
    "scaling",
    "footprint",
    "container",
    "entities",
    "calibration",
    "calibration_rules",
    "precision_promise",
    "explain",
    "entity_curves",
    "evidence",
    "added_label",
    "accept_reject",
    "label_models",
    "incomplete_picture",
    "parsing",
    "english",
    "spans",
    "learning",
    "induced_trees",
    "recipes",
    "ablations",
    "gradients",
    "signal_game",
    "report",
    "gpu",
    "headlines",
    "train_recipes",
    "compare_recipes",
)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(f"usage: python -m benchmarks {' | '.join(PROGRAMS)} [--help]")
    import_module(f"benchmarks.{sys.argv.pop(1)}").main()


if __name__ == "__main__":
    main()
