"""Command of spaCy that ends with its parent process, even if the parent is killed.

``python -m spacy_latent.distributed.trial PARENT train CONFIG ...`` runs it. An orphaned training
would continue while another worker trains the same cell again.
"""

from __future__ import annotations

import os
import sys
import threading
import time

SECONDS = 0.5


def watch(parent: int) -> None:
    """End this process once ``parent`` is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os._exit(1)


def main() -> None:
    """Run a command of spaCy; the first argument is the id of the parent process."""
    parent = int(sys.argv.pop(1))
    # The training continues on systems on which a child cannot detect the end of its parent.
    if os.name == "posix":
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    from spacy.cli import setup_cli

    setup_cli()


if __name__ == "__main__":
    main()
