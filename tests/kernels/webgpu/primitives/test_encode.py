# SPDX-License-Identifier: BSD-3-Clause
"""Chunks, seeds and what is written where rows end within a byte."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.memory import download
from blockscale.kernels.webgpu.primitives.encode import chunk_of, seed_memory, written_bits
from blockscale.kernels.webgpu.primitives.form import form


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
