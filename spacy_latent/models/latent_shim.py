"""Shim between Thinc and torch, in place of Thinc's own.

In contrast to ``thinc.shims.PyTorchShim`` it has a learning rate for each parameter, and applies
averaged weights to the module. Autocast is used only in training and only on a GPU. The module is
in evaluation mode except during updates. Copies have an id of their own: with the same id, two
modules would share Adam's moments. Weights are stored as plain arrays. The module may be built
later, once its width is known.

Call ``build(width)`` once. Then call in each step ``begin_update(inputs)``, the returned
``backprop(gradients)``, and ``finish_update(optimizer)``. ``predict`` only needs ``build``.
"""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import srsly
import torch
from thinc.api import (
    Optimizer,
    PyTorchGradScaler,
    PyTorchShim,
    get_torch_default_device,
    torch2xp,
    xp2torch,
)
from thinc.shims import Shim
from torch import Tensor, nn

from spacy_latent.errors import LatentError, LatentWarning, check_not_negative, check_number
from spacy_latent.kernels.core.pool import one_torch_thread
from spacy_latent.models.autograd_recording import recording_if
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.stages import Staged, unreached
from spacy_latent.structures.derivatives import recording

# Width of the input, or widths of its parts if a module reads them separately.
Width = int | list[int]
ModuleBuilder = Callable[[Any], nn.Module]

# Greatest number of input values for which torch's threads save no time.
SMALL = 1 << 20
# Largest saved width that is accepted although all dimensions of the weights are smaller.
WIDE = 4096


