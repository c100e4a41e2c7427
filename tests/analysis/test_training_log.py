"""Learning curves from both forms of spaCy's console logger."""

from pathlib import Path

import pytest

from spacy_latent.analysis.training_log import read_training_log
from spacy_latent.errors import LatentError

TABLE = """\
ℹ Pipeline: ['latent_encoder', 'textcat']
E    #       LOSS LATEN...  LOSS TEXTCAT  CATS_SCORE  CATS_MICRO_F  SCORE
---  ------  -------------  ------------  ----------  ------------  ------
  0       0           0.00          0.09       15.58         30.70    0.31
  1     500        2940.28         25.80       69.67         70.90    0.71
✔ Saved pipeline to output directory
"""
LINES = """\
{"epoch":0,"step":0,"losses":{"textcat":0.09},"scores":{"cats_score":15.5},"score":0.31}
{"epoch":1,"step":500,"losses":{"textcat":25.8},"scores":{"cats_score":69.6},"score":0.71}
"""


def test_the_table(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TABLE, encoding="utf8")
    first, second = read_training_log(path)
    assert first["step"] == 0 and second["step"] == 500
    assert second["losses"] == {"laten...": 2940.28, "textcat": 25.8}
    assert second["scores"] == {"cats_score": 69.67, "cats_micro_f": 70.9, "score": 0.71}


def test_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(LINES, encoding="utf8")
    _, second = read_training_log(path)
    assert second["losses"] == {"textcat": 25.8}
    assert second["scores"] == {"cats_score": 69.6, "score": 0.71}


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("1 2 3\n{broken\n", encoding="utf8")
    with pytest.raises(LatentError, match="evaluations"):
        read_training_log(path)
    with pytest.raises(LatentError, match="exist"):
        read_training_log(tmp_path / "none")


def test_logs_of_any_program(tmp_path: Path) -> None:
    """Names in JSON lines may have characters that other programs take for line ends.

    Byte order marks and Windows line ends are read too, and UTF-16 is refused.
    """
    path = tmp_path / "train.jsonl"
    lines = LINES.replace("textcat", "a\u2028b\x85").replace("\n", "\r\n")
    path.write_bytes(f"\ufeff{lines}".encode())
    first, second = read_training_log(path)
    assert first["losses"] == {"a\u2028b\x85": 0.09} and second["step"] == 500
    path.write_text(TABLE, encoding="utf-16")
    with pytest.raises(LatentError, match="UTF-16"):
        read_training_log(path)
