# SPDX-License-Identifier: BSD-3-Clause
"""Memory: what a call takes at its peak, and the bytes of its tensors beside those that we count.

Traffic is that of tensors, each read or written once: what `requests.traffic` counts from a format
alone, and what the tensors of the call really have. The processor's own counters are not read.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.bench import requests
from blockscale.bench.groups import primitives
from blockscale.bench.requests import Call, Case, Contestant, Layer, Primitive, normal
from blockscale.bench.settings import Settings
from blockscale.bench.timing import Timing
from blockscale.ops.tensor import QTensor
from blockscale.selection.times import peak

GROUP = "memory"
_WEIGHT = 0.2  # of the run's time: nothing here needs many samples


def cases(settings: Settings) -> Iterator[Case]:
    """Each primitive and each linear layer of few and many rows, in the formats of a quick run."""
    formats = settings.formats or primitives.QUICK
    for name in formats:
        for op in primitives.OPS:
            primitive = Primitive(op, name, settings.sizes.matrix, torch.float32, settings.device)
            size = "x".join(map(str, primitive.shape))
            about = {"op": op, "format": name, "shape": list(primitive.shape), "dtype": "float32"}
            result = partial(_primitive, primitive)
            yield Case(f"memory/{op}/{name}/{size}", GROUP, about, result, _figures, _WEIGHT)
    (k, n), rows = next(iter(settings.sizes.linear.items()))
    for name in formats:
        for m in dict.fromkeys((rows[0], rows[-1])):
            about = {"op": "linear", "format": name, "shape": [m, k, n], "dtype": "float32"}
            result = partial(_linear, name, k, n, m, settings.device)
            yield Case(
                f"memory/linear/{name}/{k}x{n}/m={m}", GROUP, about, result, _figures, _WEIGHT
            )


def _primitive(primitive: Primitive) -> Iterator[Contestant]:
    call = primitives.ours(primitive)
    members: list[Tensor | QTensor] = [primitive.x]
    if primitive.op == "dequantize":
        members = [bs.quantize(primitive.x, primitive.spelling)]
    traffic = requests.traffic(primitive.op, primitive.fmt, primitive.shape, primitive.dtype, 1)
    yield _contestant(call, members, traffic, primitive.device)


def _linear(name: str, k: int, n: int, m: int, device: str) -> Iterator[Contestant]:
    layer = Layer(k, n, device)
    model = nn.Sequential(*layer.module())
    bs.quantize_(model, bs.Recipe(name), strict=True)
    x = normal((m, k), torch.float32, device)
    stored = requests.stored_bytes(bs.parse(name), (n, k))
    results = list(model.buffers())
    model(x)  # what a kernel keeps beside a weight is made by the first call
    yield _contestant(partial(model, x), [x, *results], stored + 4 * m * (k + n), device)


def _contestant(
    call: Call, members: Iterable[Tensor | QTensor], traffic: int, device: str
) -> Contestant:
    """Ours, with what no clock tells."""
    with torch.no_grad():
        result = call()
        most = peak(call, device)
    tensors = sum(each.nbytes for each in members) + result.nbytes
    facts = {
        "peak_bytes": most,
        "result_bytes": result.nbytes,
        "temporary_bytes": most - result.nbytes,
        "tensor_bytes": tensors,
        "counted_bytes": traffic,
    }
    return Contestant("blockscale", "ours", call, facts=facts, probe=True)


def _figures(
    contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    del times
    nbytes = contestant.facts["tensor_bytes"]
    return {"gigabytes_per_second": nbytes / timing.median / 1e9}
