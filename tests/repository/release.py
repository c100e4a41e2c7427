"""Check that the version, the changelog and the built files of a release agree with its tag.

python -m tests.repository.release v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?$", re.M)


def version(root: Path = ROOT) -> str:
    text = (root / "spacy_latent" / "__init__.py").read_text(encoding="utf8")
    (found,) = re.findall(r'^__version__ = "([^"]+)"$', text, re.M)
    return found


def releases(root: Path = ROOT) -> dict[str, str]:
    """Return the date of each version in the changelog, newest first, without "Unreleased"."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf8")
    return {name: day for name, day in HEADING.findall(text) if name != "Unreleased"}


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return a sentence for each problem of a release under this tag."""
    own, listed = version(root), releases(root)
    found = []
    if tag != f"v{own}":
        found.append(f"The tag is {tag!r}; the version is {own}, so 'v{own}' is expected.")
    newest = next(iter(listed), None)
    if newest != own:
        found.append(f"The newest release in CHANGELOG.md is {newest}; expected {own}.")
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", listed[own]):
        found.append(f"CHANGELOG.md gives {own} the day {listed[own]!r}; expected year-month-day.")
    for wanted in (f"spacy_latent-{own}-py3-none-any.whl", f"spacy_latent-{own}.tar.gz"):
        if not (root / "dist" / wanted).is_file():
            found.append(f"dist has no {wanted}: run 'make wheel'.")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Say the tag: python -m tests.repository.release v0.1.0")
    wrong = problems(sys.argv[1])
    sys.exit("\n".join(wrong) if wrong else None)
