# SPDX-License-Identifier: BSD-3-Clause
"""Chunks, seeds and what is written where rows end within a byte."""

import pytest
import torch

from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.encode import (
    chunk_of,
    decode,
    pack_items,
    seed_memory,
    written_bits,
)
from blockscale.kernels.webgpu.primitives.form import Parts, form


def test_chunks_fill_words_and_read_sixteen_bytes() -> None:
    for bits in range(1, 17):
        for dtype in (torch.float32, torch.float16):
            chunk = chunk_of(bits, dtype)
            assert chunk * bits % 32 == 0 and chunk * dtype.itemsize % 16 == 0
    assert chunk_of(8, torch.float32) == 4


def test_codes_of_odd_rows_are_written_as_items() -> None:
    assert written_bits(form("int4"), (3, 6)) == 4
    assert written_bits(form("int4"), (3, 7)) == 8
    assert written_bits(form("int12:token:fp32"), (3, 7)) == 16


def test_seeds_have_four_words() -> None:
    f = form("int8:tensor:fp32:stochastic")
    memory = seed_memory(f, torch.tensor([-2, 2**33 + 5]))
    assert memory is not None
    assert download(memory, (2,), torch.int64).tolist() == [-2, 2**33 + 5]
    assert seed_memory(form("int8"), None) is None
    with pytest.raises(ValueError, match="needs a seed"):
        seed_memory(f, None)


@pytest.mark.some(3)
@pytest.mark.parametrize("bits", [3, 5, 7, 9, 13])
@pytest.mark.parametrize("columns", [40, 11])
def test_every_code_is_its_value(bits: int, columns: int) -> None:
    fmt = f"int{bits}:tensor:fp32"
    half = 2 ** (bits - 1)
    codes = (torch.arange(7 * columns).reshape(7, columns) * 37) % (2 * half) - half
    element = parse(fmt).element
    packed = pack(codes.to(element.code_dtype), element)
    parts = Parts(upload(torch.tensor([0.5])))
    found = decode(form(fmt), upload(packed), (7, columns), parts, torch.float32)
    assert torch.equal(download(found, (7, columns), torch.float32), codes * 0.5)


def test_bits_above_those_of_a_code_are_dropped() -> None:
    items = torch.tensor([[0x1F, 0x03, 0xF0], [0x0A, 0xFF, 0x25]], dtype=torch.uint8)
    packed = pack_items(form("int4"), upload(items), 6, 3, 8)
    assert download(packed, (2, 2), torch.uint8).tolist() == [[0x3F, 0x00], [0xFA, 0x05]]


def test_patterns_of_signs_are_bits_already() -> None:
    items = torch.tensor([1, 0, 0, 1, 1], dtype=torch.uint8)
    packed = pack_items(form("binary:token:fp32"), upload(items), 5, 5, 8)
    assert download(packed, (1,), torch.uint8).tolist() == [0b11001]
