from __future__ import annotations

import sys

USAGE = "python -m benchmarks inference [--quick] | pipeline | gpu"


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in ("inference", "pipeline", "gpu"):
        sys.exit(f"usage: {USAGE}")
    program = sys.argv.pop(1)
    if program == "pipeline":
        from benchmarks.pipeline import main as run
    elif program == "inference":
        from benchmarks.inference import main as run
    else:
        from benchmarks.gpu import main as run
    run()


if __name__ == "__main__":
    main()
