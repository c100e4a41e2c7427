"""Public data sets of the example projects, with their origin and checksums.

Every file is checked here before it is converted, since ``spacy project assets`` prints a checksum
mismatch and still exits with 0.
"""

from __future__ import annotations

import hashlib
import os
import random
import zipfile
from dataclasses import dataclass
from pathlib import Path

from spacy_latent.errors import LatentError

DATA_VARIABLE = "SPACY_LATENT_DATA"


@dataclass(frozen=True)
class Source:
    """File of a public data set.

    Attributes:
        folder: folder under the directory named by SPACY_LATENT_DATA.
        archive: name of the downloaded zip that contains it, or "" if it is downloaded as it is.
    """

    folder: str
    name: str
    sha256: str
    archive: str = ""


def published(table: str) -> dict[str, Source]:
    """Return the sources of a data set by their keys.

    Args:
        table: first the folder, and the archive if there is one; then a line for each source with
            its key, sha256 and name.
    """
    (folder, *archive), *rows = (line.split() for line in table.strip().splitlines())
    return {key: Source(folder, name, sha256, *archive) for key, sha256, name in rows}


def read_source(source: Source, downloads: Path) -> str:
    """Return the text of a source, from SPACY_LATENT_DATA if set, else from ``downloads``.

    Raises:
        LatentError: if the file is missing or is not the published one.
    """
    data = os.environ.get(DATA_VARIABLE)
    path = Path(data) / source.folder / source.name if data else downloads / source.name
    if source.archive and not data:
        path = downloads / source.archive
        content = _member(path, source.name)
    else:
        content = path.read_bytes() if path.is_file() else None
    if content is None:
        raise LatentError(
            f"{path} does not exist or does not hold {source.name}. Download the data with "
            f"'python -m spacy project assets', or set {DATA_VARIABLE} to a directory that has "
            f"{source.folder}/{source.name}."
        )
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise LatentError(
            f"{path}: {source.name} has the sha256 {found}, and the published file has "
            f"{source.sha256}. Delete it and run 'python -m spacy project assets' again."
        )
    return content.decode("utf8")


def check_share(name: str, share: float, repeats: int) -> None:
    """Refuse invalid shares and repeats of annotated docs."""
    import typer

    if not 0 < share <= 1 or repeats < 1:
        raise typer.BadParameter(
            f"{name} is {share} and repeats {repeats}; expected a share above 0 and up to 1, and "
            "repeats of at least 1."
        )


def seeded_share(count: int, share: float, seed: int) -> set[int]:
    """Draw the indices of a share of ``count`` items, at least one, with a seed."""
    size = min(max(1, round(share * count)), count)
    return set(random.Random(seed).sample(range(count), size))


def _member(path: Path, name: str) -> bytes | None:
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if Path(member).name == name:
                    return archive.read(member)
    except Exception as error:
        # Depending on the damage, the error comes from zlib, from the module of another compression
        # or from the operating system, or says that the archive is encrypted.
        raise LatentError(
            f"{path} is not a whole zip file ({type(error).__name__}: {error}). Delete it and run "
            "'python -m spacy project assets' again."
        ) from error
    return None
