# SPDX-License-Identifier: BSD-3-Clause
"""The registry of families, and a family that nobody knew before: sixteen values of a codebook."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core import elements, reference
from blockscale.core.element import Element
from blockscale.core.elements import FAMILIES, read_element
from blockscale.core.pack import pack, unpack
from blockscale.core.rounding import Round
from tests.support.oracle_elements import FAMILIES as TESTS
from tests.support.oracle_elements import element_of

VALUES = (
    -1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0,
    0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0,
)  # fmt: skip


@dataclass(frozen=True)
class Codebook(Element):
    """Sixteen values; a number becomes the nearest, of two the one with the even code."""

    name = "book16"
    bits = 4
    max = 1.0
    smallest = 0.08
    roundings_matter = False

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del rounding, zero_point, wide
        table = torch.tensor(VALUES)
        distance = (y.nan_to_num(0.0, 9.0, -9.0).clamp(-1, 1)[..., None] - table).abs()
        odd = torch.arange(16) % 2
        nearest = distance == distance.amin(-1, keepdim=True)
        return torch.where(nearest, 2 - odd, 0).argmax(-1).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        return torch.tensor(VALUES)[codes.to(torch.int64)]

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del rounding, zero_point, wide
        return y.abs() <= 1


@pytest.fixture
def book() -> Iterator[None]:
    """As if its file lay in blockscale/core/elements; kernels do not know it."""
    family = SimpleNamespace(
        read=lambda name: Codebook() if name == "book16" else None,
        SPELLINGS="book16",
        EXAMPLES=("book16",),
    )
    elements.FAMILIES.append(family)
    try:
        with bs.use("reference"):
            yield
    finally:
        elements.FAMILIES.remove(family)
        elements.read_element.cache_clear()


def test_every_family_says_what_it_has_and_has_a_test() -> None:
    for family in FAMILIES:
        name = family.__name__.rpartition(".")[2]
        assert family.EXAMPLES or name in ("learned_codebook", "int_float")  # with a tensor alone
        assert family.SPELLINGS
        assert [family.read(each).name for each in family.EXAMPLES] == list(family.EXAMPLES)
        assert family.read("nothing") is None
        assert (TESTS / f"test_{name}.py").is_file()
        for each in family.EXAMPLES:
            assert element_of(each).bits == family.read(each).bits


def test_no_name_has_two_meanings() -> None:
    for family in FAMILIES:
        for name in family.EXAMPLES:
            assert [other for other in FAMILIES if other.read(name) is not None] == [family]


def test_an_unknown_name_is_told_all_there_are(book: None) -> None:
    known = "; ".join(family.SPELLINGS for family in FAMILIES)
    assert known.endswith("; book16")
    with pytest.raises(
        ValueError, match=f"^unknown element 'book17'; choose from {re.escape(known)}$"
    ):
        read_element("book17")


FORMATS = ["book16:group8:fp32", "book16:channel0:e8m0/tosa", "book16:group8:e4m3"]


def nearest(y: np.ndarray) -> np.ndarray:
    """By exhaustion in float32: the nearest value, NaN as 0."""
    table = np.float32(VALUES)
    flat = np.nan_to_num(y, nan=0.0, posinf=9, neginf=-9).clip(-1, 1).reshape(-1)
    codes = [min(range(16), key=lambda c: (abs(v - table[c]), c % 2)) for v in flat]
    return np.array(codes, np.uint8).reshape(y.shape)


@pytest.mark.parametrize("spelling", FORMATS)
def test_it_quantizes(book: None, spelling: str) -> None:
    fmt = bs.parse(spelling)
    assert str(fmt) == spelling
    assert bs.parse(str(fmt)) == fmt
    x = torch.randn(6, 19)
    x[0, :3] = torch.tensor([0.0, -0.0, 1e-40])
    q = bs.quantize(x, spelling)
    steps = reference.step_of(q.qparams, fmt)
    y = x / fmt.block.expand(steps, x.shape)
    assert q.codes.numpy().tolist() == nearest(y.numpy()).tolist()
    values = torch.tensor(VALUES)[q.codes.long()] * fmt.block.expand(steps, x.shape)
    assert torch.equal(q.dequantize(), values)
    assert torch.equal(bs.fake_quantize(x, spelling), values)
    assert torch.equal(unpack(pack(q.codes, fmt.element), fmt.element, x.shape), q.codes)


def test_a_model_has_it_and_its_file(book: None, tmp_path) -> None:
    spelling, path = FORMATS[0], tmp_path / "model.safetensors"
    model = nn.Sequential(nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 3))
    dense = [bs.fake_quantize(layer.weight.detach(), spelling) for layer in (model[0], model[2])]
    ledger = bs.quantize_(model, bs.Recipe(spelling, input="book16:token:fp32"))
    assert ledger["0"].weight == spelling
    assert torch.equal(model[0].dequantize_weight(), dense[0])
    assert torch.equal(model[2].dequantize_weight(), dense[1])
    x = torch.randn(5, 24)
    seen = bs.fake_quantize(x, "book16:token:fp32")
    expected = nn.functional.linear(seen, dense[0], model[0].bias)
    torch.testing.assert_close(model[0](x), expected, rtol=0, atol=1e-5)
    bs.save(model, path)
    again = bs.load(nn.Sequential(nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 3)), path)
    assert torch.equal(again(x), model(x))
    assert again[0].weight.fmt == spelling


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (":asym", r"asym \(a zero point\) needs an integer element"),
        (":full", "full needs a signed integer element"),
        (":up", "book16 rounds in one way only, so it takes no rounding: leave that out"),
    ],
)
def test_options_it_has_no_meaning_for(book: None, options: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bs.parse(FORMATS[0] + options)


def test_it_is_gone_again() -> None:
    with pytest.raises(ValueError, match="unknown element 'book16'"):
        read_element("book16")
    assert math.isfinite(bs.formats()["mxfp4"].element.max)
