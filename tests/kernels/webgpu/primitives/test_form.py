# SPDX-License-Identifier: BSD-3-Clause
"""How tensors of a format lie in memory."""

import pytest
import torch

from blockscale.core.block import read_block
from blockscale.kernels.webgpu.gpu import device
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.kernels.webgpu.primitives import form as forms
from blockscale.kernels.webgpu.primitives.choose import Outer, choose
from blockscale.kernels.webgpu.primitives.form import (
    STEP,
    InTexture,
    NumberRoles,
    Parts,
    Piece,
    back,
    coding,
    floats,
    form,
    geometry,
    given_parts,
    memory_of,
    new_parts,
    numbers,
    outer_of_blocks,
    pieces,
    read,
    reading,
    results_of,
    shader,
    sizes,
    whole,
    windows,
)
from blockscale.kernels.webgpu.texture_storage import texture
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from tests.kernels.webgpu.equal import hard, wrong


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


@pytest.mark.parametrize(
    ("shape", "block", "kind", "blocks", "size"),
    [
        ((4, 64), "group32", "line", 8, 32),
        ((4, 37), "group32", "box", 8, 32),
        ((37,), "group32", "line", 2, 32),
        ((4, 6, 8), "tensor", "line", 1, 192),
        ((4, 6, 8), "channel0", "line", 4, 48),
        ((4, 6, 8), "channel1", "box", 6, 32),
        ((4, 6, 8), "token", "line", 24, 8),
        ((3, 5), "flat4", "line", 4, 4),
        ((4, 6), "flat4@0", "box", 6, 4),
        ((4, 6, 8), "block2x*x8", "line", 2, 96),
        ((4, 6, 8), "block2x3x4", "box", 8, 24),
        ((), "tensor", "line", 1, 1),
    ],
)
def test_blocks_lie_in_a_line_or_in_boxes(
    shape: tuple[int, ...], block: str, kind: str, blocks: int, size: int
) -> None:
    at = geometry(shape, read_block(block))
    assert (at.kind, at.blocks, at.block) == (kind, blocks, size)
    assert len(at.shader_sizes) == (1 if kind == "line" else 16)


def test_neighbours_share_a_scale_where_blocks_divide_into_them() -> None:
    assert geometry((4, 64), read_block("group32")).shares(8)
    assert not geometry((4, 64), read_block("group4")).shares(8)
    assert geometry((7,), read_block("tensor")).shares(8)
    assert geometry((4, 48), read_block("tile2x16")).shares(16)
    assert not geometry((4, 36), read_block("tile2x16")).shares(8)  # rows end within eights


def test_too_many_elements_or_dimensions_are_told() -> None:
    with pytest.raises(ValueError, match="too large"):
        geometry((1 << 16, 1 << 16), read_block("tensor"))
    with pytest.raises(ValueError, match="up to 8"):
        geometry((4,) * 10, read_block("block" + "x".join("2" * 10)))


def test_sixteen_bits_are_read_as_halves() -> None:
    assert numbers(torch.float32).load == "words"
    assert numbers(torch.bfloat16) == NumberRoles("bfloat16", "halves", "halves")


def test_constants_of_a_kernel_come_before_those_of_a_format() -> None:
    f = form("int4")
    kernel = Outer(coding(f), "plain")
    assert dict(shader(f, kernel, {"BITS": 9}).constants)["BITS"] == 9
    made = shader(f, kernel, {"SCALE_BITS": 16, "POISONS": False})
    assert (made.part, dict(made.constants)["BITS"]) == ("kernels/choose/outer", 4)
    assert "const SCALE_BITS: u32 = 16u;" in source(made, ("outers",), None).text