def _threads_for(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    small = tensor.device.type == "cpu" and tensor.numel() <= SMALL
    return one_torch_thread() if small else contextlib.nullcontext()


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """Make weights in the type of Thinc's vectors, whatever torch's default is in this process."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def why_no_gpu_kernels() -> str | None:
    """Return why structures cannot be solved on a GPU, as a message; None if they can."""
    from spacy_latent.kernels.gpu import dispatch

    return dispatch.why_unusable()


def _address(array: Any) -> int:
    """Return the address of the data of an array of NumPy or CuPy."""
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0]
    return array.data.ptr


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the training of a latent layer; see ``build_latent_tok2vec_v1``.

    Args:
        scorer_learn_rate: multiplier of the learning rate for the scorer's weights.
        temperature: divisor of the scores at each update.
        dropout: rate of every dropout of the module; None to follow ``training.dropout``.
        mixed_precision: half precision in training on a GPU.
    """

    scorer_learn_rate: float
    temperature: Temperature
    dropout: float | None
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        check_not_negative("The latent layer", scorer_learn_rate=self.scorer_learn_rate)
        check_number(
            "The latent layer",
            lambda rate: 0 <= rate < 1,
            "a number in [0, 1)",
            or_null=True,
            dropout=self.dropout,
        )

    @property
    def attrs(self) -> dict[str, float]:
        """Attributes for the Thinc model.

        ``training.dropout`` overwrites every attribute named ``dropout_rate``, so a fixed rate has
        another name.
        """
        if self.dropout is None:
            return {"dropout_rate": 0.0}
        return {"fixed_dropout_rate": self.dropout}


class LatentShim(PyTorchShim):
    """Shim around a torch module that is built for the width of its input.

    Args:
        build: function that makes the module for a Width; picklable.
        training: settings of the training. The schedule of the temperature advances once per update
            of the weights.
        learn_rates: multipliers of the learning rate, by prefix of the parameter's name.
        staged: objects that may have stages of training, such as the module's structure and
            estimator. They are arguments in addition to ``build``, because the check for stages
            that training never reaches runs before there is a module.
        has_layer: whether the module has a latent layer, ``latent``, with structure and estimator.
    """

    def __init__(
        self,
        build: ModuleBuilder,
        training: TrainingSettings,
        *,
        learn_rates: dict[str, float],
        staged: Sequence[Staged] = (),
        has_layer: bool = True,
    ) -> None:
        super().__init__(
            None,
            config={"width": None, "updates": 0, "temperature": training.temperature.at(0)},
            grad_scaler=PyTorchGradScaler(training.mixed_precision and torch.cuda.is_available()),
        )
        self._build = build
        self._learn_rates = learn_rates
        self._training = training
        self.staged = tuple(staged)
        self.has_layer = has_layer

    @property
    def is_built(self) -> bool:
        """True if there is a module, because its input width is known."""
        return self._model is not None

    @property
    def module(self) -> Any:
        """Torch module. Reading it before it is built is an error."""
        if self._model is None:
            raise LatentError(
                "The latent layer has no weights yet because its input width is not known. Call "
                "nlp.initialize() with examples, or load a trained pipeline."
            )
        return self._model

    @property
    def learn_rates(self) -> dict[str, float]:
        """Multipliers of the learning rate, by prefix of the parameter's name."""
        return dict(self._learn_rates)

    @property
    def updates(self) -> int:
        """Number of updates of the weights; stored with them."""
        return self.cfg["updates"]

    @property
    def temperature(self) -> float:
        """Divisor of the scores in the present update."""
        return self.cfg["temperature"]

    def build(self, width: Width) -> None:
        """Draw new weights for an input of ``width`` features, and restart the schedule."""
        self.cfg = {"width": width, "updates": 0, "temperature": self._training.temperature.at(0)}
        # Weights made in inference mode could not be trained.
        with recording(), _float32():
            self._model = self._build(width).to(get_torch_default_device()).eval()

    @property
    def device(self) -> torch.device:
        """Device of the module, or torch's default if it has no parameters."""
        parameter = next(self.module.parameters(), None)
        return get_torch_default_device() if parameter is None else parameter.device

    def predict(self, inputs: Any) -> Any:
        with torch.no_grad(), _threads_for(inputs[0]):
            return self.module(*inputs)

    def begin_update(self, inputs: Any) -> Any:
        """Run the module in training.

        The output of the module is ``(results, penalty, details)``. The results are a tuple of
        tensors. The penalty is a scalar that is added to the objective, or None.

        Args:
            inputs: arguments of the module. inputs[0] is the tensor that gets a gradient. It must
                be made while torch records operations.

        Returns:
            The output, and a callback from the gradients of the results to the gradient of
            inputs[0].

        Raises:
            LatentError: if the output does not depend on inputs[0] by operations that torch has
                recorded.
        """
        module = self.module
        cast = self._training.mixed_precision and self.device.type == "cuda"
        module.train()
        try:
            with recording(), torch.autocast("cuda", enabled=cast), _threads_for(inputs[0]):
                results, penalty, details = module(*inputs)
        finally:
            module.eval()
        if not any(result.requires_grad for result in results):
            _refuse_no_gradient("anything that could be trained")

        def backprop(gradients: Sequence[Tensor]) -> Tensor:
            pairs = [
                (result, gradient.to(result))
                for result, gradient in zip(results, gradients, strict=True)
                if result.requires_grad
            ]
            if penalty is not None:
                pairs.append((penalty, torch.ones_like(penalty)))
            roots, given = zip(*pairs)
            scaled = self._grad_scaler.scale(given, inplace=False)
            # Gradients of earlier batches are unscaled already, and must not be unscaled twice.
            earlier = [(parameter, parameter.grad) for parameter in module.parameters()]
            for parameter, _ in earlier:
                parameter.grad = None
            with recording(), _threads_for(inputs[0]):
                torch.autograd.backward(roots, scaled)
            held = [p.grad for p in module.parameters() if p.grad is not None]
            received = inputs[0].grad
            if received is None:
                _refuse_no_gradient("the vectors of the embedder")
            if self._grad_scaler.unscale([*held, received]):
                received.zero_()
            for parameter, gradient in earlier:
                if gradient is not None:
                    new = parameter.grad
                    parameter.grad = gradient if new is None else gradient.add_(new)
            return received

        return (results, penalty, details), backprop

    def accumulate(self, objective: Callable[[Any], Tensor], like: Tensor) -> None:
        """Add the gradient of ``objective``, without dropout, to the gradients of the weights.

        Args:
            objective: function of the module.
            like: an input of the same size as the objective's, by which the number of threads is
                chosen.
        """
        with _threads_for(like), recording_if(True):
            objective(self.module).backward()

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights and advance the schedules, if the module is built."""
        if self.is_built:
            with torch.inference_mode(False), torch.no_grad():
                self._finish_update(optimizer)

    def _finish_update(self, optimizer: Optimizer) -> None:
        updated = False
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None:
                continue
            updated = True
            if not self._grad_scaler.found_inf:
                # Thinc's optimizers read the length of a gradient, and a scalar has none.
                weights: Any = torch2xp(torch.atleast_1d(parameter.data))
                gradient: Any = torch2xp(torch.atleast_1d(parameter.grad))
                scale = self._learn_rate(name)
                made = _step(optimizer, scale, (self.id, name), weights, gradient)
                # Thinc's optimizers write to the weights that they receive, which are the
                # parameter's own, except on devices for which Thinc makes a copy.
                if _address(made) != parameter.data_ptr():
                    moved = xp2torch(made, device=parameter.device)
                    # If it became parameter.data, it would keep the array alive, which keeps the
                    # earlier data alive, and so on back to the first step.
                    parameter.data.copy_(moved.view_as(parameter))
            # None, not zero: a parameter without a gradient must not move by momentum alone.
            parameter.grad = None
        if updated:
            self._grad_scaler.update()
            self.cfg["updates"] += 1
            self.cfg["temperature"] = self._training.temperature.at(self.cfg["updates"])

    def _learn_rate(self, name: str) -> float:
        for prefix, scale in self._learn_rates.items():
            if name.startswith(prefix):
                return scale
        return 1.0

    @contextlib.contextmanager
    def use_params(self, params: Any) -> Iterator[None]:
        """Replace the weights by these averages inside the context.

        Args:
            params: arrays by id of the shim and name of the parameter.
        """
        backup = {}
        if self.is_built:
            for name, parameter in self.module.named_parameters():
                if (self.id, name) in params:
                    backup[parameter] = parameter.data
                    average = xp2torch(params[(self.id, name)], device=parameter.device)
                    with torch.inference_mode(False):
                        parameter.data = average.view_as(parameter).clone()
        try:
            yield
        finally:
            for parameter, data in backup.items():
                parameter.data = data

    def copy(self) -> "LatentShim":
        """Return a copy with an id of its own."""
        copied = copy.deepcopy(self)
        copied.take_new_id()
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "LatentShim":
        # spaCy copies a model for rehearsal, in any mode of torch.
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        with recording():
            vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def take_new_id(self) -> None:
        """Take a new id, so that an optimizer's state for the old id no longer applies."""
        with Shim.global_id_lock:
            Shim.global_id += 1
            self.id = Shim.global_id

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the module to "cpu", or to the "gpu" of this number."""
        if device_type not in ("cpu", "gpu"):
            raise LatentError(f"The device is {device_type!r}; expected 'cpu' or 'gpu'.")
        device = torch.device("cpu") if device_type == "cpu" else torch.device("cuda", device_id)
        if self.is_built:
            self.module.to(device)
        self._grad_scaler.to_(device)

    def to_bytes(self) -> bytes:
        """Return the settings and the weights, as plain arrays, as bytes."""
        state = {}
        if self.is_built:
            state = {k: v.cpu().numpy() for k, v in self.module.state_dict().items()}
        return srsly.msgpack_dumps({"config": self.cfg, "state": state})

    def from_bytes(self, data: bytes) -> "LatentShim":
        """Load settings and weights, and build the module for their width.

        Raises:
            LatentError: if the weights do not fit the config.
        """
        message = srsly.msgpack_loads(data)
        width = message["config"]["width"]
        check_stored_width(width, message["state"])
        if width is not None and (not self.is_built or self.cfg["width"] != width):
            self.build(width)
        self.cfg = message["config"]
        if self._training.temperature.constant:
            # The config may have changed since it was saved. A schedule continues where training
            # ended.
            self.cfg["temperature"] = self._training.temperature.at(0)
        if self.is_built:
            state = {k: torch.as_tensor(v.copy()) for k, v in message["state"].items()}
            try:
                self.module.load_state_dict(state)
            except RuntimeError as error:
                raise LatentError(
                    "The stored weights do not fit the latent layer that the config describes: "
                    f"{error}. Load them with the config that they were trained with."
                ) from None
            self._warn_of_unreached_stages()
        return self

    def _warn_of_unreached_stages(self) -> None:
        # Do not warn when saving: training saves at each evaluation, long before its last stage.
        for staged in self.staged if self.updates else ():
            clause = unreached(staged, self.updates)
            if clause:
                warnings.warn(
                    f"The latent layer was saved after {self.updates} updates of training, and "
                    f"{clause}, which is used for predictions and is untrained. Train longer, or "
                    f"with a lower {staged.end_setting}.",
                    LatentWarning,
                    stacklevel=2,
                )


def _step(
    optimizer: Optimizer, scale: float, key: tuple[int, str], weights: Any, gradient: Any
) -> Any:
    """Return the weights after a step at ``scale`` times the optimizer's learning rate."""
    if not isinstance(optimizer, Optimizer):
        # nlp.rehearse passes a plain function.
        return optimizer(key, weights, gradient)[0]
    if not getattr(optimizer, "use_radam", False):
        return optimizer(key, weights, gradient, lr_scale=scale)[0]
    # Thinc's RAdam ignores lr_scale.
    rate = optimizer.learn_rate
    optimizer.learn_rate = rate * scale
    try:
        return optimizer(key, weights, gradient)[0]
    finally:
        optimizer.learn_rate = rate


def _refuse_no_gradient(what: str) -> NoReturn:
    raise LatentError(
        f"torch has recorded no gradient from the output of the latent layer to {what}, so these "
        "would learn nothing. If you wrote the scorer, composer or estimator, remove detach(), "
        ".data, NumPy operations and torch.no_grad() from it."
    )


def check_stored_width(width: Any, state: Mapping[str, Any]) -> None:
    """Raise an error for a width that no embedder has, before memory is allocated.

    Without this check, a damaged file could request a module of any size.
    """
    widths = width if isinstance(width, list) else [] if width is None else [width]
    largest = max((size for array in state.values() for size in array.shape), default=0)
    if any(
        isinstance(one, bool) or not isinstance(one, int) or not 0 < one <= max(largest, WIDE)
        for one in widths
    ):
        raise LatentError(
            f"The saved latent layer has an input of {width!r} features, and no axis of its "
            f"weights is longer than {largest}. The file was damaged: copy or save the whole "
            "directory again."
        )
