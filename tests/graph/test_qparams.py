# SPDX-License-Identifier: BSD-3-Clause
"""What a scale's shape says, against the definition written out here and against torch itself."""

import itertools
import operator

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.compat import torchao
from blockscale.core.parse import CATALOG, parse
from blockscale.graph.qparams import QuantParams


def of_shapes(shape, scale, fmt=None) -> QuantParams:
    return QuantParams(torch.ones(scale), None, None, fmt and parse(fmt), tuple(shape))


# (tensor, scale) -> (per tensor, per channel, per group, channel axis, block size)
TABLE = [
    ((8, 64), (1, 1), (True, False, False, 0, (8, 64))),
    ((8, 64), (), (True, False, False, 0, (8, 64))),
    ((8, 64), (1,), (True, False, False, 0, (8, 64))),
    ((8, 64), (1, 1, 1), (True, False, False, 0, (8, 64))),
    ((8, 64), (8, 1), (False, True, False, 0, (1, 64))),
    ((8, 64), (1, 64), (False, True, False, 1, (8, 1))),
    ((8, 64), (8, 2), (False, False, True, None, (1, 32))),
    ((8, 64), (1, 2), (False, False, True, 1, (8, 32))),
    ((8, 64), (2, 4), (False, False, True, None, (4, 16))),
    ((8, 64), (8, 64), (False, False, False, None, (1, 1))),
    ((2, 8, 64), (2, 8, 1), (False, False, False, None, (1, 1, 64))),
    ((4, 3, 3, 3), (4, 1, 1, 1), (False, True, False, 0, (1, 3, 3, 3))),
    ((64, 64), (64, 1), (False, True, False, 0, (1, 64))),
    ((), (), (True, False, False, 0, ())),
    ((1, 1), (1, 1), (True, False, False, 0, (1, 1))),
    ((1, 64), (1, 1), (True, False, False, 0, (1, 64))),
]


@pytest.mark.parametrize(("shape", "scale", "expected"), TABLE, ids=str)
def test_what_a_shape_says(shape, scale, expected) -> None:
    p = of_shapes(shape, scale)
    found = (p.is_per_tensor, p.is_per_channel, p.is_per_group, p.channel_axis, p.block_size)
    assert found == expected


@pytest.mark.parametrize("shape", [(4, 6), (6, 6), (2, 4, 6)], ids=str)
def test_every_dividing_scale_repeats_to_the_tensor(shape) -> None:
    """block_size is what makes a scale cover the tensor, for each scale that divides it."""
    counts = [[c for c in range(1, n + 1) if n % c == 0] for n in shape]
    for scale in itertools.product(*counts):
        p = of_shapes(shape, scale)
        covered = torch.ones(scale)
        for dim, size in enumerate(p.block_size):
            covered = covered.repeat_interleave(size, dim)
        assert covered.shape == shape or p.is_per_tensor
        assert sum((p.is_per_tensor, p.is_per_channel, p.is_per_group)) <= 1
        cut = [c for c in scale if c != 1]
        assert p.is_per_tensor == (not cut)
        assert (p.channel_axis is None) == (len(cut) > 1)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*CATALOG, "int8:tile3x40:fp32", "int8:group7@0:fp32:asym"])
@pytest.mark.parametrize("shape", [(8, 128), (5, 70), (2, 3, 96)], ids=str)
def test_every_format(fmt: str, shape) -> None:
    q = bs.quantize(torch.randn(shape), fmt)
    p = QuantParams.of(q)
    assert (p.scale is q.qparams.scale) and p.format == parse(fmt) and p.shape == shape
    sizes = parse(fmt).block.sizes_for(len(shape))
    assert p.block_size == tuple(
        n if size == 0 else min(n, size) for n, size in zip(shape, sizes, strict=True)
    )
    assert p.is_per_tensor == (p.scale.numel() == 1)


