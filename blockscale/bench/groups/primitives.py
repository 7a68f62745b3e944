# SPDX-License-Identifier: BSD-3-Clause
"""quantize (with choice of the scale), dequantize and fake_quantize, against a copy."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch

import blockscale as bs
from blockscale.bench import targets
from blockscale.bench.groups.ceilings import PREFIX, copies
from blockscale.bench.peers import rivals
from blockscale.bench.requests import Call, Case, Contestant, Peer, Primitive, Skipped, best
from blockscale.bench.settings import Settings
from blockscale.bench.timing import Timing

GROUP = "primitives"
OPS = ("quantize", "dequantize", "fake_quantize")
QUICK = ("int8", "int8_channel", "int4", "mxfp8", "mxfp6", "mxfp4", "mxint8", "nvfp4", "bfp8")
NARROW = ("int8_channel", "mxfp8", "mxfp4", "nvfp4", "mxint8")  # measured in bf16 and fp16 too
MORE = (
    "int8:group128:fp32",
    "int8:channel1:fp32",
    "int8:group32@0:fp32",
    "e4m3:group32@0:e8m0/floor",
    "e2m1:group32@0:e8m0/floor",
    "int8:tile32x32:fp32",
    "e4m3:tile32x32:e8m0/floor",
    "e2m1:tile16x16:e8m0/floor",
    "int8:group32:e8m0/floor:stochastic",
    "e4m3:group32:e8m0/floor:stochastic",
    "e2m1:group32:e8m0/floor:stochastic",
)
GPU = (  # each is compiled when it is first measured, which takes longer than measuring it
    *("int8", "int8_channel", "int8_token", "int4", "uint8", "fp8", "mxfp8", "mxfp6", "mxfp4"),
    *("mxint8", "nvfp4", "bfp8", "log4", "ternary", "binary"),
    *("int8:group128:fp32", "int8:group32@0:fp32", "e2m1:group32@0:e8m0/floor"),
    *("int8:tile32x32:fp32", "e4m3:tile128x128:fp32"),
    *("int8:group32:e8m0/floor:stochastic", "e2m1:group32:e8m0/floor:stochastic"),
)


def cases(settings: Settings) -> Iterator[Case]:
    """Every named format in fp32; some of them, and other blocks and roundings, besides."""
    for name, dtype in _inputs(settings):
        for op in OPS:
            if op == "dequantize" and bs.parse(name).rounding != "nearest_even":
                continue  # codes do not know how they were rounded
            compiled = settings.compiled or settings.full
            shape = settings.sizes.matrix
            yield _case(Primitive(op, name, shape, dtype, settings.device, compiled), settings)


def _inputs(settings: Settings) -> Iterator[tuple[str, torch.dtype]]:
    """(format, dtype of the input)."""
    if settings.formats:
        yield from ((name, torch.float32) for name in settings.formats)
        return
    if settings.quick:
        yield from ((name, torch.float32) for name in QUICK)
        yield from (("mxfp8", torch.bfloat16), ("e2m1:group32@0:e8m0/floor", torch.float32))
        return
    if settings.kind != "cpu":
        yield from ((name, dtype) for name in GPU for dtype in (torch.float32, torch.bfloat16))
        return
    yield from ((name, torch.float32) for name in (*bs.formats(), *MORE))
    for dtype in (torch.bfloat16, torch.float16):
        yield from ((name, dtype) for name in NARROW)


def _case(primitive: Primitive, settings: Settings) -> Case:
    dtype = str(primitive.dtype).removeprefix("torch.")
    size = "x".join(map(str, primitive.shape))
    about = {
        "op": primitive.op,
        "format": primitive.name,
        "spelling": primitive.spelling,
        "shape": list(primitive.shape),
        "dtype": dtype,
        "bytes": primitive.bytes(),
        "reads": primitive.reads if primitive.op != "dequantize" else 1,
    }
    return Case(
        f"{primitive.op}/{primitive.name}/{size}/{dtype}",
        GROUP,
        about,
        partial(_contestants, primitive, dtype, settings.peers),
        partial(figures, primitive.bytes()),
    )


def _contestants(primitive: Primitive, dtype: str, peers: bool) -> Iterator[Contestant | Skipped]:
    goals = targets.primitive(primitive.op, primitive.fmt, primitive.shape, dtype)
    yield Contestant("blockscale", "ours", ours(primitive), targets=goals, probe=True)
    yield from copies(primitive.bytes(), primitive.device)

    def finish(peer: Peer, call: Call) -> Contestant:
        return Contestant(peer.name, "peer", call, peer.note, primitive.bytes(peer.reads))

    if peers:
        yield from rivals("primitive", primitive, finish)


def ours(primitive: Primitive) -> Call:
    """The public function."""
    x, fmt = primitive.x, primitive.spelling
    seed = 1 if primitive.fmt.rounding == "stochastic" else None
    if primitive.op == "quantize":
        return lambda: bs.quantize(x, fmt, seed=seed)
    if primitive.op == "fake_quantize":
        return lambda: bs.fake_quantize(x, fmt, seed=seed)
    q = bs.quantize(x, fmt, seed=seed)
    return lambda: q.dequantize(x.dtype)


def figures(
    nbytes: int, contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    """Its bandwidth over that of the best copy of `nbytes` in the same rounds."""
    bandwidth = (contestant.bytes or nbytes) / timing.median
    data = {"gigabytes_per_second": bandwidth / 1e9}
    return data | {"of_copy": bandwidth * best(times, PREFIX) / nbytes}
