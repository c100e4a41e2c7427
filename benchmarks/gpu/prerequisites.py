"""Check what all later steps need: packages, entry points, and a kernel that can be launched."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu.machine import Machine, Record

PACKAGES = ("torch", "spacy", "thinc", "triton", "numba", "cupy-cuda12x", "cupy-cuda13x")
GROUPS = ("spacy_factories", "spacy_architectures", "spacy_misc")


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def run(machine: Machine, record: Record) -> None:
    record(gpu=machine.name(), versions=versions())
    needed = ("spacy", "thinc", "cupy", "pytest")
    # In a dry run, the simulated cupy is in sys.modules, and has no file that find_spec() finds.
    missing = [name for name in needed if not (name in sys.modules or find_spec(name))]
    record(missing=missing)
    counts = {
        group: sum(point.value.startswith("spacy_latent") for point in entry_points(group=group))
        for group in GROUPS
    }
    record(entry_points=counts)
    if missing or not all(counts.values()):
        raise SystemExit(f"Not here: {', '.join(missing) or 'the entry points of spacy_latent'}.")
    numbers = torch.arange(4, device=machine.device).float()
    assert float((numbers @ numbers).cpu()) == 14.0
    if machine.pretended:
        record(kernel="a pretended GPU launches none")
        return
    from spacy_latent.kernels.gpu import dispatch

    # dispatch.why_unusable() would hide the traceback of an error, which is useful here.
    trouble = dispatch.trouble()
    if trouble is not None:
        raise SystemExit(f"A small kernel: {trouble}.")
    record(kernel="launched")


def report(records: list[dict[str, Any]]) -> list[str]:
    found = {key: value for line in records for key, value in line.items()}
    counts = found.get("entry_points", {})
    said = ", ".join(f"{counts[group]} in {group}" for group in GROUPS if group in counts)
    return [
        f"Not installed: {', '.join(found.get('missing', [])) or 'nothing'}. Entry points: "
        f"{said or 'none'}. A small kernel: {found.get('kernel', 'not launched')}."
    ]