def test_partial_last_blocks_come_from_the_format() -> None:
    assert of_shapes((8, 70), (8, 3), "int8:group32:fp32").block_size == (1, 32)
    # 96 / 3 is 32, but these are blocks of 40, 40 and 16
    assert of_shapes((8, 96), (8, 3), "int8:group40:fp32").block_size == (1, 40)
    with pytest.raises(ValueError, match="3 scales do not divide dimension 1"):
        of_shapes((8, 70), (8, 3))


@pytest.mark.parametrize(
    ("scale", "fmt", "message"),
    [
        ((8, 2), "int8:group16:fp32", "dimension 1 has 4 blocks of the format, found 2"),
        ((8,), "int8:channel0:fp32", "of the tensor's rank"),
        ((1, 1), "int8:channel0:fp32", "dimension 0 has 8 blocks of the format, found 1"),
        ((), "int8:channel0:fp32", "dimension 0 has 8 blocks of the format, found 1"),
        ((8, 1), "int8", "dimension 0 has 1 blocks of the format, found 8"),
        ((8, 64), "int8:channel0:fp32", "dimension 1 has 1 blocks of the format, found 64"),
        ((3, 1), None, "3 scales do not divide dimension 0"),
        ((0, 1), None, "0 scales do not divide dimension 0"),
        ((8, 1, 1), None, "of the tensor's rank"),
    ],
)
def test_a_scale_that_contradicts(scale, fmt, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_shapes((8, 64), scale, fmt)


def test_a_zero_point_of_another_shape() -> None:
    fmt = parse("uint8:channel0:fp32:asym")
    with pytest.raises(ValueError, match=r"the zero point has shape \[8\]"):
        QuantParams(torch.ones(8, 1), torch.zeros(8), None, fmt, (8, 64))
    tensor = parse("uint8")
    assert QuantParams(torch.ones(1), torch.zeros(()), None, tensor, (8, 64)).is_per_tensor


def test_flat_blocks_have_no_axis() -> None:
    q = bs.quantize(torch.randn(64, 64), "int8:flat64:fp32")
    p = QuantParams.of(q)
    assert p.scale_shape == (1, 64)
    assert (p.is_per_channel, p.is_per_group, p.channel_axis) == (False, True, None)
    with pytest.raises(ValueError, match="run over the flattened tensor"):
        _ = p.block_size


class Net(nn.Module):
    def __init__(self, given: str, chosen: str):
        super().__init__()
        self.given, self.chosen = given, chosen
        w = bs.quantize(torch.randn(6, 128), given)
        self.size = w.size
        self.register_buffer("codes", w.packed)
        self.register_buffer("scale", w.qparams.scale)
        self.register_buffer("zero", w.zero_point)

    def forward(self, x):
        ops = torch.ops.blockscale
        w = ops.dequantize(
            self.codes, self.scale, self.zero, None, self.given, self.size, torch.float32
        )
        codes, *parts = ops.choose_quantize(x, self.chosen, None)
        zero = parts[1] if "asym" in self.chosen else None
        y = ops.dequantize(codes, parts[0], zero, None, self.chosen, x.shape[-1], torch.float32)
        z = ops.quantize(y, self.scale[:1, :1], self.zero[:1, :1], None, "uint8")
        dynamic = ops.fake_quantize(y, None, None, None, "int8")
        return y @ w.T, z, dynamic


def exported(given: str, chosen: str) -> torch.fx.GraphModule:
    sizes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    x = torch.randn(2, 3, 128)
    return torch.export.export(Net(given, chosen), (x,), dynamic_shapes=sizes).module()


def test_of_nodes_with_symbolic_sizes() -> None:
    graph = exported("uint4:group32:fp32:asym", "uint8:token:fp32:asym")
    found = {}
    for node in graph.graph.nodes:
        name = getattr(node.target, "__name__", str(node.target))
        found.setdefault(name, []).append(node)
    weight, x = (QuantParams.of(node) for node in found["dequantize.default"])
    assert weight.block_size == (1, 32) and weight.is_per_group and weight.channel_axis is None
    assert isinstance(weight.scale, torch.fx.Node) and weight.scale.op == "get_attr"
    assert x.block_size[2] == 128 and x.block_size[:2] == (1, 1)
    assert not (x.is_per_tensor or x.is_per_channel or x.is_per_group)
    chosen = QuantParams.of(found["choose_quantize.default"][0])
    codes = next(n for n in found["getitem"] if n.args[1] == 0)
    assert chosen.scale is x.scale is QuantParams.of(codes).scale
    assert chosen.zero_point is x.zero_point
    given = QuantParams.of(found["quantize.default"][0])
    assert given.is_per_tensor and len(given.shape) == 3
    assert given.block_size == given.shape


def test_of_other_nodes() -> None:
    graph = exported("uint4:group32:fp32:asym", "int8_token")
    by_name = {}
    for node in graph.graph.nodes:
        by_name.setdefault(getattr(node.target, "__name__", str(node.target)), node)
    with pytest.raises(ValueError, match="expected a node of blockscale's choose_quantize, deq"):
        QuantParams.of(by_name["matmul.default"])
    with pytest.raises(ValueError, match="its scale is dynamic"):
        QuantParams.of(by_name["fake_quantize.default"])
    chosen = by_name["choose_quantize.default"]
    scale = next(user for user in chosen.users if user.args[1] == 1)
    scale.target = operator.add
    with pytest.raises(ValueError, match="nothing reads its scale"):
        QuantParams.of(chosen)
    by_name["quantize.default"].args[0].meta.pop("val")
    with pytest.raises(ValueError, match=r"the shape of its result is not known"):
        QuantParams.of(by_name["quantize.default"])


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*CATALOG, "int8:tile3x40:fp32", "int8:group7@0:fp32:asym"])
@pytest.mark.parametrize("shape", [(5, 70), (2, 3, 96)], ids=str)
def test_numbers_of_every_format(fmt: str, shape) -> None:
    x, other = torch.randn(shape), torch.randn(shape) * 2
    q = bs.quantize(x, fmt)
    p = QuantParams.of(q)
    assert torch.equal(p.quantize(x), q.codes) and p.quantize(x).dtype == q.codes.dtype
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(p.dequantize(q.codes, dtype), q.dequantize(dtype))
    if "scale" in q.format.parts and q.format.parts in (("scale",), ("scale", "zero_point")):
        mine = bs.quantize(other, fmt, q.scale, q.zero_point)  # which clips
        assert torch.equal(p.quantize(other), mine.codes)


