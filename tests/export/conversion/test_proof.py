# SPDX-License-Identifier: BSD-3-Clause
"""The proof finds every difference, and tells an error's size."""

import json
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.conversion.exact import carry
from blockscale.export.conversion.proof import Conversion, Converted, error_of, prove


def test_equal_codes_and_equal_values() -> None:
    q = bs.quantize(torch.randn(300, 64), "int4:group32:fp16:full")
    assert prove("a", q, bs.QTensor(q.packed.clone(), q.qparams, q.format, q.size)) == ("codes", 0)
    other = carry(q, parse("uint4:group32:fp32:offset"))
    assert prove("a", q, other) == ("codes", 0)
    assert prove("a", other, other.dequantize()) == ("values", 0)
    negative = bs.QTensor(q.packed, q.qparams._replace(scale=-q.scale), q.format, q.size)
    found = prove("a", negative, carry(negative, parse("uint4:group32:fp32:offset")))
    assert found == ("codes", int((q.codes == 0).sum()))  # 0 * -step is -0


@pytest.mark.parametrize("part", ["packed", "scale", "zero_point"])
def test_one_bit(part: str) -> None:
    q = bs.quantize(torch.randn(300, 64), "uint4:group32:fp16:asym")
    parts, packed = q.qparams._asdict(), q.packed.clone()
    if part == "packed":
        packed[299, 31] ^= 16
    else:
        parts[part] = parts[part].clone()
        parts[part].view(torch.int16)[7, 1] ^= 1
    changed = bs.QTensor(packed, type(q.qparams)(**parts), q.format, q.size)
    with pytest.raises(bs.FileError, match=r"'a': \d+ values differ.*the output was deleted\."):
        prove("a", q, changed)
    with pytest.raises(bs.FileError, match="values differ"):
        prove("a", carry(q, parse("int5:group32:fp16:full")), changed)


def test_signs_of_zeros_and_nan() -> None:
    one, other = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([-0.0, 1.0, torch.nan])
    assert prove("a", one, other) == ("values", 1)
    with pytest.raises(bs.FileError, match="1 values differ"):
        prove("a", one, torch.tensor([0.0, torch.nan, torch.nan]))
    with pytest.raises(bs.FileError, match=r"with shape \[3\], read back with \[2\]"):
        prove("a", one, other[:2])
    assert prove("a", torch.tensor(2.0), torch.tensor(2.0)).basis == "values"


def test_errors() -> None:
    x = torch.randn(1000, 40)
    y = x + 0.01 * torch.randn(1000, 40)
    found = error_of(x, y)
    relative = float((y - x).double().norm() / x.double().norm())
    assert found.relative == pytest.approx(relative, rel=1e-6)
    assert found.sqnr == pytest.approx(-20 * torch.tensor(relative).log10().item(), rel=1e-5)
    assert error_of(x, x) == (0.0, None)
    assert error_of(torch.zeros(3), torch.ones(3)).relative == float("inf")


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1.0, 1e18, 1e30])
def test_errors_of_numbers_whose_squares_float32_has_not(size: float) -> None:
    x = torch.randn(300, 40) * size
    y = x * (1 + torch.randn(300, 40) / 64)
    wide, off = x.double(), y.double() - x.double()
    found = error_of(x, y)
    assert found.relative == pytest.approx(float(off.norm() / wide.norm()), rel=1e-6)
    assert error_of(x, torch.full_like(x, torch.inf)).relative == float("inf")


# A result is plain data, and says whether it is lossless.

ONE = Converted("a", "b", (2, 3), "exact", "Q8_0", "int8", "int8", "codes", 6, 7)


def test_lossless() -> None:
    done = Conversion("x", "y", "gguf", [ONE, replace(ONE, how="copied")])
    assert done.lossless and done.of("exact") == [ONE]
    done.tensors.append(replace(ONE, how="requantized", relative=0.1))
    assert not done.lossless
    assert json.loads(json.dumps(done.to_dict()))["tensors"][2]["relative"] == 0.1
