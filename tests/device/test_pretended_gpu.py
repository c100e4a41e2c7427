"""The simulated GPU refuses operations that a real one refuses, and logs transfers and waits."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from spacy_latent.kernels.autograd import operators
from spacy_latent.kernels.core import gpu_transfers
from spacy_latent.structures.projective_tree import ProjectiveTree
from tests.device.pretended_gpu import CUDA, CudaTensor, DeviceError, Log, pretended_gpu


@pytest.fixture
def log() -> Iterator[Log]:
    with pretended_gpu() as log:
        yield log


def vector() -> torch.Tensor:
    return torch.arange(3.0, device=CUDA)


REFUSED: dict[str, Callable[[], object]] = {
    "sum of two devices": lambda: vector() + torch.ones(3),
    "product of two devices": lambda: torch.ones(2, 3) @ vector(),
    "concatenation": lambda: torch.cat([vector(), torch.ones(3)]),
    "numbers without axes, concatenated": lambda: torch.stack([vector()[0], torch.tensor(1.0)]),
    "rows by places on the CPU": lambda: vector().index_select(0, torch.tensor([0])),
    "a mask on the CPU": lambda: vector().masked_fill(torch.tensor([True, False, True]), 0.0),
    "the CPU's by places on the GPU": lambda: torch.ones(3)[torch.tensor([0], device=CUDA)],
    "values of the CPU put in": lambda: vector().index_put_(
        (torch.tensor([0, 1], device=CUDA),), torch.ones(2)
    ),
    "generator for new numbers": lambda: torch.randn(3, device=CUDA, generator=torch.Generator()),
    "generator in place": lambda: vector().exponential_(generator=torch.Generator()),
    "NumPy": lambda: vector().numpy(),
    "NumPy's array": lambda: np.asarray(vector()),
    "NumPy after detach": lambda: vector().detach().numpy(),
    "data of the CPU": lambda: setattr(nn.Linear(2, 2).to(CUDA).weight, "data", torch.ones(2, 2)),
    "lengths on the GPU": lambda: nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 3, 1, device=CUDA), torch.tensor([3, 2], device=CUDA), batch_first=True
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_real_gpu_refuses_raises(log: Log, what: str) -> None:
    with pytest.raises(DeviceError):
        REFUSED[what]()


def test_what_a_real_gpu_takes_passes(log: Log) -> None:
    number = torch.tensor(2.0)
    assert (vector() * number).device == CUDA
    assert torch.where(vector() > 1, vector(), number).tolist() == [2.0, 2.0, 2.0]
    assert vector().to("cpu").device.type == "cpu" and vector().cpu().tolist() == [0.0, 1.0, 2.0]
    same = vector()
    assert same.to(CUDA) is same and same.to("cuda") is same and same.cuda() is same
    assert same.to(torch.float64).dtype == torch.float64
    assert same.to(torch.ones(1, dtype=torch.float64, device=CUDA)).dtype == torch.float64
    assert torch.ones(2).to(same).device == torch.ones(2).cuda().device == CUDA
    assert torch.zeros_like(same, device="cpu").device.type == "cpu"
    assert torch.zeros(2).new_zeros(2, device=CUDA).is_cuda and not torch.zeros(2).is_cuda
    same[1:].mul_(3.0)
    assert same.tolist() == [0.0, 3.0, 6.0]
    assert same[[2, 0]].tolist() == same[np.array([2, 0])].tolist() == [6.0, 0.0]
    same[[0, 1]] = torch.ones(2, device=CUDA)
    assert same.tolist() == [1.0, 1.0, 6.0] and same.new_tensor([5]).tolist() == [5.0]
    same[[]] = 5.0
    assert same[[]].tolist() == [] and same.tolist() == [1.0, 1.0, 6.0]
    assert torch.tensor([[1, 2]], device=CUDA)[:, [1]].tolist() == [[2]]
    assert (same @ torch.ones(3, 2, device=CUDA)).tolist() == [8.0, 8.0]
    column = vector().unsqueeze_(1)
    assert column.shape == (3, 1) and column.t_().shape == (1, 3) and column.tolist() == [[0, 1, 2]]


ASKED: dict[str, tuple[Callable[[], object], str, str]] = {
    "to": (lambda: torch.ones(3).to(CUDA), "up", "_to_copy"),
    "tensor": (lambda: torch.tensor([1, 2], device=CUDA), "up", "_to_copy"),
    "new_tensor": (lambda: vector().new_tensor([1.0]), "up", "_to_copy"),
    "as_tensor": (lambda: torch.as_tensor(np.ones(3), device=CUDA), "up", "_to_copy"),
    "a list as index": (lambda: vector()[[0, 2]], "up", "index"),
    "copy_": (lambda: vector().copy_(torch.ones(3)), "up", "copy_"),
    "assignment": (lambda: vector().__setitem__(slice(2), torch.ones(2)), "up", "copy_"),
    "cpu": (lambda: vector().cpu(), "down", "_to_copy"),
    "copy_ down": (lambda: torch.ones(3).copy_(vector()), "down", "copy_"),
    "item": (lambda: vector()[0].item(), "wait", "_local_scalar_dense"),
    "if": (lambda: bool((vector() > 1).any()), "wait", "_local_scalar_dense"),
    "tolist": (lambda: vector().tolist(), "wait", "tolist"),
    "nonzero": (lambda: vector().nonzero(), "wait", "nonzero"),
    "a mask as index": (lambda: vector()[vector() > 1], "wait", "index by a mask"),
    "unique": (lambda: vector().unique(), "wait", "_unique2"),
    "equal": (lambda: torch.equal(vector(), vector()), "wait", "equal"),
    "inverse": (lambda: torch.eye(2, device=CUDA).inverse(), "wait", "_linalg_check_errors"),
    "synchronize": (lambda: torch.cuda.synchronize(), "wait", "synchronize"),
}


@pytest.mark.parametrize("what", ASKED)
def test_transfers_and_waits_are_logged_once(log: Log, what: str) -> None:
    ask, kind, operation = ASKED[what]
    ask()
    assert [(event.kind, event.operation) for event in log] == [(kind, operation)]


def test_a_transfer_is_logged_with_its_line_and_size(log: Log) -> None:
    scores = torch.ones(2, 3, device=CUDA, dtype=torch.float64)
    gpu_transfers.fetch(scores)
    lines, first = inspect.getsourcelines(gpu_transfers.fetch)
    line = first + next(i for i, text in enumerate(lines) if ".cpu()" in text)
    (event,) = log
    assert event.place == f"kernels/core/gpu_transfers.py:{line}" and event.size == 2 * 3 * 8
    assert log.size("down") == 48 and log.count("down") == 1 and not log.count("up")
    assert event.place in log.lines("down") and not log.lines("up")
    scores.cpu()
    assert log.count("down") == 2 and log.own() == [event]


def test_only_what_is_pinned_goes_up_without_a_wait(log: Log) -> None:
    for source in (torch.ones(3), torch.ones(3).pin_memory(), torch.ones(3, pin_memory=True)[1:]):
        source.to(CUDA, non_blocking=True)
    assert [event.blocking for event in log] == [True, False, False]
    torch.ones(3).pin_memory().to(CUDA)
    vector().to("cpu", non_blocking=True)
    assert [event.blocking for event in log[3:]] == [True, False]


def test_a_module_goes_there_and_back_as_itself(log: Log) -> None:
    module, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(module.state_dict())
    weight = module.weight
    module.to("cuda")
    assert module.weight is weight and isinstance(weight, nn.Parameter) and weight.is_cuda
    vectors = torch.randn(4, 3)
    for which, device in ((module, "cuda"), (twin, "cpu")):
        which(vectors.to(device)).square().sum().backward()
    assert isinstance(weight.grad, CudaTensor)
    torch.testing.assert_close(weight.grad.cpu(), twin.weight.grad)
    copied = copy.deepcopy(module)
    assert isinstance(copied.weight, CudaTensor) and isinstance(copied.weight, nn.Parameter)
    assert copied.weight is not weight and torch.equal(copied.weight, weight)
    weight.data = torch.zeros(2, 3, device=CUDA)
    assert not weight.any() and copied.weight.any()
    assert not pickle.loads(pickle.dumps(weight.detach())).any()
    weight.grad = None
    module.to("cpu")
    assert module.weight is weight and type(weight) is nn.Parameter and not weight.any()


def test_weights_are_read_into_those_on_the_gpu(log: Log) -> None:
    """Weights are loaded into the same objects, since an LSTM keeps weak references to them."""
    module, other = nn.LSTM(2, 3).to(CUDA), nn.LSTM(2, 3)
    kept = module.weight_ih_l0
    module.load_state_dict(other.state_dict())
    assert module.weight_ih_l0 is kept and torch.equal(kept.cpu(), other.weight_ih_l0)
    assert module(torch.ones(1, 2, device=CUDA))[0].is_cuda
    module.cpu()
    assert torch.equal(module(torch.ones(1, 2))[0], other(torch.ones(1, 2))[0])


def test_gradients_come_back_to_where_they_belong(log: Log) -> None:
    below = torch.ones(3, requires_grad=True)
    above = below.to(CUDA)
    (above * above).sum().cpu().backward()
    assert type(below.grad) is torch.Tensor and below.grad.tolist() == [2.0, 2.0, 2.0]
    assert log.count("up") == 2 and log.count("down") == 2


def test_it_leaves_nothing_behind() -> None:
    kept = torch.tensor, torch.Tensor.to, operators.is_traced
    with pretended_gpu() as log:
        torch.ones(2).cuda()
        assert torch.cuda.is_available()
    assert len(log) == 1 and not torch.cuda.is_available()
    assert kept == (torch.tensor, torch.Tensor.to, operators.is_traced)
    assert not torch.__future__.get_swap_module_params_on_conversion()
    assert "to" not in vars(torch.Tensor)


def test_what_an_operator_of_the_package_moves_is_logged(log: Log) -> None:
    """Inside of an operator torch passes on whole operations that it decomposes elsewhere."""
    scores = torch.zeros(2, 4, 4, device=CUDA)
    lengths = torch.full((2,), 3, device=CUDA)
    log.clear()
    ProjectiveTree().log_partition(scores, lengths)
    assert log.size("down") >= scores.numel() * scores.element_size()