# (tensor, scale, zero point): each scale's shape is that of torchao's blocks with keepdim
AFFINE = [
    ((), (), "uint8:tensor:fp32:asym:recip"),
    ((70,), (1,), "uint8:tensor:fp32:asym:recip"),
    ((8, 64), (1, 1), "uint8:tensor:fp32:asym:recip"),
    ((8, 64), (), "uint8:tensor:fp32:asym:recip"),
    ((8, 64), (8, 1), "uint8:channel0:fp32:asym:recip"),
    ((8, 64), (1, 64), "int8:channel1:fp32:asym:recip"),
    ((8, 64), (8, 2), "uint4:group32:fp32:asym:recip"),
    ((8, 64), (2, 4), "int8:tile4x16:fp32:asym:recip"),
    ((4, 2, 8, 6), (2, 1, 4, 2), "int8:block2x2x2x3:fp32:asym:recip"),
]


@pytest.mark.parametrize(("shape", "scale", "fmt"), AFFINE, ids=str)
def test_numbers_are_those_of_torchaos_primitives(shape, scale, fmt: str) -> None:
    """Of compat.torchao, which is torchao bit for bit."""
    bits = parse(fmt).bits
    target = {4: torch.uint4, 8: torch.uint8 if fmt[0] == "u" else torch.int8}[bits]
    low = 0 if fmt[0] == "u" else -128
    zero = torch.randint(low, low + 2**bits, scale, dtype=torch.int32)
    p = QuantParams(torch.rand(scale) / 30 + 0.01, zero, None, parse(fmt), shape)
    x = torch.randn(shape) * 3
    args = p.block_size, p.scale.reshape(-1), zero.reshape(-1), target
    if len(scale) == len(shape):
        args = p.block_size, p.scale, zero, target
    codes = torchao.quantize_affine(x, *args)
    assert torch.equal(p.quantize(x), codes) and p.quantize(x).dtype == codes.dtype
    assert torch.equal(p.dequantize(codes), torchao.dequantize_affine(codes, *args))


