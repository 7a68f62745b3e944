# SPDX-License-Identifier: BSD-3-Clause
"""Tensors go into textures and come back as they were."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import pack as packing
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu import device
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.memory import AXIS, download, upload
from blockscale.kernels.webgpu.textures.storage import texture, texture_of_codes
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor

SHAPES = [
    (), (1,), (7,), (5, 3), (3, 8), (2, 3, 6), (2, 3, 4, 5), (3, 2, 2, 3, 9), (0, 4), (4, 0),
    (300, 1), (2, 1030, 5),
]  # fmt: skip
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16]


def any_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Every bit pattern alike: NaNs with payloads and subnormals among them."""
    torch.manual_seed(len(shape))
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8).view(dtype).reshape(shape)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_bits_come_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = any_bits(shape, dtype)
    found = texture(x).tensor()
    assert (found.shape, found.dtype) == (x.shape, dtype)
    assert torch.equal(as_bytes(found), as_bytes(x))


@pytest.mark.some(4)
@pytest.mark.parametrize("element", ["int2", "uint3", "int4", "e3m2", "int7", "int9", "int12"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_codes_come_back(shape: tuple[int, ...], element: str) -> None:
    kind = parse(f"{element}:tensor:fp32").element
    torch.manual_seed(1)
    codes = torch.randint(0, 1 << kind.bits, shape)
    packed = packing.pack(kind.from_bits(codes), kind)
    there = texture_of_codes(packed, shape, kind.bits)
    assert there.texels.bits == (8 if kind.bits <= 8 else 16)  # a component of its own
    found = there.tensor()
    assert (found.shape, found.dtype) == (packed.shape, packed.dtype)
    assert torch.equal(as_bytes(found), as_bytes(packed))


def test_components_are_four_neighbours_of_a_row() -> None:
    """The texels themselves, read as a texture of one long row of words."""
    x = torch.arange(2 * 3 * 5, dtype=torch.int32).reshape(2, 3, 5)
    there = texture(x)
    assert there.texels.size == (2, 3, 2)
    padded = torch.nn.functional.pad(x, (0, 3))  # components beyond a row's end are 0
    whole = type(there)((2, 3, 8), 32, (2, 3, 8), torch.int32, there.texels)
    assert torch.equal(whole.tensor(), padded)


def test_from_and_to_buffers_on_the_device() -> None:
    x = torch.randn(3, 5, 6)
    there = WebGPUTensor(upload(x), (3, 5, 6), torch.float32)
    found = texture(there).tensor("webgpu")
    assert isinstance(found, WebGPUTensor)
    assert torch.equal(download(found.memory, (3, 5, 6), torch.float32), x)


def test_strided_tensors_are_read_in_order() -> None:
    x = torch.randn(6, 5).t()
    assert torch.equal(texture(x).tensor(), x)


@pytest.mark.parametrize("rows", [255, 256, 257, 700])
def test_tensors_beyond_what_a_kernel_sees(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose kernels see 64 KiB of a buffer: rows go there in several steps."""
    monkeypatch.setattr(device.Gpu, "binding_limit", 1 << 16)
    x = any_bits((rows, 63), torch.float32)
    assert torch.equal(as_bytes(texture(x).tensor()), as_bytes(x))
    monkeypatch.undo()
    assert torch.equal(as_bytes(texture(x).tensor()), as_bytes(x))


def test_bad_input() -> None:
    with pytest.raises(TypeError, match=r"1, 2 or 4 bytes, found float64"):
        texture(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"4 bits .* have 6 bytes, found 5"):
        texture_of_codes(torch.zeros(5, dtype=torch.uint8), (3, 4), 4)
    limit = gpu().limits[AXIS]
    with pytest.raises(GpuError, match=rf"at most {limit} texels along each axis.*in a buffer"):
        texture(torch.zeros(limit + 1, 1))
    assert torch.equal(texture(torch.ones(3)).tensor(), torch.ones(3))  # and goes on


@pytest.mark.parametrize("at", [lambda x: x[2:], lambda x: x.transpose(0, 1), lambda x: x[:, 1]])
def test_views_on_the_device_are_read_as_views(at: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(5, 3, 7)
    assert torch.equal(texture(at(x.to(bs.webgpu()))).tensor(), at(x))
