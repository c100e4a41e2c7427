"""Use of GPU kernels, and the fallback to the CPU if they fail or give wrong results."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from spacy_latent.errors import LatentWarning
from spacy_latent.kernels.core.status import TOO_LARGE
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.structures.linear_chain import LinearChain
from tests.device.answering_kernels import answer
from tests.device.batches import batch, everything


def found(*values: float, status: int = 0) -> dispatch.Found:
    return dispatch.Found(torch.tensor([values]), None, np.full(1, status, dtype=np.int8))


def test_zeros_and_nan_confirm_nothing() -> None:
    def agree(own: dispatch.Found, other: dispatch.Found, score: float = 1.0) -> bool | None:
        return own.agrees(other, torch.tensor([[[-torch.inf, 0.0], [torch.nan, score]]]))

    assert agree(found(5e-6, -3e-6), found(5e-6, -3e-6)) is True
    assert agree(found(5e-6, 0.0), found(-5e-6, 0.0)) is False
    assert agree(found(1.0), found(torch.nan)) is None
    assert agree(found(torch.nan, 1.0), found(2.0, 1.0)) is False
    assert agree(found(0.0), found(0.0)) is None
    assert agree(found(1.0, status=1), found(1.0)) is False
    assert agree(found(1.0, status=1), found(2.0, status=1)) is None
    # A report of too large scores is only accepted if they are large.
    assert agree(found(1.0, status=TOO_LARGE), found(2.0), 1e10) is None
    assert agree(found(1.0, status=TOO_LARGE), found(2.0), 1e3) is False


def refuse(*_: Any) -> None:
    raise RuntimeError("no compiler")


def wrong(kernels: Any, operation: int, call: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dispatch, "on_device", lambda scores: False)
        answer(kernels, operation, call)
    call.result.flatten()[0] += 1


@pytest.mark.parametrize(("launch", "said"), [(refuse, "no compiler"), (wrong, "first result")])
def test_what_a_kernel_cannot_do_the_cpu_does(
    launch: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one warning, the CPU computes all results."""
    structure = LinearChain()
    scores, lengths = batch(structure, torch.float64)
    expected = everything(structure, scores, lengths)
    monkeypatch.setattr(dispatch, "_failed", set())
    monkeypatch.setattr(dispatch, "_confirmed", set())
    monkeypatch.setattr(dispatch, "on_device", lambda scores: True)
    monkeypatch.setattr(dispatch, "LEAST_ITEMS", 1)
    monkeypatch.setattr(dispatch, "launch", launch)
    with pytest.warns(LatentWarning, match=said) as warned:
        results = everything(structure, scores, lengths)
    assert len(warned) == 1
    for ours, theirs in zip(results, expected):
        assert torch.equal(ours, theirs)


def test_what_is_in_the_way_of_kernels_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        return str(dispatch.why_unusable.__wrapped__())

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(dispatch.SWITCH, "0")
    assert dispatch.SWITCH in said()
    monkeypatch.delenv(dispatch.SWITCH)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "triton", None)
        assert "Triton" in said() and "cannot be imported" in said()
    # Simulate the failure of a small kernel, as without a compiler.
    monkeypatch.setitem(sys.modules, "triton", pytest)
    monkeypatch.setitem(sys.modules, "spacy_latent.kernels.gpu.probe", None)
    assert "a small kernel could not be compiled and run" in said()


def test_without_a_gpu_nothing_is_launched() -> None:
    if not torch.cuda.is_available():
        assert not dispatch.usable()
        assert dispatch.why_unusable.__wrapped__() == "torch finds no GPU"
    assert not dispatch.on_device(torch.zeros(1))
