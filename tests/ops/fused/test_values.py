# SPDX-License-Identifier: BSD-3-Clause
"""Operands become floats and floats results; what does not fit is refused in words."""

from types import SimpleNamespace

import pytest
import torch

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.ops.fused import FUSED, values
from blockscale.ops.fused.values import needs
from tests.support.fused_cases import cases_of, check, coded, quantizer_of

X = torch.randn(4, 36)
ASYM, TWO = coded(X, "uint8:tensor:fp32:asym"), coded(X, "nvfp4")
BOOK, PLAIN = coded(X, "book4:group16:fp32"), coded(X, "int8:tensor:fp32")


def test_needs() -> None:
    assert needs("nvfp4") == (True, False, 0)
    assert needs("uint8:tensor:fp32:asym") == (False, True, 0)
    assert needs("mxfp8") == (False, False, 0)
    assert needs("book4:group16:fp32") == (False, False, 1)


WRONG = [
    (
        PLAIN._replace(scale=None),
        "fused_add: b holds codes in int8:tensor:fp32 without a scale",
    ),
    (Value(X, PLAIN.scale), "fused_add: b has a scale and no format: pass the format of its"),
    (
        ASYM._replace(zero_point=None),
        r"b in uint8\S* needs the parts scale, zero_point; found scale$",
    ),
    (
        PLAIN._replace(zero_point=ASYM.zero_point),
        r"b in int8\S* needs the parts scale; found scale, zero_point",
    ),
    (
        TWO._replace(outer=None),
        r"fused_add: b in e2m1\S* needs the parts scale, outer; found scale$",
    ),
    (PLAIN._replace(fmt="int8:tensr:fp32"), r"tensr"),
    (BOOK._replace(more=None), r"b in book4\S* needs the parts scale, book; found scale$"),
    (PLAIN._replace(more=BOOK.more), r"b in int8\S* needs the parts scale; found scale, 1 more$"),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_operands_that_do_not_fit(value: Value, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FUSED["add"](Value(X), value)


RESULTS = [
    (Quantizer(None, ASYM.zero_point, None, ASYM.fmt), "zero point or an outer scale but no scale"),
    (Quantizer(PLAIN.scale, None, None, ""), "its result has a scale and no format"),
    (
        Quantizer(ASYM.scale, None, None, ASYM.fmt),
        r"its result in uint8\S* needs the parts scale, zero_point; f",
    ),
    (
        Quantizer(PLAIN.scale, None, PLAIN.scale, PLAIN.fmt),
        "needs the parts scale; found scale, outer",
    ),
    (Quantizer(None, None, None, "int9000:tensor:fp32"), "int9000"),
    (Quantizer(None, None, None, "int8:tensor:fp32:stochastic"), "needs a seed"),
]


@pytest.mark.parametrize(("by", "message"), RESULTS)
def test_results_that_do_not_fit(by: Quantizer, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FUSED["add"](Value(X), Value(X), y=by)


def test_names_in_lists_and_nothing_to_join() -> None:
    with pytest.raises(
        ValueError, match=r"fused_cat: tensors\[1\] holds codes in int8\S* without a scale"
    ):
        FUSED["cat"](PLAIN, PLAIN._replace(scale=None))
    with pytest.raises(
        ValueError, match="fused_stack: expected at least one tensor to join, found"
    ):
        FUSED["stack"]()


def test_indices_have_no_format() -> None:
    with pytest.raises(
        ValueError, match="fused_argmax returns indices, which have no format; found"
    ):
        FUSED["argmax"](PLAIN, y=quantizer_of(X, "dynamic mxfp8"))


def test_a_scale_of_another_shape() -> None:
    """A scale a row, where the codes have one for each column: an error of the primitive."""
    wrong = PLAIN._replace(scale=torch.ones(3, 1), fmt="int8:channel0:fp32")
    with pytest.raises((ValueError, RuntimeError), match="3"):
        FUSED["add"](Value(X), wrong)


def test_wrong_operands_are_refused_in_graphs_too() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ValueError, match="without a scale"):
        FUSED["relu"](Value(torch.empty(4, 36), fmt="int8:tensor:fp32", size=36))


# Planted bugs: each turns the comparison of tests/support/fused_cases.py red.


@pytest.mark.some(3)
@pytest.mark.parametrize("part", ["zero_point", "outer", "scale"])
def test_a_part_that_is_dropped_is_found(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = values.dequantize

    def dropped(packed: Operand, dtype: torch.dtype) -> torch.Tensor:
        if getattr(packed, part) is not None:
            neutral = torch.zeros_like if part == "zero_point" else torch.ones_like
            packed = packed._replace(**{part: neutral(getattr(packed, part))})
        return plain(packed, dtype)

    case = cases_of("leaky_relu")[0]
    check("leaky_relu", case, torch.float32)
    monkeypatch.setattr(values, "dequantize", SimpleNamespace(run=dropped))
    with pytest.raises(AssertionError, match="leaky_relu of"):
        check("leaky_relu", case, torch.float32)


def test_a_given_scale_that_is_not_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = values.quantize

    def other(y: torch.Tensor, by: Quantizer) -> torch.Tensor:
        return plain(y, quantizer_of(y * 2, f"static {by.fmt}"))

    monkeypatch.setattr(values, "quantize", SimpleNamespace(run=other))
    with pytest.raises(AssertionError, match="static"):
        check("add", cases_of("add")[0], torch.float32)


def test_a_cast_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose coded operands are decoded to bfloat16, not float32."""
    plain = values.floats

    def narrow(value: Value, dtype: torch.dtype, wide: bool) -> torch.Tensor:
        return plain(value, torch.bfloat16, wide).to(dtype)

    monkeypatch.setattr(values, "floats", narrow)
    with pytest.raises(AssertionError):
        check("linear", cases_of("linear")[0], torch.float32)


def test_floats_in_floats_out() -> None:
    (y,) = FUSED["add"](Value(X.t()), Value(X.t()), y=UNQUANTIZED)
    assert y.is_contiguous() and torch.equal(y, X.t() * 2)