FORMATS = [
    *("nvfp4", "uint4:group32:bf16:asym"),
    *(pytest.param(fmt, marks=pytest.mark.slow) for fmt in ("int8:group32:fp32", "mxfp4")),
]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_bits_do_not_depend_on_what_a_device_does_with_floats(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divisions off by ulps, subnormals flushed; and teams of invocations, as on GPUs."""
    monkeypatch.setattr(forms, "HARDWARE", "flushing")
    monkeypatch.setattr("blockscale.kernels.webgpu.primitives.plan._ALONE", 0)
    assert not wrong(hard((4, 96), torch.float32), fmt)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_right_with_floats_is_computed_with_them(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ARITHMETIC)
    assert not wrong(hard((4, 96), torch.float32), fmt)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["int8:group8:fp32", "int8:block2x3x5:fp32", "e4m3:tensor:fp32"])
@pytest.mark.parametrize("shape", [(4, 6, 16), (3, 5, 7)], ids=str)
def test_textures_are_read_as_buffers_are(fmt: str, shape: tuple[int, ...]) -> None:
    f = form(fmt)
    torch.manual_seed(4)
    x = torch.randn(shape)
    blocks = tuple(f.scale_shape(shape))
    found = [
        download(choose(f, source, x.dtype, shape).scale, blocks, torch.float32)
        for source in (upload(x), InTexture(texture(x).texels, shape[-1], shape[-2]))
    ]
    assert torch.equal(*found)


def test_a_texture_is_seen_at_once_and_a_buffer_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.Gpu, "binding_limit", 1 << 18)
    there, count = InTexture(texture(torch.ones(2, 3)).texels, 3, 2), 100_000
    buffer = upload(torch.ones(count))
    assert [piece.count for piece, _ in windows(there, count, 32)] == [count]
    assert [piece.count for piece, _ in windows(buffer, count, 32)] == [1 << 16, count - (1 << 16)]
    assert read(there, torch.float32).load == "texture"
    assert read(buffer, torch.float32).load == "words"
    assert (sizes(there), sizes(buffer)) == ({"width": 3, "height": 2}, {})


TERNARY = "ternary:token:fp32"


def test_pieces_are_neighbours_and_begin_at_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "largest", lambda bits, step=STEP: 2 * STEP)
    found = list(pieces(5 * STEP + 3, 32))
    counts = ((0, 2 * STEP), (2 * STEP, 2 * STEP), (4 * STEP, STEP + 3))
    assert found == [Piece(*each) for each in counts]
    memory = allocate(4)
    for bits in range(1, 17):
        assert all(piece.window(memory, bits).start % 256 == 0 for piece in found)
    assert Piece(STEP, 5).window(memory, 6).nbytes == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt",
    [
        "int6:group32:fp32:stochastic", "uint8:tensor:fp32:asym",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("int3:group10:fp32", TERNARY)),
    ],
)  # fmt: skip
def test_pieces_have_the_bits_of_the_whole(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(bits: int, step: int = STEP) -> int:
        return STEP // step * step

    monkeypatch.setattr(forms, "largest", small)
    monkeypatch.setattr("blockscale.kernels.webgpu.primitives.plan.largest", small)
    assert not wrong(hard((2, STEP // 2 + 4096 + 12), torch.float32, finite=True), fmt)


def test_each_part_has_its_reader() -> None:
    f = form("uint4:group8:fp16:asym(bf16)")
    parts = new_parts(f, (2, 16))
    stored, buffers = reading(f, parts, (2, 16))
    assert (stored.given_scale, stored.given_zero) == ("float16", "bfloat16")
    assert set(buffers) == {"scales", "zeros"}
    kinds = [part.dtype for part in results_of(f, parts, (2, 16), torch.empty(0))]
    assert kinds == [torch.float16, torch.bfloat16]


def test_an_outer_scale_of_some_blocks_is_spread_over_them() -> None:
    outer = torch.tensor([[0.5], [2.0]], dtype=torch.bfloat16)
    f = form("e2m1:group16:(e4m3:token:bf16)")
    kind, each = outer_of_blocks(f, upload(outer), (2, 48))
    assert kind == "each"
    assert download(each, (6,), torch.float32).tolist() == [0.5] * 3 + [2.0] * 3


def test_a_scale_that_does_not_fit_is_told() -> None:
    x = torch.zeros(2, 16)
    with pytest.raises(ValueError, match="float32"):
        given_parts(form("int8:group8:fp32"), (2, 16), torch.ones(2, 2).half(), None, None, None, x)
    fitting = given_parts(form("int8:group8:fp32"), (2, 16), torch.ones(2, 2), None, None, None, x)
    assert isinstance(fitting, Parts) and fitting.zero is None
