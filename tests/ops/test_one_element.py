# SPDX-License-Identifier: BSD-3-Clause
"""Scales, zero points and outer scales of one element mean the same in every rank."""

import gc

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value, operand, quantizer
from blockscale.kernels.resident import Residents
from blockscale.ops import operand as operands
from blockscale.ops import primitives as P
from blockscale.ops.conv import conv
from blockscale.ops.embedding import embedding
from blockscale.ops.fused import FUSED
from blockscale.ops.linear import linear
from tests.support.op_samples import bits
from tests.support.some import crossed

pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")

FORMATS = (
    "int8",
    "uint8",
    "int8:tensor:fp16:asym(bf16)",
    "int4:tensor:e8m0/floor",
    "fp8",
    "e2m1:tensor:e4m3",
    "int4:tensor:fp32:offset",
    "uint4:tensor:(uint8:tensor:fp32):offset(uint8:tensor:fp32)",
    "binary:tensor:fp32",
    "nf4:tensor:fp32",
    "book3:tensor:fp32",
)
RANKS = ((), (1,), (1, 1, 1))


@pytest.fixture(params=["auto", "reference"])
def backend(request):
    with bs.use(request.param):
        yield request.param


def of(op):
    """Whether an op's arguments have their ranks, and those that have."""
    return op.signature.fits, op.signature.fitted


def in_rank(held: Operand | Quantizer, shape: tuple[int, ...]):
    """The same with all parts of one element in another shape."""

    def shaped(part: Tensor | None) -> Tensor | None:
        return part if part is None or part.numel() != 1 else part.reshape(shape)

    names = ("scale", "zero_point", "outer")
    parts = {name: shaped(getattr(held, name)) for name in names}
    more = held.more and [shaped(part) for part in held.more]
    return held._replace(**parts, more=more)


def calls(fmt: str) -> dict[str, list]:
    """{op: (arguments, which of them have parts)}."""
    torch.manual_seed(0)
    x, image = torch.randn(5, 12), torch.randn(2, 4, 3, 6)
    by = quantizer(bs.quantize(x, fmt).qparams, bs.quantize(x, fmt).format)
    whole = quantizer(bs.quantize(image.movedim(1, -1), fmt).qparams, by.fmt)
    w = bs.quantize(torch.randn(7, 12), fmt).operand
    kernel = bs.quantize(torch.randn(5, 16), fmt).operand
    settings = ([5, 4, 2, 2], [1, 1], [0, 0], [1, 1], 1)
    return {
        "quantize": [(P.quantize, (x, by))],
        "fake_quantize": [(P.fake_quantize, (x, by))],
        "straight_through": [(P.straight_through, (torch.ones_like(x), x, by))],
        "dequantize": [(P.dequantize, (w, torch.float32)), (P.dequantize, (w, torch.bfloat16))],
        "linear": [
            (linear, (x, w, None, UNQUANTIZED)),
            (linear, (x, w, torch.ones(7), by)),
            (linear, (torch.randn(2, 3, 12), w, None, quantizer(None, by.fmt))),
        ],
        "conv": [(conv, (image, kernel, None, *settings, whole))],
        "embedding": [(embedding, (w, torch.tensor([[0, 6], [3, 3]]), torch.float32))],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "shape"), crossed(2, FORMATS, RANKS), ids=str)
def test_every_op_takes_every_rank(fmt: str, shape: tuple[int, ...], backend: str) -> None:
    for name, many in calls(fmt).items():
        for op, args in many:
            expected = op(*args)
            other = [
                in_rank(arg, shape) if isinstance(arg, Operand | Quantizer) else arg for arg in args
            ]
            assert bits(op(*other)) == bits(expected), name
            flat = op.flatten(*other)
            assert bits(op.overload(*flat)) == bits(expected), name
            assert bits(op.reference(*other)) == bits(op.reference(*args)), name
            torch.library.opcheck(op.overload, flat, test_utils=("test_faketensor", "test_schema"))


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_fused_ops(shape: tuple[int, ...], backend: str) -> None:
    q = bs.quantize(torch.randn(5, 12), "uint8")
    held = in_rank(q.operand, shape)
    value, usual = Value(*held), Value(*q.operand)
    y = Quantizer(torch.full(shape, 0.02), torch.full(shape, 7, dtype=torch.int32), None, "uint8")
    assert bits(FUSED["add"](value, value, y=y)[0]) == bits(
        FUSED["add"](usual, usual, y=in_rank(y, (1, 1)))[0]
    )
    assert bits(FUSED["cat"](value, usual, dim=0)[0]) == bits(FUSED["cat"](usual, usual, dim=0)[0])
    fits, fitted = of(FUSED["cat"].op)
    rest = 0, torch.float32, UNQUANTIZED
    assert fits([usual], *rest) and not fits([value, usual], *rest)
    assert all(v.scale.ndim == v.zero_point.ndim == 2 for v in fitted([value, usual], *rest)[0])


