"""The page docs/production.md followed on Linux, without Docker.

    python -m benchmarks container training/container

Builds a wheel of this checkout, installs it in a new environment in the folder, saves a small
``crf_ner`` and warms it up. The pipeline then runs where the root can only be read, without a
network, a home and a compiler.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0+cpu"
INDEX = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
SAVE = """
import spacy, sys
nlp = spacy.blank("en")
pipe = nlp.add_pipe("crf_ner", config={"annotate": "probabilities"})
for label in ("PER", "ORG", "LOC"):
    pipe.add_label(label)
nlp.initialize()
nlp.to_disk(sys.argv[1])
"""
SERVE = """
import os, shutil, socket, sys, time, warnings
from pathlib import Path
start = time.process_time()
import spacy, spacy_latent, torch
from spacy_latent.errors import LatentWarning
imported = time.process_time()
for folder in (sys.argv[1], Path(spacy_latent.__file__).parent):
    assert not os.access(folder, os.W_OK), folder
assert "HOME" not in os.environ and not any(map(shutil.which, ("cc", "gcc", "clang")))
for _, name in socket.if_nameindex():
    assert name == "lo" or Path("/sys/class/net", name, "operstate").read_text().strip() == "down"
# A kernel that is compiled here, for want of stored machine code, warns.
warnings.simplefilter("error", LatentWarning)
nlp = spacy.load(sys.argv[1])
loaded = time.process_time()
text = "Ada Lovelace met Charles Babbage in London."
nlp(text)
first = time.process_time()
for _ in range(200):
    nlp(text)
later = (time.process_time() - first) / 200
status = Path("/proc/self/status").read_text()
memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
print(f"import {imported - start:.1f} s, load {loaded - imported:.2f} s, first call "
    f"{first - loaded:.2f} s, later calls {1000 * later:.1f} ms, all of a processor; "
    f"{memory:.0f} MB of memory")
"""
# Files as `docker run --read-only --tmpfs /tmp --network none` shows them. Some mounts of the
# system cannot be changed, and hold nothing of ours.
CONTAINER = (
    "mount --make-rprivate / && while read -r _ place _; do "
    'mount -o remount,bind,ro "$place" 2>/dev/null; done < /proc/self/mounts; '
    'mount -t tmpfs tmpfs /tmp && cd / && exec env -i PATH=/none "$@"'
)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def contained(python: Path, model: Path, *environment: str) -> str:
    """Return what SERVE prints where nothing but /tmp can be written. Model is not in /tmp."""
    ran = in_container("OMP_NUM_THREADS=1", *environment, str(python), "-c", SERVE, str(model))
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    return ran.stdout.strip()


def in_container(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command, with variables before it, where nothing but /tmp can be written."""
    return subprocess.run(
        ["unshare", "-rmn", "bash", "-c", CONTAINER, "bash", *command],
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="not in /tmp, which the container replaces")
    folder = parser.parse_args().folder.resolve()
    if Path("/tmp") in folder.parents:
        parser.error(f"{folder} is in /tmp, which the container replaces. Give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    venv.create(folder / "env", with_pip=True)
    python, source = folder / "env/bin/python", folder / "source.tar.gz"
    # Isolated: PYTHONPATH might name this checkout.
    pip = (python, "-I", "-m", "pip", "--quiet")
    # Pip builds an archive in a folder of its own, and this checkout stays as it is.
    run("git", "-C", ROOT, "archive", "--prefix=source/", "--output", source, "HEAD")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder / "wheels", source)
    # As in the Makefile: from a configured index if one has it.
    try:
        run(*pip, "install", TORCH)
    except subprocess.CalledProcessError:
        run(*pip, "install", TORCH, *INDEX)
    run(*pip, "install", "--find-links", folder / "wheels", "spacy-latent")
    stored = ("NUMBA_CPU_NAME=generic", f"NUMBA_CACHE_DIR={folder / 'kernels'}")
    run(python, "-I", "-c", SAVE, folder / "model")
    run("env", *stored, python, "-I", "-m", "spacy", "latent", "warm-up", folder / "model")
    for name in ("env", "kernels"):
        run("du", "--summarize", "--human-readable", folder / name)
    print(contained(python, folder / "model", *stored))


if __name__ == "__main__":
    main()