@pytest.mark.parametrize(
    ("fmt", "dtype", "low", "high"),
    [
        ("uint8:channel0:fp32:asym", torch.uint8, 0, 255),
        ("int8:channel0:fp32", torch.int8, -127, 127),
        ("int8:channel0:fp32:full", torch.int8, -128, 127),
        ("int4:group32:fp32:full", torch.int8, -8, 7),
        ("mxfp4", torch.uint8, -6, 6),
    ],
)
def test_what_codes_are(fmt: str, dtype, low: int, high: int) -> None:
    p = QuantParams.of(bs.quantize(torch.randn(4, 64), fmt))
    assert (p.dtype, p.quant_min, p.quant_max) == (dtype, low, high)
    with pytest.raises(ValueError, match="no format, so codes have no meaning"):
        _ = of_shapes((8, 64), (8, 1)).dtype


def test_stochastic_rounding_takes_a_seed() -> None:
    fmt, x = "int4:group8:fp32:stochastic", torch.randn(4, 16)
    q = bs.quantize(x, fmt, seed=(7, 3))
    p = QuantParams.of(q)
    assert torch.equal(p.quantize(x, seed=(7, 3)), q.codes)
    assert not torch.equal(p.quantize(x, seed=(8, 3)), q.codes)


X, FMT = torch.ones(8, 64), "uint4:channel0:fp32:asym"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: p.quantize(X[:4]), ValueError, r"of shape \[8, 64\], but x has shape \[4, 64\]"),
        (lambda p: p.dequantize(X[0].byte()), ValueError, r"but codes has shape \[64\]"),
        (lambda p: p.dequantize(X), TypeError, "codes of torch.uint8, found torch.float32"),
        (lambda p: p.dequantize(X.byte() * 16), ValueError, "codes of 4 bits, found 16 ... 16"),
        (lambda p: p.quantize(X.int()), TypeError, "float32, bfloat16 or float16, found int32"),
    ],
)
def test_what_numbers_are_not_taken(call, kind, message: str) -> None:
    p = QuantParams.of(bs.quantize(torch.randn(8, 64), FMT))
    with pytest.raises(kind, match=message):
        call(p)


def test_parameters_without_numbers() -> None:
    with pytest.raises(ValueError, match="no format, so codes have no meaning"):
        of_shapes((8, 64), (8, 1)).quantize(X)
    form = parse(FMT)
    with pytest.raises(ValueError, match="found None"):
        QuantParams(torch.ones(8, 1), None, None, form, (8, 64)).quantize(X)
    floats = QuantParams(torch.ones(8, 1), torch.zeros(8, 1), None, form, (8, 64))
    with pytest.raises(ValueError, match=r"the zero_point must be int32 of shape \(8, 1\), found"):
        floats.dequantize(X.byte())
    symmetric = parse("int8:channel0:fp32")
    extra = QuantParams(torch.ones(8, 1), torch.zeros(8, 1), None, symmetric, (8, 64))
    with pytest.raises(ValueError, match="has no zero_point, but one was passed"):
        extra.quantize(X)
    graph = exported("uint4:group32:fp32:asym", "int8_token")
    node = next(n for n in graph.graph.nodes if "dequantize" in str(n.target))
    with pytest.raises(TypeError, match="scale is a node of a graph"):
        QuantParams.of(node).quantize(X)
