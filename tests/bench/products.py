# SPDX-License-Identifier: BSD-3-Clause
"""What every peer's test asks: it is in the race, and it computes the layer."""

import torch

from blockscale.bench.requests import Layer, Primitive
from blockscale.core.work import quiet_libraries


def errors(module, skip=()):
    """{a peer of `module`: the error of its product relative to the float layer's}."""
    layer = Layer(256, 32)
    x = Primitive("quantize", "int8", (4, 256), layer.weight.dtype).x
    expected = x @ layer.weight.T
    measured = {}
    with torch.no_grad():
        for peer in module.linear(layer):
            if peer.name not in skip:
                with quiet_libraries():
                    y = peer.build()(x)()
                y = torch.as_tensor(y[0] if isinstance(y, list) else y).float()
                measured[peer.name] = float((y - expected).norm() / expected.norm())
    return measured
