# SPDX-License-Identifier: BSD-3-Clause
"""How tensors of a format lie in memory."""

import torch

from blockscale.kernels.webgpu.gpu.memory import download
from blockscale.kernels.webgpu.primitives.form import back, floats, form, memory_of, whole
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor


def test_rows_that_end_on_a_byte_are_a_stream() -> None:
    assert form("int4").streams(6) and not form("int4").streams(7)
    assert form("int6:token:fp32").row_bytes(5) == 4
    assert form("nvfp4").one_outer and not form("e2m1:group16:(e4m3:token:fp32)").one_outer


def test_memory_has_the_bytes_in_row_major_order() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(download(floats(x.t()), (3, 2), x.dtype), x.t())
    assert whole(memory_of(x)).nbytes == 32


def test_results_go_where_their_operand_is() -> None:
    x = torch.arange(4.0)
    there = WebGPUTensor(memory_of(x), (4,), x.dtype)
    assert isinstance(back(memory_of(x), (4,), x.dtype, there), WebGPUTensor)
    assert torch.equal(back(memory_of(x), (2, 2), x.dtype, x), x.reshape(2, 2))
