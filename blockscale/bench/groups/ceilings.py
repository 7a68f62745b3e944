# SPDX-License-Identifier: BSD-3-Clause
"""What the machine does at best: a copy, and torch's own matrix product."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F

from blockscale.bench.case import Case, Contestant
from blockscale.bench.copying import copies
from blockscale.bench.requests import Layer, normal
from blockscale.bench.settings import Settings
from blockscale.bench.timing import Timing

GROUP = "ceilings"


def cases(settings: Settings) -> Iterator[Case]:
    """Copies of several sizes, and products of the first linear layer."""
    device = settings.device
    for nbytes in settings.sizes.copies:
        about = {"op": "copy", "bytes": nbytes}
        contestants = partial(copies, nbytes, device)
        yield Case(f"ceilings/copy/{nbytes}", GROUP, about, contestants, _gigabytes, cold=True)
    (k, n), rows = next(iter(settings.sizes.linear.items()))
    for m in rows:
        about = {"op": "matmul", "m": m, "k": k, "n": n, "operations": 2 * m * k * n}
        figures = partial(_operations, 2 * m * k * n)
        products = partial(_products, k, n, m, settings)
        yield Case(f"ceilings/matmul/{k}x{n}/m={m}", GROUP, about, products, figures, cold=True)


def _products(k: int, n: int, m: int, settings: Settings) -> Iterator[Contestant]:
    device = settings.device
    weight = Layer(k, n, device).weight
    for dtype in dict.fromkeys((settings.dtype, torch.bfloat16)):
        call = partial(F.linear, normal((m, k), dtype, device), weight.to(dtype))
        yield Contestant(f"torch {str(dtype).removeprefix('torch.')}", "ceiling", call)


def _gigabytes(
    contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    del times
    return {"gigabytes_per_second": (contestant.bytes or 0) / timing.median / 1e9}


def _operations(
    count: int, contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    del contestant, times
    return {"gigaflops": count / timing.median / 1e9}
