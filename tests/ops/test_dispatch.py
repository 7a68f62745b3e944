# SPDX-License-Identifier: BSD-3-Clause
"""An op called from Python skips the dispatcher only where nothing listens there."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from blockscale.core.operand import UNQUANTIZED, Value
from blockscale.ops import op as module
from blockscale.ops.fused import FUSED
from blockscale.ops.primitives import fake_quantize
from tests.support import fresh
from tests.support.ops_dispatch import X, call


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What `alone` answered, negated, call by call."""
    answers: list[bool] = []
    alone = module.alone

    def watched(args: tuple[object, ...]) -> bool:
        answers.append(not alone(args))
        return not answers[-1]

    monkeypatch.setattr(module, "alone", watched)
    return answers


def test_a_plain_call_does_not(dispatched: list[bool]) -> None:
    expected = fake_quantize.overload(X, None, None, None, "mxfp8", None)
    assert torch.equal(call(X), expected)
    with torch.no_grad():
        assert torch.equal(call(X.clone().requires_grad_()), expected)
    with torch.inference_mode():
        assert torch.equal(call(X.clone()), expected)
    assert dispatched == [False] * 3


def test_a_gradient_does(dispatched: list[bool]) -> None:
    x = X.clone().requires_grad_()
    call(x).sum().backward()
    assert x.grad is not None and x.grad.count_nonzero() > 0
    assert dispatched[0]


def test_a_dispatch_mode_does(dispatched: list[bool]) -> None:
    seen = []

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Listener():
        call(X)
    assert dispatched[0]
    assert "blockscale.fake_quantize.default" in seen


def test_a_profiler_does(dispatched: list[bool]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call(X)
    assert dispatched[0]
    assert "blockscale::fake_quantize" in {event.key for event in profile.key_averages()}


def test_a_transform_does(dispatched: list[bool]) -> None:
    """functorch's wrappers are plain Tensors by type, without memory of their own."""
    torch.func.grad(lambda x: call(x).sum())(X)
    assert dispatched[0]


def test_lists_are_looked_into() -> None:
    """Tensors of a list are as telling as others."""
    plain = ([X, X.clone()], [None], [1, 2], [""], 3)
    assert module.alone(plain)
    assert not module.alone(([X, X.clone().requires_grad_()], [None]))
    assert not module.alone(([X], [torch._neg_view(X)]))
    with torch.no_grad():
        assert module.alone(([X.clone().requires_grad_()],))

    class Sub(Tensor):
        pass

    assert not module.alone(([X.as_subclass(Sub)],))


def test_autograd_looks_into_lists() -> None:
    """Of an op whose operands are a list of tensors."""
    cat = FUSED["cat"]
    values = [Value(X), Value(X.clone().requires_grad_())]
    assert cat(*values)[0].requires_grad
    assert not cat(Value(X), Value(X))[0].requires_grad
    flat = cat.flatten(values, {}, torch.float32, UNQUANTIZED)
    assert cat.op.overload(*flat)[0].requires_grad
    with torch.no_grad():
        assert not cat.op.overload(*flat)[0].requires_grad


def test_a_negated_view_and_a_subclass_do(dispatched: list[bool]) -> None:
    negated = torch._neg_view(X)
    assert torch.equal(call(negated), call(-X))

    class Sub(Tensor):
        pass

    assert type(call(X.as_subclass(Sub))) is Sub
    assert dispatched == [True, False, True]


def test_fake_tensors_and_graphs() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        assert call(mode.from_tensor(X)).shape == X.shape
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), call(X))


def test_the_first_call_of_a_process_may_be_on_fake_tensors() -> None:
    """What plain tensors are is found out once; under fake tensors it was found out wrongly."""
    code = """
import torch, blockscale
from torch._subclasses.fake_tensor import FakeTensorMode
mode = FakeTensorMode()
with mode, torch.no_grad():
    x = mode.from_tensor(torch.randn(8, 27))
    made = torch.ops.blockscale.choose_quantize.default(x, "int8", None)
print(type(made[0]).__name__, tuple(made[0].shape))
"""
    ran = fresh.run(code, ready=fresh.WITH_OURS)
    assert ran.stdout.strip() == "FakeTensor (8, 27)", ran.stderr
