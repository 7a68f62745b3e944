# SPDX-License-Identifier: BSD-3-Clause
"""Packing of every width: the reference's bytes, and not a byte beside them."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.kernels.cpu import _native
from blockscale.ops import primitives as P
from tests.support.core_pack import NAMES, SHAPES, random_codes
from tests.support.exact import pack_row
from tests.support.same import same

MORE = [(1, 2047), (1, 2048), (3, 2049), (2, 4099), (65, 300), (20000,), (5, 1), (2, 3, 4, 5)]
WIDTHS = [b for b in range(1, 16) if b != 8]
GUARD = 64


@pytest.mark.some(4)
@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(isa: str, name: str) -> None:
    fmt = f"{name}:tensor:fp32"
    for shape in [*SHAPES, *MORE]:
        codes = random_codes(name, shape)
        with bs.use("reference"):
            expected = P.pack(codes, fmt)
        with bs.use("cpu"):
            packed = P.pack(codes, fmt)
            assert same(packed, expected), shape
            if shape:
                assert same(P.unpack(packed, fmt, shape[-1]), codes), shape


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.float32], ids=str)
def test_codes_of_other_dtypes(isa: str, dtype: torch.dtype) -> None:
    """What does not fit is cut to its low bits, as the reference does."""
    codes = torch.randint(-20, 20, (4, 9)).to(dtype)
    for name in ("int4", "int3", "int12", "uint12", "uint1", "binary", "ternary"):
        results = []
        for backend in ("reference", "cpu"):
            with bs.use(backend):
                try:
                    results.append(P.pack(codes, f"{name}:token:fp32"))
                except (RuntimeError, NotImplementedError) as error:
                    results.append(type(error))
        expected, found = results
        assert found == expected if isinstance(expected, type) else same(found, expected), name


def test_strides_and_alignment(isa: str) -> None:
    for name in ("int4", "int3", "int12", "uint13", "binary", "int8", "int16"):
        fmt, codes = f"{name}:tensor:fp32", random_codes(name, (33, 24))
        with bs.use("reference"):
            expected = P.pack(codes.t(), fmt), P.pack(codes, fmt)
        data = bytearray(1) + bytearray(expected[1].flatten().view(torch.uint8).numpy())
        moved = torch.frombuffer(data, dtype=expected[1].dtype, offset=1)
        with bs.use("cpu"):
            assert same(P.pack(codes.t(), fmt), expected[0])
            assert same(P.unpack(moved.reshape(expected[1].shape), fmt, 24), codes)
            columns = expected[0].t().contiguous().t()
            assert same(P.unpack(columns, fmt, 33), codes.t().contiguous())


def guarded(size: int, offset: int) -> Tensor:
    return torch.full((GUARD + offset + size + GUARD,), 0xA5, dtype=torch.uint8)


def untouched(raw: Tensor, size: int, offset: int) -> bool:
    start = GUARD + offset
    return bool((raw[:start] == 0xA5).all() and (raw[start + size :] == 0xA5).all())


@pytest.mark.some(4)
@pytest.mark.parametrize("bits", WIDTHS)
def test_nothing_beside(isa: str, bits: int) -> None:
    """Rows of every length and start, into the middle of other memory."""
    kind = torch.uint8 if bits < 8 else torch.int16
    for size in [*range(1, 19), 31, 33, 65, 2047, 2049]:
        rows, row = 3, (size * bits + 7) // 8
        patterns = torch.randint(0, 2**bits, (rows, size)).to(kind)
        expected = [byte for codes in patterns.tolist() for byte in pack_row(codes, bits)]
        for offset in (0, 5):
            raw, start = guarded(rows * row, offset), GUARD + offset
            _native.pack(bits, patterns.data_ptr(), rows, size, raw.data_ptr() + start, 1)
            assert raw[start : start + rows * row].tolist() == expected
            assert untouched(raw, rows * row, offset)
            wide, even = rows * size * kind.itemsize, offset * 2
            back = guarded(wide, even)
            to = back.data_ptr() + GUARD + even
            _native.unpack(bits, raw.data_ptr() + start, rows, size, to, 1)
            found = back[GUARD + even : GUARD + even + wide].clone().view(kind)
            assert torch.equal(found.reshape(rows, size), patterns)
            assert untouched(back, wide, even)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(isa: str, threads: int) -> None:
    for bits in WIDTHS:
        kind = torch.uint8 if bits < 8 else torch.int16
        patterns = torch.randint(0, 2**bits, (517, 333)).to(kind)
        row = (333 * bits + 7) // 8
        packed = [torch.zeros(517, row, dtype=torch.uint8) for _ in range(2)]
        back = torch.zeros_like(patterns)
        for count, to in zip((1, threads), packed, strict=True):
            _native.pack(bits, patterns.data_ptr(), 517, 333, to.data_ptr(), count)
        _native.unpack(bits, packed[1].data_ptr(), 517, 333, back.data_ptr(), threads)
        assert torch.equal(*packed)
        assert torch.equal(back, patterns)