def test_planted_values_are_used(backend: str) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    by = Quantizer(torch.tensor(0.5), torch.tensor(7, dtype=torch.int32), None, "uint8")
    assert P.quantize(x, by).tolist() == [[9, 11, 13]]
    held = Operand(P.quantize(x, by), by.scale, by.zero_point, None, "uint8", 3)
    assert P.dequantize(held, torch.float32).tolist() == x.tolist()


def test_outer_scales_of_blocks(backend: str) -> None:
    q = bs.quantize(torch.randn(4, 64), "nvfp4")
    for shape in RANKS:
        outer = q.qparams.outer.reshape(shape)
        held = q.operand._replace(outer=outer)
        assert bits(P.dequantize(held, torch.float32)) == bits(q.dequantize())


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_tensor_of_rank_0(fmt: str, backend: str) -> None:
    x = torch.tensor(0.75)
    q = bs.quantize(x, fmt)
    assert q.shape == ()
    for shape in RANKS:
        by = in_rank(quantizer(q.qparams, q.format), shape)
        assert bits(P.quantize(x, by)) == bits(q.packed)
        assert bits(P.fake_quantize(x, by)) == bits(bs.fake_quantize(x, fmt))
    # one code in a row is a tensor of rank 1 unless its scale has no dimension
    assert P.dequantize(in_rank(q.operand, ()), torch.float32).shape == ()
    assert P.dequantize(in_rank(q.operand, (1,)), torch.float32).shape == (1,)


def test_one_row_of_several_codes_and_a_scale_of_rank_0(backend: str) -> None:
    q = bs.quantize(torch.randn(2), "int4:tensor:fp32")
    held = in_rank(q.operand, ())
    assert held.codes.shape == (1,) and held.shape == (2,)
    assert bits(P.dequantize(held, torch.float32)) == bits(q.dequantize())


class Flat(nn.Module):
    """quantize, dequantize and linear with a scale of rank 0, as graphs of others have it."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        w = bs.quantize(torch.randn(7, 12), "int8")
        for name, part in (("codes", w.packed), ("scale", w.scale.reshape(shape))):
            self.register_buffer(name, part)
        self.register_buffer("step", torch.full(shape, 0.03))
        self.register_buffer("zero", torch.full(shape, 3, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.blockscale
        codes = ops.quantize(x, self.step, self.zero, None, "uint8")
        values = ops.dequantize(
            codes, self.step, self.zero, None, "uint8", x.shape[-1], torch.float32
        )
        own = (self.codes, self.scale, None, None, "int8")
        return ops.linear(values, *own, None, self.step, self.zero, None, "uint8")


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_export_and_compile(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    expected, model = Flat((1, 1)), Flat(shape)
    for name, part in expected.named_buffers():
        model.get_buffer(name).copy_(part.reshape(model.get_buffer(name).shape))
    x = torch.randn(4, 12)
    batch = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (x,), dynamic_shapes=batch).module()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for run in (model, program, compiled):
        assert bits(run(x)) == bits(expected(x))
        assert bits(run(x[:3])) == bits(expected(x[:3]))


def test_the_gradient_of_a_scale_has_its_shape() -> None:
    q = bs.quantize(torch.randn(3, 4), "int8")
    scale = q.qparams.scale.reshape(()).clone().requires_grad_()
    P.dequantize(q.operand._replace(scale=scale), torch.float32).sum().backward()
    assert scale.grad.shape == ()
    assert scale.grad.item() == float(q.codes.sum())


@pytest.mark.slow
def test_what_kernels_keep_beside_a_weight_is_made_once() -> None:
    made = []
    kept = Residents(lambda weight: made.append(weight.fmt) or 1, lambda part: 0)
    q = bs.quantize(torch.randn(8, 64), "int8")
    fits, fitted = of(linear)
    scale = q.qparams.scale.reshape(())
    args = (torch.randn(2, 64), q.operand._replace(scale=scale), None, UNQUANTIZED)
    assert not fits(*args)
    for _ in range(3):
        assert kept[fitted(*args)[1]] == 1
    assert len(made) == 1
    scale.mul_(2)
    assert kept[fitted(*args)[1]] == 1
    assert len(made) == 2, "a scale that changed is another weight"
    gc.collect()
    before = len(operands._views)
    del args, scale
    gc.collect()
    assert len(operands._views) == before - 1 >= 0, "the view lives as long as the scale"


def test_what_has_the_rank_stays_the_same_object() -> None:
    q = bs.quantize(torch.randn(8, 64), "nvfp4")
    fits, fitted = of(P.dequantize)
    assert fits(q.operand, torch.float32)
    assert fitted(q.operand, torch.float32)[0].scale is q.operand.scale


def test_parts_of_more_than_one_element_stay_as_they_are() -> None:
    q = bs.quantize(torch.randn(8, 64), "int8_channel")
    held = operand(q.packed, q.qparams._replace(scale=q.scale.reshape(8)), q.format, 64)
    _, fitted = of(P.dequantize)
    assert fitted(held, torch.float32)[0].scale is held.scale
