# SPDX-License-Identifier: BSD-3-Clause
"""A quantized model tried on a sample: what cannot work is found before anybody needs it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.layers.guards.state import Snapshot, buffers_kept
from blockscale.layers.layer import QLayer
from blockscale.layers.parameters.hold import held


def device_of(model: nn.Module) -> torch.device:
    """Where the first parameter or buffer of a model is that has numbers; the meta device where
    none has, and the CPU where there are none."""
    devices = [t.device for t in chain(model.parameters(), model.buffers())]
    real = (device for device in devices if device.type != "meta")
    return next(real, devices[0] if devices else torch.device("cpu"))


def call(model: nn.Module, batch: Any, device: torch.device | None = None) -> Any:
    """Call the model: with a mapping's items as keyword arguments, a tuple's or list's as
    positional ones, anything else as the one argument; tensors are moved to the device, by default
    the model's."""
    args, kwargs = arguments(batch, device_of(model) if device is None else device)
    return model(*args, **kwargs)


def arguments(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `call` calls a model with for a batch, positional and by name."""
    if isinstance(batch, Mapping):
        return (), {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_moved(value, device) for value in batch), {}
    return (_moved(batch, device),), {}


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return value


@contextmanager
def tried(model: nn.Module, sample: Any) -> Iterator[None]:
    """Run the model on `sample` when what is inside has quantized it; None runs nothing.

    It runs without gradients and in the mode it is in; buffers and torch's random numbers are as
    before then. Raises RuntimeError, and puts everything back, where it cannot run: with the
    innermost module whose forward raised, the quantized weights it has, and how to leave it out.
    """
    if sample is None:
        yield
        return
    before = Snapshot(model)
    yield
    error = _run(model, sample)
    if error is None:
        return
    told = _told(model, error)
    before.restore()
    if (same := _run(model, sample)) is not None:
        told = "so does the float model: does the sample fit it? As bs.calibrate takes batches, a "
        told += "tuple holds positional arguments and a mapping keyword arguments"
        error = same
    raise RuntimeError(
        f"the quantized model does not run on the sample, and nothing was changed: "
        f"{type(error).__name__}: {error}; {told}"
    ) from error


def _run(model: nn.Module, sample: Any) -> Exception | None:
    """What a call raises, None if it does not; the model is as it was."""
    devices = {t.device.index for t in chain(model.parameters(), model.buffers()) if t.is_cuda}
    with torch.random.fork_rng(sorted(devices)), buffers_kept(model), torch.no_grad():
        try:
            call(model, sample)
        except Exception as error:
            return error
    return None


def _told(model: nn.Module, error: Exception) -> str:
    """Where it was raised, and what to leave in float so that it is not."""
    names = {id(module): name for name, module in model.named_modules()}
    inside = [each for each in _forwards(error.__traceback__) if id(each) in names]
    place = inside[-1] if inside else model
    weights: list[str] = []
    for module in [place, *reversed(inside[:-1]), model]:  # the nearest that has codes
        weights = _quantized_in(module, names.get(id(module), ""))
        if weights:
            break
    called = names.get(id(place), "") or "the model itself"
    kind = type(place).__name__
    if not weights:
        return f"raised in {called} ({kind}), which has no quantized weight"
    skip = [name.removesuffix(".weight") for name in weights]
    return (
        f"raised in {called} ({kind}), whose quantized weight is {' or '.join(weights)}: leave it "
        f"in float with skip={skip} in the recipe"
    )


def _forwards(trace: TracebackType | None) -> Iterator[nn.Module]:
    """The modules whose forward was running, the outermost first."""
    while trace is not None:
        own = trace.tb_frame.f_locals.get("self")
        if trace.tb_frame.f_code.co_name == "forward" and isinstance(own, nn.Module):
            yield own
        trace = trace.tb_next


def _quantized_in(module: nn.Module, name: str) -> list[str]:
    """The names of the codes that a module has itself, or else those right below it."""
    if isinstance(module, QLayer):
        return [f"{name}.weight" if name else "weight"]
    own = [f"{name}.{each}" if name else each for each in held(module)]
    for child, layer in module.named_children():
        if isinstance(layer, QLayer):
            own.append(f"{name}.{child}.weight" if name else f"{child}.weight")
    return own
