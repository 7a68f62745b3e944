# SPDX-License-Identifier: BSD-3-Clause
"""Gradients in an op's own arguments; what needs none is only passed on by autograd."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from blockscale.core.operand import Operand, Quantizer
from blockscale.kernels.registry import Choice, choice, use
from blockscale.ops import gradient, op
from blockscale.ops.gradient import differentiable, not_differentiable
from tests.support.ops_dispatch import X, call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether autograd was asked for more than to pass the call on, call by call."""
    answers: list[bool] = []
    is_plain_call = gradient.is_plain_call

    def watched(keys: object, args: tuple[object, ...]) -> bool:
        answers.append(not is_plain_call(keys, args))
        return not answers[-1]

    monkeypatch.setattr(gradient, "is_plain_call", watched)
    return answers


def dispatch(x: Tensor) -> Tensor:
    return torch.ops.blockscale.fake_quantize(x, None, None, None, "mxfp8", None)


def test_a_plain_call_is_passed_on(asked: list[bool]) -> None:
    expected = call(X)
    assert torch.equal(dispatch(X), expected)
    with torch.no_grad():
        assert torch.equal(dispatch(X.clone().requires_grad_()), expected)
    assert asked == [False] * 2


def test_a_gradient_is_not(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    x = X.clone().requires_grad_()
    dispatch(x).sum().backward()
    assert x.grad is not None and x.grad.count_nonzero() > 0
    assert asked[0]
    monkeypatch.setattr(forward_ad, "_current_level", 0)  # as within forward_ad.dual_level()
    dispatch(X)
    assert asked[-1]


def test_what_has_no_memory_of_its_own_is_not(asked: list[bool]) -> None:
    assert torch.equal(dispatch(torch._neg_view(X)), call(-X))
    assert torch.equal(dispatch(torch._efficientzerotensor(X.shape)), torch.zeros_like(X))
    assert asked == [True, True]
    torch.func.grad(lambda x: dispatch(x).sum())(X)
    assert asked[2]


def test_a_subclass_is_passed_on_if_it_asks_nothing(asked: list[bool]) -> None:
    class Sub(Tensor):
        pass

    x = X.as_subclass(Sub).requires_grad_()
    dispatch(x).sum().backward()
    assert x.grad is not None
    assert asked[0]
    assert torch.equal(dispatch(X.as_subclass(Sub)), call(X))
    assert not asked[-1]


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> op.Op:
    """An op of two operands, x * scale * the other scale, by a name of its own."""
    monkeypatch.setattr(op, "OPS", {})

    def reference(x: Tensor, by: Quantizer, other: Operand, times: int) -> Tensor:
        return x * by.scale * other.scale * times

    reference.__name__ = f"scaled_{abs(hash(request.node.name))}"
    return op.op()(reference)


def operands(scale: Tensor, other: Tensor) -> tuple[Quantizer, Operand]:
    return (
        Quantizer(scale, None, None, "int8"),
        Operand(torch.zeros(1, dtype=torch.int8), other, None, None, "int4", 1),
    )


def test_backward_gets_the_ops_own_arguments(scaled: op.Op) -> None:
    seen = []

    def backward(slope, wanted, x, by, other, times):
        seen.append((wanted, choice(), type(by), by.fmt, type(other), other.size, times))
        return {"x": slope * by.scale * other.scale * times, "other_scale": slope.sum() * x.sum()}

    differentiable(scaled, backward)
    x, a, b = torch.tensor([2.0], requires_grad=True), torch.tensor(3.0), torch.tensor(5.0)
    b.requires_grad_()
    with use("reference"):
        y = scaled(x, *operands(a, b), 7)
    y.backward()
    assert (x.grad.item(), b.grad.item(), a.grad) == (105.0, 2.0, None)
    assert seen == [
        ({"x", "other_scale"}, Choice("reference", False), Quantizer, "int8", Operand, 1, 7)
    ]


def test_no_gradient_is_an_error_not_a_wrong_one(scaled: op.Op) -> None:
    not_differentiable(scaled, "use another")
    x = torch.tensor([2.0], requires_grad=True)
    with use("reference"):
        y = scaled(x, *operands(torch.tensor(3.0), torch.tensor(5.0)), 7)
    with pytest.raises(RuntimeError, match=f"blockscale::{scaled.name} has no gradient: use anoth"):
        y.sum().backward()
