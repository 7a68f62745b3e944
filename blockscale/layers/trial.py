# SPDX-License-Identifier: BSD-3-Clause
"""A quantized model tried on a sample: what cannot work is found before anybody needs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import TracebackType
from typing import Any

import torch
from torch import nn

from blockscale.layers.buffers import Buffers
from blockscale.layers.guards import call
from blockscale.layers.layer import QLayer
from blockscale.layers.model import Snapshot
from blockscale.layers.store import weights_of


@contextmanager
def trial(model: nn.Module, sample: Any) -> Iterator[None]:
    """Run the model on `sample` when what is inside has quantized it.

    It runs without gradients and in the mode it is in; buffers and torch's random numbers are as
    before then. Raises RuntimeError, and puts everything back, where it cannot run: with the
    innermost module whose forward raised, the quantized weights it has, and how to leave it out.
    """
    before = Snapshot(model)
    yield
    error = _run(model, sample)
    if error is None:
        return
    message = _explain(model, error)
    before.restore()
    if (same := _run(model, sample)) is not None:
        message = (
            "the float model fails as well: does the sample match its inputs? As for batches "
            "of bs.calibrate, a "
        )
        message += "tuple holds positional arguments and a mapping holds keyword arguments"
        error = same
    raise RuntimeError(
        f"the quantized model does not run on the sample, and nothing was changed: "
        f"{type(error).__name__}: {error}; {message}"
    ) from error


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers are the same objects with the same numbers afterwards, whatever a forward does.

    Codes and scales are not copied: no forward writes them.
    """
    rest = [(m, dict(m._buffers)) for m in model.modules() if not isinstance(m, Buffers)]
    values = [(b, b.detach().clone()) for _, own in rest for b in own.values() if b is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for module, own in rest:
            module._buffers.clear()
            module._buffers.update(own)


def _run(model: nn.Module, sample: Any) -> Exception | None:
    """What a call raises, None if it does not; the model is as it was."""
    devices = {t.device.index for t in chain(model.parameters(), model.buffers()) if t.is_cuda}
    with torch.random.fork_rng(sorted(devices)), buffers_kept(model), torch.no_grad():
        try:
            call(model, sample)
        except Exception as error:
            return error
    return None


def _explain(model: nn.Module, error: Exception) -> str:
    """Where it was raised, and what to leave in float so that it is not."""
    names = {id(module): name for name, module in model.named_modules()}
    inside = [each for each in _forwards(error.__traceback__) if id(each) in names]
    place = inside[-1] if inside else model
    weights: list[str] = []
    for module in [place, *reversed(inside[:-1]), model]:  # the nearest that has codes
        weights = _quantized_in(module, names.get(id(module), ""))
        if weights:
            break
    name = names.get(id(place), "") or "the model itself"
    kind = type(place).__name__
    if not weights:
        return f"raised in {name} ({kind}), which has no quantized weight"
    skip = [name.removesuffix(".weight") for name in weights]
    return (
        f"raised in {name} ({kind}), whose quantized weight is {' or '.join(weights)}: leave it "
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
    own = [f"{name}.{each}" if name else each for each in weights_of(module)]
    for child, layer in module.named_children():
        if isinstance(layer, QLayer):
            own.append(f"{name}.{child}.weight" if name else f"{child}.weight")
    return own
