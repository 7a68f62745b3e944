# SPDX-License-Identifier: BSD-3-Clause
"""Every primitive on given arguments, and whether the kernels give the reference's bits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.ops import primitives as P
from tests.support.encoded import Results, by_reference, choosing, encoding
from tests.support.same import same


@contextmanager
def settings(isa: str, threads: int) -> Iterator[None]:
    """Run the kernels of one instruction set, on so many threads."""
    before = _native.isa(), torch.get_num_threads()
    _native.select_isa(isa)
    torch.set_num_threads(threads)
    try:
        with bs.use("cpu"):
            yield
    finally:
        _native.select_isa(before[0])
        torch.set_num_threads(before[1])


def decoding(
    packed: Tensor, fmt: str, qparams: QParams, size: int, rank: int, codes: Tensor | None = None
) -> Results:
    """What the ops make of packed codes; codes: the reference's `unpack` of them, if known."""
    found = {
        f"dequantize {dtype}": P.dequantize(operand(packed, qparams, fmt, size), dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    }
    if rank:
        found["unpack"] = P.unpack(packed, fmt, size)
        if codes is None:
            with bs.use("reference"):
                codes = P.unpack(packed, fmt, size)
        found["pack"] = P.pack(codes, fmt)
    return found


def everything(
    x: Tensor,
    fmt: str,
    packed: Tensor,
    qparams: QParams,
    seed: Tensor | None,
    codes: Tensor | None = None,
) -> Results:
    """All of it, with the given scale and codes; codes: as in `decoding`."""
    size = x.shape[-1] if x.ndim else 1
    return {
        **choosing(x, fmt, seed),
        **encoding(x, fmt, qparams, seed),
        **decoding(packed, fmt, qparams, size, x.ndim, codes),
    }


def differing(found: Results, expected: Results) -> list[str]:
    """Names of the results whose bits differ."""
    assert found.keys() == expected.keys()
    return [name for name, tensor in found.items() if not same(tensor, expected[name])]


def wrong(
    x: Tensor,
    fmt: str,
    seed: Tensor | None = None,
    threads: Sequence[int] = (1,),
    qparams: QParams | None = None,
) -> list[tuple[str, int, list[str]]]:
    """Which kernels give other bits than the reference: (instruction set, threads, results).

    threads: the first number for every instruction set, the others for the last one only.
    qparams: what takes a scale takes this one, not that of x.
    """
    form = parse(fmt)
    seed = torch.tensor([7, 3]) if seed is None and form.rounding == "stochastic" else seed
    given, expected = by_reference(x, fmt, seed, qparams)
    packed = expected["quantize"]
    with bs.use("reference"):
        expected |= decoding(packed, fmt, given, x.shape[-1] if x.ndim else 1, x.ndim)
    isas = _native.isas()
    runs = [(isa, threads[0]) for isa in isas] + [(isas[-1], count) for count in threads[1:]]
    bad = []
    for isa, count in runs:
        with settings(isa, count):
            found = everything(x, fmt, packed, given, seed, expected.get("unpack"))
        if names := differing(found, expected):
            bad.append((isa, count, names))
    return bad
