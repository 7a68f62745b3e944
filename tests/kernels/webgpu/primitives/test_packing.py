# SPDX-License-Identifier: BSD-3-Clause
"""Items of more bits than a code has, as kernels write them, become packed bytes."""

import torch

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.packing import pack_items


def test_bits_above_those_of_a_code_are_dropped() -> None:
    items = torch.tensor([[0x1F, 0x03, 0xF0], [0x0A, 0xFF, 0x25]], dtype=torch.uint8)
    packed = pack_items(form("int4"), upload(items), 6, 3, 8)
    assert download(packed, (2, 2), torch.uint8).tolist() == [[0x3F, 0x00], [0xFA, 0x05]]


def test_patterns_of_signs_are_bits_already() -> None:
    items = torch.tensor([1, 0, 0, 1, 1], dtype=torch.uint8)
    packed = pack_items(form("binary:token:fp32"), upload(items), 5, 5, 8)
    assert download(packed, (1,), torch.uint8).tolist() == [0b11001]
