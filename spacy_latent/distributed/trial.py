"""``python -m spacy_latent.distributed.trial PARENT train CONFIG ...``: a command of spaCy's, that
ends with the process that started it, also where that is killed.

Else the training would go on, beside the one that another worker begins in its place.
"""

from __future__ import annotations

import os
import sys
import threading
import time

SECONDS = 0.5


def watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os._exit(1)


def main() -> None:
    parent = int(sys.argv.pop(1))
    # Where the system tells no child that its parent has gone, it goes on.
    if os.name == "posix":
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    from spacy.cli import setup_cli

    setup_cli()


if __name__ == "__main__":
    main()
