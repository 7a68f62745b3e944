# SPDX-License-Identifier: BSD-3-Clause
"""Which calls with a read weight meet our kernels, and their gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.parse import CATALOG
from blockscale.layers import weight_tensor as products
from blockscale.layers.store import QWeight
from blockscale.layers.weight_source import Source
from blockscale.ops import grouped_linear
from tests.support.read_models import pair

X, IMAGE = torch.randn(3, 5, 64), torch.randn(2, 4, 6, 6)
OURS = {
    "linear": (lambda m: F.linear(X, m.fc.weight, m.fc.bias), "linear"),
    "@": (lambda m: X @ m.fc.weight.t(), "linear"),
    "addmm": (lambda m: torch.addmm(m.fc.bias, X[0], m.fc.weight.T), "linear"),
    "rows": (lambda m: F.linear(X, m.fc.weight[3:9]), "linear"),
    "columns of the transposed": (lambda m: X @ m.fc.weight.t()[:, 3:9], "linear"),
    "expert": (lambda m: F.linear(X, m.stack[2]), "linear"),
    "embedding": (lambda m: F.embedding(torch.tensor([[1, 3]]), m.table.weight), "embedding"),
    "rows by index": (lambda m: m.table.weight[torch.tensor([4, -1])], "embedding"),
    "conv": (lambda m: F.conv2d(IMAGE, m.conv.weight, m.conv.bias, stride=2), "conv"),
    "transposed": (lambda m: F.conv_transpose2d(IMAGE.repeat(1, 2, 1, 1), m.up.weight, groups=2),
                   "conv_transpose"),
}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("call", OURS)
def test_products_meet_our_kernels(call: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = pair("int8_channel:".rstrip(":"))
    run, op = OURS[call]
    if call == "expert":
        model, plain = pair("mxfp4")
    calls: list[str] = []
    for name in ("linear", "embedding", "conv", "conv_transpose"):
        where: Any = grouped_linear if name == "linear" else products
        monkeypatch.setattr(where, name, partial(counted, calls, name, getattr(where, name)))
    monkeypatch.setattr(Source, "floats", refused)
    with torch.set_grad_enabled(grad):
        y = run(model)
    assert calls == [op]
    monkeypatch.undo()
    torch.testing.assert_close(y, run(plain), rtol=1e-5, atol=1e-5)


def counted(calls: list[str], name: str, ours: Callable[..., Tensor], *args: Any) -> Tensor:
    calls.append(name)
    return ours(*args)


def refused(self: Source) -> Tensor:
    raise AssertionError(f"{self.name} was dequantized")


def test_gradients_are_by_the_dequantized_product() -> None:
    model, plain = pair("mxfp4")
    for run in (
        lambda m, x: F.linear(x, m.fc.weight),
        lambda m, x: x @ m.fc.weight.t(),
        lambda m, x: F.linear(x, m.stack[1]),
        lambda m, x: F.conv2d(x[..., :4].reshape(-1, 4, 5, 1), m.conv.weight, padding=1),
    ):
        found = []
        for m in (model, plain):
            x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
            (run(m, x) ** 2).sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_other_dtypes_fail_as_with_floats() -> None:
    model, plain = pair("mxfp4")
    for m in (model, plain):
        with pytest.raises(RuntimeError, match=r"dtype|Half|same"):
            F.linear(X.half(), m.fc.weight)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = F.linear(X, model.fc.weight), F.linear(X, plain.fc.weight)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected)


def test_out_of_range_rows_are_refused() -> None:
    model, _ = pair("mxfp4")
    with pytest.raises((IndexError, RuntimeError)):
        F.embedding(torch.tensor([50]), model.table.weight)


def test_a_quantized_bias_meets_the_kernel_by_its_values() -> None:
    """A bias that holds codes is read as well: kernels get plain tensors."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    bs.quantize_(model, bs.Recipe("mxfp4", bias="int8"))
    layer = model[0]
    values = layer.quantized_bias.dequantize()
    expected = F.linear(X, layer.dequantize_weight(), values)
    for y in (
        F.linear(X, layer.weight, layer.bias),
        torch.addmm(layer.bias, X[0], layer.weight.t()),
    ):
        assert type(y) is Tensor
        torch.testing.assert_close(
            y, expected if y.ndim == 3 else expected[0], rtol=1e-5, atol=1e-5
        )


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*CATALOG, "int4:group32:fp32:offset", "uint4:group32:fp16:asym"])
def test_every_format(fmt: str) -> None:
    weight = QWeight.quantize(torch.randn(32, 64), bs.parse(fmt))
    values, codes = weight.dequantize(), weight.codes.clone()
    x = torch.randn(2, 64)
    before = torch.nn.functional.linear(x, weight.read())
    weight.read().div_(4)
    assert torch.equal(weight.dequantize(), values / 4)
    assert torch.equal(weight.codes, codes)
    assert torch.equal(torch.nn.functional.linear(x, weight.read()), before / 4)
    weight.read().mul_(torch.tensor(8.0))
    assert torch.equal(weight.dequantize(), values * 2)


@pytest.mark.parametrize("factor", [3, 0.3, 0.0, -2.0, float("inf"), float("nan"), True])
def test_other_factors_are_refused(factor: float) -> None:
    weight = QWeight.quantize(torch.randn(4, 32), bs.parse("mxfp4"))
    values = weight.dequantize()
    with pytest.raises(RuntimeError, match="its codes are fixed"):
        weight.read().mul_(factor)
    assert torch.equal(weight.dequantize(), values)


@pytest.mark.parametrize("fmt", ["mxfp4", "int8", "int4:group32:fp16", "nvfp4"])
def test_what_the_scale_cannot_hold_is_refused_and_nothing_changed(fmt: str) -> None:
    weight = QWeight.quantize(torch.randn(4, 32), bs.parse(fmt))
    values, parts = weight.dequantize(), [b.clone() for b in weight.buffers()]
    with pytest.raises(RuntimeError, match="its codes are fixed"):
        weight.read().mul_(2.0**200)
    assert torch.equal(weight.dequantize(), values)
    assert all(torch.equal(a, b) for a, b in zip(parts, weight.buffers(), strict=True))
