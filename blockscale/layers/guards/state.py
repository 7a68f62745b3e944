# SPDX-License-Identifier: BSD-3-Clause
"""A model's modules, parameters and buffers as they are, to be put back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from blockscale.layers.buffers import Buffers


class Snapshot:
    """Which objects a model consists of; their numbers are not copied."""

    def __init__(self, model: nn.Module):
        self._parts = [
            (m, m.__class__, dict(vars(m)), dict(m._modules), dict(m._parameters), dict(m._buffers))
            for m in model.modules()
        ]

    def restore(self) -> None:
        """Put every object back where it was."""
        for module, kind, attributes, modules, parameters, buffers in self._parts:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._parameters.clear()
            module._buffers.clear()
            module._modules.update(modules)
            module._parameters.update(parameters)
            module._buffers.update(buffers)


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers are the same objects with the same numbers afterwards, whatever a forward does.

    Codes and scales are not copied: no forward writes them.
    """
    kept = [(m, dict(m._buffers)) for m in model.modules() if not isinstance(m, Buffers)]
    values = [(b, b.detach().clone()) for _, own in kept for b in own.values() if b is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for module, own in kept:
            module._buffers.clear()
            module._buffers.update(own)
