"""Follow docs/production.md on Linux, without Docker.

    python -m benchmarks container training/container

This builds a wheel of this checkout, installs it in a new environment in the folder, trains a small
``crf_ner`` and packages it as a wheel. This second wheel is installed without an index, and warmed
up. The pipeline then runs by its name on a read-only root, without a network, a home and a
compiler.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import venv
from datetime import date
from pathlib import Path

from benchmarks.sections import write_section

ROOT = Path(__file__).parents[1]
NAME = "en_my_pipeline"
TORCH = "torch==2.13.0+cpu"
INDEX = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
SAVE = """
import spacy, sys
from spacy.training import Example
nlp = spacy.blank("en")
pipe = nlp.add_pipe("crf_ner", config={"annotate": "probabilities"})
for label in ("PER", "ORG", "LOC"):
    pipe.add_label(label)
optimizer = nlp.initialize()
doc = nlp.make_doc("Ada Lovelace met Charles Babbage in London.")
example = Example.from_dict(doc, {"entities": [(0, 12, "PER"), (17, 32, "PER")]})
for _ in range(20):
    nlp.update([example], sgd=optimizer)
nlp.to_disk(sys.argv[1])
"""
SERVE = """
import json, os, shutil, socket, sys, time, warnings
from pathlib import Path
start = time.process_time()
import spacy, spacy_latent, torch
from spacy_latent.errors import LatentWarning
imported = time.process_time()
assert "HOME" not in os.environ and not any(map(shutil.which, ("cc", "gcc", "clang")))
for _, name in socket.if_nameindex():
    assert name == "lo" or Path("/sys/class/net", name, "operstate").read_text().strip() == "down"
# A kernel that is compiled here, for want of stored machine code, warns.
warnings.simplefilter("error", LatentWarning)
nlp = spacy.load(sys.argv[1])
loaded = time.process_time()
for folder in (nlp.path, Path(spacy_latent.__file__).parent):
    assert folder.is_dir() and not os.access(folder, os.W_OK), folder
text = "Ada Lovelace met Charles Babbage in London."
assert nlp(text).ents
first = time.process_time()
for _ in range(200):
    nlp(text)
later = (time.process_time() - first) / 200
status = Path("/proc/self/status").read_text()
memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
told = {"import": imported - start, "load": loaded - imported, "first call": first - loaded}
print(json.dumps({**told, "later calls": later, "memory": memory}))
"""
# Make the files look as in `docker run --read-only --tmpfs /tmp --network none`. Some mounts of the
# system cannot be made read-only, and have none of our files.
CONTAINER = (
    "mount --make-rprivate / && while read -r _ place _; do "
    'mount -o remount,bind,ro "$place" 2>/dev/null; done < /proc/self/mounts; '
    'mount -t tmpfs tmpfs /tmp && cd / && exec env -i PATH=/none "$@"'
)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def contained(python: Path, model: Path | str, *environment: str) -> dict[str, float]:
    """Return processor seconds and megabytes of memory of a pipeline in the container.

    Args:
        python: the interpreter of the environment.
        model: a folder that is not in /tmp, or the name of an installed pipeline.
        environment: variables, as NAME=VALUE.
    """
    ran = in_container("OMP_NUM_THREADS=1", *environment, str(python), "-c", SERVE, str(model))
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    return json.loads(ran.stdout)


def package(python: Path, model: Path, folder: Path) -> Path:
    """Build the wheel of a saved pipeline by ``spacy package`` in a folder, and return its path."""
    folder.mkdir(exist_ok=True)
    options = ("--force", "--name", NAME.partition("_")[2], "--build", "wheel")
    run(python, "-I", "-m", "spacy", "package", model, folder, *options)
    return next(folder.glob("*/dist/*.whl"))


def in_container(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command, with variables before it, on a root of which only /tmp is writable."""
    return subprocess.run(
        ["unshare", "-rmn", "bash", "-c", CONTAINER, "bash", *command],
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="not in /tmp, which the container replaces")
    folder = parser.parse_args().folder.resolve()
    if Path("/tmp") in folder.parents:
        parser.error(f"{folder} is in /tmp, which the container replaces. Give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    venv.create(folder / "env", with_pip=True)
    python, source = folder / "env/bin/python", folder / "source.tar.gz"
    # -I ignores PYTHONPATH, which might name this checkout.
    pip = (python, "-I", "-m", "pip", "--quiet")
    # Pip builds an archive in another folder, so that this checkout gets no files of a build.
    run("git", "-C", ROOT, "archive", "--prefix=source/", "--output", source, "HEAD")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder / "wheels", source)
    # As in the Makefile, a configured index is tried first.
    try:
        run(*pip, "install", TORCH)
    except subprocess.CalledProcessError:
        run(*pip, "install", TORCH, *INDEX)
    run(*pip, "install", "--find-links", folder / "wheels", "spacy-latent")
    stored = ("NUMBA_CPU_NAME=generic", f"NUMBA_CACHE_DIR={folder / 'kernels'}")
    run(python, "-I", "-c", SAVE, folder / "model")
    run(*pip, "install", "build")
    wheel = package(python, folder / "model", folder / "packages")
    # This fails unless all requirements of the wheel are installed.
    run(*pip, "install", "--no-index", wheel)
    run("env", *stored, python, "-I", "-m", "spacy", "latent", "warm-up", NAME)
    for name in ("env", "kernels"):
        run("du", "--summarize", "--human-readable", folder / name)
    told = contained(python, NAME, *stored)
    lines = [
        f"{date.today()}, spacy-latent and `{NAME}` installed from wheels. Seconds of a processor, "
        "one thread, and megabytes of memory, where the root can only be read, without a network, "
        "a home and a compiler.",
        "",
        f"| {' | '.join(told)} |",
        "|---:" * len(told) + "|",
        f"| {' | '.join(f'{value:.3g}' for value in told.values())} |",
    ]
    write_section("container", "A pipeline's wheel in a container", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
