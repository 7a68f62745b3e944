# SPDX-License-Identifier: BSD-3-Clause
"""Where elements lie, against coordinates counted one by one."""

import itertools
from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu import device
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.memory import AXIS, download, upload
from blockscale.kernels.webgpu.primitives.form import form, given_parts
from blockscale.kernels.webgpu.texture_storage import (
    INVOCATIONS,
    block_grid,
    empty,
    groups,
    layout,
    local_size,
    run,
    texture,
    texture_of_codes,
)
from blockscale.kernels.webgpu.torch_device import WebGPUTensor

CASES = [
    ((7,), "group3"),
    ((5, 6), "tile2x3"),
    ((5, 6), "channel0"),
    ((4, 6), "tensor"),
    ((6, 4, 6), "block3x2x2"),
    ((8, 6, 6, 6), "block2x3x2x3"),
    ((3, 5, 2, 7), "block2x2x2x2"),
    ((2, 3, 4, 5, 6), "group4"),
    ((2, 3, 4, 5, 6), "tensor"),
    ((4, 3, 2, 5, 6), "channel0"),
    ((4, 3, 2, 5, 6), "block2x*x*x2x3"),
]


def by_counting(shape: tuple[int, ...], fmt: str) -> dict[tuple[int, int, int, int], int]:
    """(width, height, z) of each element -> its block in the order of scales."""
    block = parse(f"int8:{fmt}:fp32").block
    count = block.scale_shape(shape)
    numbered = torch.arange(torch.Size(count).numel()).reshape(count)
    blocks = block.expand(numbered, shape).expand(shape)
    found = {}
    for at in itertools.product(*map(range, shape)):
        *outer, h, w = (0, 0, *at)[-max(len(at), 2) :]
        z = 0
        for i, n in zip(outer, shape[:-2], strict=True):
            z = z * n + i
        found[w, h, z] = int(blocks[at])
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize(("shape", "block"), CASES, ids=str)
def test_blocks_are_those_of_the_format(shape: tuple[int, ...], block: str) -> None:
    grid = block_grid(shape, parse(f"int8:{block}:fp32").block)
    assert grid is not None
    channels = grid.tensor[2]
    expected = by_counting(shape, block)
    assert len(expected) == torch.Size(shape).numel()
    for (w, h, z), number in expected.items():
        at = (w, h, z % channels, z // channels)
        blocks = [c // b for c, b in zip(at, grid.sizes, strict=True)]
        assert sum(b * s for b, s in zip(blocks, grid.strides, strict=True)) == number


@pytest.mark.some(3)
@pytest.mark.parametrize(("shape", "block"), CASES, ids=str)
def test_a_block_reaches_into_so_many_texels_at_most(shape: tuple[int, ...], block: str) -> None:
    grid = block_grid(shape, parse(f"int8:{block}:fp32").block)
    assert grid is not None
    reached: dict[int, set[tuple[int, int, int]]] = {}
    for (w, h, z), number in by_counting(shape, block).items():
        reached.setdefault(number, set()).add((w // 4, h, z))
    for texels in reached.values():
        x, y, z = (len({t[axis] for t in texels}) for axis in range(3))
        assert (x, y) <= grid.texels[:2]
        assert z <= grid.texels[2]


@pytest.mark.parametrize(
    ("shape", "texels"),
    [
        ((), (1, 1, 1)),
        ((5,), (2, 1, 1)),
        ((3, 8), (2, 3, 1)),
        ((2, 3, 9), (3, 3, 2)),
        ((4, 2, 3, 9), (3, 3, 8)),
        ((5, 4, 2, 3, 1), (1, 3, 40)),
        ((0, 4), (1, 0, 1)),
    ],
    ids=str,
)
def test_texels(shape: tuple[int, ...], texels: tuple[int, int, int]) -> None:
    assert layout(shape).texels == texels


@pytest.mark.parametrize(
    ("shape", "block"),
    [((4, 16), "flat8"), ((4, 16), "flat8@0"), ((4, 4, 4, 4, 4, 4), "block2x2x2x2x2x2")],
)
def test_what_is_no_box(shape: tuple[int, ...], block: str) -> None:
    assert block_grid(shape, parse(f"int8:{block}:fp32").block) is None


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


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_bits_come_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = any_bits(shape, dtype)
    found = texture(x).tensor()
    assert (found.shape, found.dtype) == (x.shape, dtype)
    assert torch.equal(as_bytes(found), as_bytes(x))


@pytest.mark.some(10)
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


@pytest.mark.parametrize("local", [(1, 1, 1), (64, 1, 1), (2, 8, 4), (1, 1, 32), (3, 5, 7)])
def test_any_local_size(local: tuple[int, int, int]) -> None:
    f = form("int8:block2x3x5:fp32")
    torch.manual_seed(2)
    x = torch.randn(7, 8, 33)
    parts = reference.choose_qparams(x, f.format)
    made = empty(x.shape, 8, x.shape, torch.int8)
    given = given_parts(f, x.shape, parts.scale, None, None, None, x)
    run("quantize", f, texture(x), made, given, None, local)
    assert torch.equal(made.tensor(), reference.quantize(x, parts, parse(f.format)))


def test_groups_cover_the_texture() -> None:
    assert groups((9, 8, 1), (4, 8, 2)) == (3, 1, 1)


LARGE = (1024, 1024, 64)


@pytest.mark.parametrize(
    ("block", "size", "expected"),
    [
        ((8, 1, 1), LARGE, (128, 2, 1)),  # groups of 32: sixteen in a row, of two rows
        ((1, 2, 3), LARGE, (32, 2, 4)),  # blocks of three layers, side by side
        ((4, 16, 1), LARGE, (16, 16, 1)),  # four tiles of 16 x 16
        ((1024, 1, 1), LARGE, (128, 2, 1)),  # parts of rows
        ((1, 1024, 1), LARGE, (16, 16, 1)),  # blocks along columns
        ((1, 1, 1), (3, 5, 100), (4, 8, 8)),  # narrow textures: no invocation lies idle far off
    ],
)
def test_a_block_first_then_its_neighbours(
    block: tuple[int, int, int], size: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    found = local_size(block, size)
    assert found == expected
    assert prod(found) == INVOCATIONS


def test_small_textures_have_small_workgroups() -> None:
    assert local_size((1, 1, 1), (1, 1, 1)) == (1, 1, 1)
    assert local_size((2, 2, 1), (3, 2, 1)) == (4, 2, 1)
