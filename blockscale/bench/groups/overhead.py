# SPDX-License-Identifier: BSD-3-Clause
"""What a call costs on small tensors, in microseconds, next to a torch op that does the same."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

import blockscale as bs
from blockscale.bench import targets
from blockscale.bench.requests import Call, Case, Contestant, normal
from blockscale.bench.settings import Settings
from blockscale.bench.timing import Timing

GROUP = "overhead"
FORMATS = ("int8", "int8_channel", "mxfp4")
PUBLIC, OP, TORCH = "public function", "op", "torch"
_SCALE = (0.03, 0)


def cases(settings: Settings) -> Iterator[Case]:
    """Each op on a small tensor, per format."""
    size = "x".join(map(str, settings.sizes.small))
    makers = _MAKERS if settings.kind == "cpu" else _EVERYWHERE
    for fmt in settings.formats or FORMATS:
        for op in makers:
            about = {"op": op, "format": fmt, "shape": list(settings.sizes.small)}
            contestants = partial(_contestants, op, str(bs.parse(fmt)), settings)
            name = f"overhead/{op}/{fmt}/{size}"
            yield Case(name, GROUP, about, contestants, _figures, host=True)


def _contestants(op: str, fmt: str, settings: Settings) -> Iterator[Contestant]:
    x = normal(settings.sizes.small, torch.float32, settings.device)
    public, direct, (name, torch_call) = _MAKERS[op](x, fmt)
    yield Contestant(PUBLIC, "ours", public, targets=targets.PUBLIC, probe=True)
    yield Contestant(OP, "ours", direct, targets=targets.OP)
    yield Contestant(TORCH, "ceiling", torch_call, f"torch's {name}")


Calls = tuple[Call, Call, tuple[str, Call]]


def _choose_quantize(x: Tensor, fmt: str) -> Calls:
    op = torch.ops.blockscale.choose_quantize
    torch_op = torch.quantize_per_tensor_dynamic
    peer = ("quantize_per_tensor_dynamic", lambda: torch_op(x, torch.qint8, False))
    return lambda: bs.quantize(x, fmt), lambda: op(x, fmt, None), peer


def _quantize(x: Tensor, fmt: str) -> Calls:
    q, op = bs.quantize(x, fmt), torch.ops.blockscale.quantize
    scale, zero_point = q.scale, q.zero_point
    stored, outer = q.qparams[:2]
    peer = ("quantize_per_tensor", lambda: torch.quantize_per_tensor(x, *_SCALE, torch.qint8))
    return (
        lambda: bs.quantize(x, fmt, scale, zero_point),
        lambda: op(x, stored, zero_point, outer, fmt, None),
        peer,
    )


def _dequantize(x: Tensor, fmt: str) -> Calls:
    q, op = bs.quantize(x, fmt), torch.ops.blockscale.dequantize
    scale, outer, zero_point = q.qparams[:3]
    theirs = torch.quantize_per_tensor_dynamic(x, torch.qint8, False)
    return (
        q.dequantize,
        lambda: op(q.packed, scale, zero_point, outer, fmt, q.size, torch.float32),
        ("dequantize", theirs.dequantize),
    )


def _fake_quantize(x: Tensor, fmt: str) -> Calls:
    op, torch_op = torch.ops.blockscale.fake_quantize, torch.fake_quantize_per_tensor_affine
    peer = ("fake_quantize_per_tensor_affine", lambda: torch_op(x, *_SCALE, -127, 127))
    direct = lambda: op(x, None, None, None, fmt, None)  # noqa: E731 - a call like the others
    return lambda: bs.fake_quantize(x, fmt), direct, peer


_MAKERS: Mapping[str, Callable[[Tensor, str], Calls]] = {
    "choose_quantize": _choose_quantize,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "fake_quantize": _fake_quantize,
}
_EVERYWHERE = ("fake_quantize",)  # torch has the others on the CPU alone


def _figures(
    contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    figures = {"microseconds": 1e6 * timing.median}
    if contestant.kind == "ours":
        figures["over_torch"] = 1e6 * (timing.median - times[TORCH].median)
    return figures
