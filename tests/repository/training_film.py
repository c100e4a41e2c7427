"""Write ``docs/images/training_film.svg``, in which the tree of one expression is learned.

This trains ``configs/demo.cfg`` on the corpus of ``make demo``, with a logger that draws.

python -m tests.repository.training_film
"""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from spacy.cli.train import train
from spacy.util import load_config

from tests.repository.drawings import DOCS
from tests.repository.pages import ROOT

PICTURE = DOCS / "images" / "training_film.svg"
EXPRESSION = "[MAX 2 [MIN 9 4 ] 3 ]"
FRAMES = 16


def main() -> None:
    with TemporaryDirectory() as name:
        place = Path(name)
        config = load_config(ROOT / "configs" / "demo.cfg", interpolate=False)
        config["training"]["eval_frequency"] = config["training"]["max_steps"] // (FRAMES - 1)
        # A small development set suffices, since its scores are not shown.
        config["corpora"]["dev"]["limit"] = 200
        config["training"]["logger"] = {
            "@loggers": "spacy-latent.StructureLogger.v1",
            "drawings": str(place / "film.html"),
            "sentences": [EXPRESSION],
            "frames": FRAMES,
        }
        config.to_disk(place / "film.cfg")
        train(place / "film.cfg")
        (film,) = place.glob("*.svg")
        copyfile(film, PICTURE)


if __name__ == "__main__":
    main()
