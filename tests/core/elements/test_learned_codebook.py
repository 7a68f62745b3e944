# SPDX-License-Identifier: BSD-3-Clause
"""Learned codebooks: a table for each tensor, stored beside its codes."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.core import reference as R
from blockscale.core.arithmetic.clusters import learn
from blockscale.core.elements import read_element
from blockscale.core.parse import parse
from blockscale.kernels.numbers import lower

pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel runs")
NAMES = [f"book{bits}" for bits in range(1, 9)]
FORMATS = [
    "book4:channel0:fp32",
    "book3:group16:bf16:recip",
    "book2:tile4x8:fp16",
    "book4:flat24:fp32",
    "book5:group16:e4m3",
    "book4:group32:e8m0/tosa",
    "book3:group8:fp16:offset",
]


def nearest(y: float, table: list[float]) -> float:
    """By search, ties to the value nearer to 0 and of v and -v to v."""
    return min(table, key=lambda v: (abs(v - y), abs(v), -v))


@pytest.mark.parametrize("name", NAMES)
def test_names_and_bits(name: str) -> None:
    fmt = parse(f"{name}:channel0:fp32")
    assert fmt.element.name == name and fmt.bits == int(name[-1])
    assert fmt.parts == ("scale", "book") and parse(str(fmt)) == fmt
    assert fmt.stored((4, 6))["book"] == (torch.float32, (2**fmt.bits,))
    assert lower(fmt) is None  # no kernel reads a table: the reference runs


@pytest.mark.parametrize("name", ["book0", "book9", "book", "book16"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown element '{name}'"):
        read_element(name)


@pytest.mark.parametrize("spelling", FORMATS)
def test_codes_and_values_by_search(spelling: str) -> None:
    x = torch.randn(8, 48)
    fmt = parse(spelling)
    q = bs.quantize(x, spelling)
    assert q.qparams.book is not None
    y, table = R.in_steps(x, q.qparams, fmt), q.qparams.book.tolist()
    assert torch.equal(q.qparams.book, learn(y, len(table)))
    expected = [nearest(each, table) for each in y.flatten().tolist()]
    found = [table[code] for code in q.codes.flatten().tolist()]
    assert found == expected
    unit = q.qparams._replace(book=None, offset=None)
    steps = fmt.block.expand(R.step_of(unit, fmt), x.shape)
    values = torch.tensor(expected).reshape(x.shape) * steps
    if fmt.offset is not None:
        values = values + fmt.block.expand(q.offset.float(), x.shape)
    assert torch.equal(q.dequantize(), values)
    assert torch.equal(bs.fake_quantize(x, spelling), values)


@pytest.mark.some(40)
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("block", ["channel0", "group64", "tensor"])
def test_never_worse_than_integers_of_the_same_bits(bits: int, block: str) -> None:
    """On weights: their error in steps of their scale, which is what k-means lowers."""
    generator = torch.Generator().manual_seed(bits)
    layer = torch.randn(64, 512, generator=generator) * torch.rand(64, 1, generator=generator)
    for weight in (layer, layer.sign() * layer.square(), layer.clamp(-0.3, 0.3)):
        steps = []
        for element in (f"book{bits}", f"int{bits}"):
            q = bs.quantize(weight, f"{element}:{block}:fp32")
            amax = weight.abs().amax() if block == "tensor" else None
            unit = bs.quantize(weight, f"int8:{block}:fp32")
            step = (
                unit.format.block.expand(unit.scale, weight.shape) * 127 if amax is None else amax
            )
            steps.append(float(((q.dequantize() - weight) / step).double().square().sum()))
        assert steps[0] < steps[1]


def test_edges() -> None:
    for shape in [(0, 8), (1, 1), (3, 5)]:
        q = bs.quantize(torch.randn(shape), "book4:channel0:fp32")
        assert q.dequantize().shape == shape
    assert not bs.quantize(torch.zeros(2, 8), "book2:channel0:fp32").dequantize().any()
    x = torch.tensor([[1.0, math.nan, math.inf, -0.5]])
    q = bs.quantize(x, "book2:channel0:fp32")
    assert q.dequantize().tolist()[0][0] == 1.0 and bool(q.dequantize().isfinite().all())
    same = torch.full((2, 4), 3.0)
    assert torch.equal(bs.quantize(same, "book1:channel0:fp32").dequantize(), same)
    half = torch.randn(4, 32).bfloat16()
    found = bs.quantize(half, "book4:channel0:fp32").dequantize()
    assert torch.equal(found, bs.quantize(half.float(), "book4:channel0:fp32").dequantize())


def test_a_table_in_any_order_with_equal_values() -> None:
    element = read_element("book2").with_book(torch.tensor([1.0, -1.0, 0.5, 0.5]))
    codes = element.encode(torch.tensor([-3.0, 0.6, 0.75, 0.8]), torch.round, None, False)
    assert element.decode(codes).tolist() == [-1.0, 0.5, 0.5, 1.0]


def test_what_goes_wrong_is_said() -> None:
    element, x = read_element("book2"), torch.randn(2, 8)
    with pytest.raises(
        ValueError,
        match=r"book2: its values are learned, and the tensor that holds them \(`book`\)",
    ):
        element.decode(torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="book2: expected 4 finite values, found"):
        element.with_book(torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="expected 4 finite values"):
        element.with_book(torch.tensor([0.0, 1.0, math.nan, 2.0]))
    fmt = parse("book2:channel0:fp32")
    with pytest.raises(
        ValueError,
        match="book2 is learned from a whole tensor, and a range is not enough",
    ):
        R.qparams_from_range(*R.ranges(x, fmt), fmt)
    with pytest.raises(ValueError, match="the scale's element cannot be book4, which needs a"):
        parse("int4:group16:(book4:tensor:fp32)")
    with pytest.raises(ValueError, match="book"):
        bs.quantize(x, fmt, torch.ones(2, 1))


def test_it_travels_as_a_tensor_and_through_a_graph(tmp_path) -> None:
    x = torch.randn(6, 32)
    q = bs.quantize(x, "book3:group16:fp16")
    torch.save(q, tmp_path / "q.pt")
    again = torch.load(tmp_path / "q.pt")
    assert torch.equal(again.dequantize(), q.dequantize())
    assert torch.equal(q.to("cpu").qparams.book, q.qparams.book)
    values = torch.compile(lambda x: bs.fake_quantize(x, q.format), backend="eager")(x)
    assert torch.equal(values, q.dequantize())


def test_the_gradient_is_that_of_a_codebook() -> None:
    x = torch.randn(4, 32, requires_grad=True)
    bs.fake_quantize(x, "book4:channel0:fp32").sum().backward()
    q = bs.quantize(x.detach(), "book4:channel0:fp32")
    y = x.detach() / q.scale
    table = q.qparams.book
    inside = (y >= table.min()) & (y <= table.max())
    assert torch.equal(x.grad, inside.float())


def test_layers_and_their_files_have_it(tmp_path) -> None:
    def float_model() -> nn.Sequential:
        return nn.Sequential(nn.Embedding(12, 32), nn.Linear(32, 8))

    model, rows = float_model(), torch.tensor([3, 0, 11])
    dense = [bs.fake_quantize(layer.weight.detach(), "book4:group16:fp16") for layer in model]
    bs.quantize_(model, bs.Recipe("book4:group16:fp16", input="book5:token:fp32"))
    assert torch.equal(model[0](rows), dense[0][rows])
    assert torch.equal(model[1].dequantize_weight(), dense[1])
    bs.save(model, tmp_path / "model.safetensors")
    again = bs.load(float_model(), tmp_path / "model.safetensors")
    assert torch.equal(again(rows), model(rows))


def test_who_sees_no_whole_tensor_refuses_it(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    with pytest.raises(ValueError, match=r"the input of 0: .*is learned from a whole tensor"):
        bs.calibrate(model, [torch.randn(2, 32)], bs.Recipe("int8", input="book4:tensor:fp32"))
    (tmp_path / "in").mkdir()
    save_file({"l.weight": torch.randn(8, 32)}, tmp_path / "in" / "model.safetensors")
    recipe = bs.Recipe("book4:channel0:fp32")
    with pytest.raises(ValueError, match=r"l.weight cannot be .* in book4.*reads slabs"):
        bs.quantize_directory(tmp_path / "in", tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()
