# SPDX-License-Identifier: BSD-3-Clause
"""Where tensors lie: strides, alignment, ends of memory; and what the thread has set."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.kernels.cpu import _native
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import differing, everything, settings, wrong
from tests.support.cpu_primitives import rough, sample
from tests.support.cpu_primitives_memory import FORMATS


def moved(x: Tensor, offset: int = 1) -> Tensor:
    """x at an address that is no multiple of its elements."""
    data = bytearray(offset) + bytearray(x.contiguous().flatten().view(torch.uint8).numpy())
    return torch.frombuffer(data, dtype=x.dtype, offset=offset).reshape(x.shape)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", FORMATS)
def test_misaligned(fmt: str) -> None:
    """Inputs, codes, scales and zero points."""
    for dtype in (torch.float32, torch.float16):
        x = rough((9, 32), 2).to(dtype)
        assert wrong(moved(x), fmt) == []
        qparams = P.from_list(P.choose_qparams(x, fmt), parse(fmt))
        given = type(qparams)(*(None if part is None else moved(part) for part in qparams))
        assert given.scale.itemsize == 1 or given.scale.data_ptr() % given.scale.itemsize
        assert wrong(moved(x), fmt, qparams=given) == []


def test_strided_scales() -> None:
    for fmt in FORMATS:
        x = rough((9, 32), 2)
        qparams = P.from_list(P.choose_qparams(x, fmt), parse(fmt))
        apart = (None if part is None else torch.stack([part] * 2, -1)[..., 0] for part in qparams)
        assert wrong(x, fmt, qparams=type(qparams)(*apart)) == [], fmt


FLUSHED = (
    "ternary:tensor:fp32",
    "int8:token:fp32:asym",
    "int16:group32:e8m0/tosa:stochastic",
    "ternary:token:e8m0/nearest",
    "binary:channel1:fp32",
    "log8:group16:e8m0/floor:down",
    "e2m1:group16:e4m3:recip",
    "int4:group32:(uint4:token:fp32):asym",
    "e5m2:tensor:fp16",
)


def subnormal(number: int) -> tuple[str, Tensor]:
    """A format, and numbers whose arithmetic passes through subnormals."""
    x = torch.randn(30, 500) * 2.0**-126
    if number == 0:  # the mean is subnormal, that of the larger ones is not
        x = torch.full((600_000,), 2.0**-140)
        x[0] = 2.0**-116
    return FLUSHED[number], x


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FLUSHED)), ids=FLUSHED)
def test_flushing_subnormals_changes_nothing(number: int) -> None:
    fmt, x = subnormal(number)
    seed = torch.tensor([1, 2])
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(x, fmt, seed)
        arguments = x, fmt, packed, P.from_list(parts, parse(fmt)), seed
        expected = everything(*arguments)
    expected.pop("dequantize torch.float64")  # torch's own cast, which flushes
    for isa in _native.isas():
        for threads in (1, 2):
            assert torch.set_flush_denormal(True)
            try:
                with settings(isa, threads):
                    found = everything(*arguments)
            finally:
                torch.set_flush_denormal(False)
            found.pop("dequantize torch.float64")
            assert differing(found, expected) == [], (isa, threads)


GUARD = 192
PATTERN = 0xA5


class Guarded:
    """In the place of torch.empty: memory between two guards."""

    def __init__(self) -> None:
        self.all: list[Tensor] = []

    def empty(self, *shape, dtype=torch.float32) -> Tensor:
        if shape and not isinstance(shape[0], int):
            (shape,) = shape
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = torch.full((GUARD + size + GUARD,), PATTERN, dtype=torch.uint8)
        self.all.append(raw)
        return raw[GUARD : GUARD + size].view(dtype).reshape(shape)

    def untouched(self) -> bool:
        ends = [end for raw in self.all for end in (raw[:GUARD], raw[-GUARD:])]
        return bool((torch.cat(ends) == PATTERN).all())


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_nothing_is_written_beside_outputs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(first, first + 10):
        fmt, x = sample(number)
        x = x.contiguous() if number % 10 else x.flatten()[0]
        fmt = fmt if number % 10 else f"{fmt.partition(':')[0]}:tensor:fp32"
        seed, guarded = torch.tensor([1, 2]), Guarded()
        with bs.use("reference"):
            packed, *parts = P.choose_quantize(x, fmt, seed)
            arguments = x, fmt, packed, P.from_list(parts, parse(fmt)), seed
            expected = everything(*arguments)
        for isa in _native.isas():
            with settings(isa, 1), monkeypatch.context() as patch:
                patch.setattr(torch, "empty", guarded.empty)
                found = everything(*arguments)
            assert guarded.untouched(), (fmt, isa)
            assert differing(found, expected) == [], (fmt, isa)
