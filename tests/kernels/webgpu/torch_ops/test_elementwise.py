# SPDX-License-Identifier: BSD-3-Clause
"""Arithmetic is torch's to the bit; functions are near what float64 gives."""

import itertools
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.kernels.webgpu.torch_device import HANDLERS
from blockscale.kernels.webgpu.torch_ops import elementwise
from tests.kernels.webgpu.torch_ops.numbers import FLOATS, hard, near, pairs, same

ARITHMETIC = [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum]
COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
EXACT = [
    torch.neg,
    torch.abs,
    torch.relu,
    lambda x: x.clamp(-1.5, 2.0),
    lambda x: x.clamp_min(0.25),
]

# name -> (function, units in the last place, smaller errors are as good, numbers beyond which a
# value is outside of the function's exactness)
NEAR: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "tanh": (torch.tanh, 8, 0),
    "sigmoid": (torch.sigmoid, 12, 1e-38),
    "silu": (F.silu, 12, 1e-37),
    "gelu": (F.gelu, 16, 1e-7),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 16, 2e-7),
    "exp": (torch.exp, 200, 1e-37),
    "log": (lambda x: x.abs().log(), 8, 1e-7),
    "sqrt": (lambda x: x.abs().sqrt(), 4, 1e-19),
    "rsqrt": (lambda x: x.abs().rsqrt(), 8, 0),
    "reciprocal": (torch.reciprocal, 8, 1e-38),
    "erf": (torch.erf, 8, 1e-38),
}


@pytest.fixture(params=["plain", "flushing"])
def hardware(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device as it is, and as one that flushes subnormals and divides badly."""
    exact = (("hardware", request.param), ("arithmetic", "integers"))
    monkeypatch.setattr(elementwise, "EXACT", exact)


@pytest.mark.some(3)
@pytest.mark.usefixtures("hardware")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS], ids=lambda op: op.__name__)
def test_of_two(op: Callable[..., Tensor], dtype: torch.dtype, device: torch.device) -> None:
    a, b = pairs(dtype)
    assert same(op(a.to(device), b.to(device)), op(a, b))


@pytest.mark.some(3)
@pytest.mark.parametrize("op", [*ARITHMETIC[:4], *COMPARISONS], ids=lambda op: op.__name__)
@pytest.mark.parametrize("number", [0.3, 0.0, -2.5, float("inf"), 3])
def test_of_one_and_a_number(
    op: Callable[..., Tensor], number: float, device: torch.device
) -> None:
    x = hard(count=64)
    assert same(op(x.to(device), number), op(x, number))


def test_a_sum_that_is_off_is_seen(device: torch.device) -> None:
    a, b = pairs()
    off = (a + b).nextafter(torch.tensor(float("inf")))
    assert not same(a.to(device) + b.to(device), off)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", range(len(EXACT)))
def test_exact_functions(op: int, dtype: torch.dtype, device: torch.device) -> None:
    x = hard(dtype)
    assert torch.equal(EXACT[op](x.to(device)).cpu().nan_to_num(7), EXACT[op](x).nan_to_num(7))


@pytest.mark.some(3)
@pytest.mark.parametrize("name", NEAR)
def test_functions(name: str, device: torch.device) -> None:
    op, ulps, least = NEAR[name]
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.logspace(-30, 30, 601), hard(count=64)])
    x = x[(x.abs() > 2.0**-100) | (x == 0) | x.isnan()]  # below, devices may flush
    assert near(op(x.to(device)), op(x.double()), ulps, least)
    assert not near(op(x.to(device)) * 1.001, op(x.double()), ulps, least)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("name", NEAR)
def test_functions_of_halves(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(513).to(dtype)
    op = NEAR[name][0]
    found = op(x.to(device)).cpu()
    assert found.dtype == dtype
    torch.testing.assert_close(found, op(x), atol=1e-3, rtol=torch.finfo(dtype).eps * 2)


def test_broadcast_and_views(device: torch.device) -> None:
    a, b = torch.randn(3, 1, 5, 7), torch.randn(4, 1, 7)
    on, other = a.to(device), b.to(device)
    assert same(on + other, a + b)
    assert same(on[:, :, 1:4, ::2] * other[1:2, :, ::2], a[:, :, 1:4, ::2] * b[1:2, :, ::2])
    assert same(on.transpose(0, 3) - 1, a.transpose(0, 3) - 1)
    assert same(on.half() + other, a.half() + b)  # as torch promotes
    assert same(2 - on, 2 - a)
    assert same(1 / on, 1 / a)
    assert same(torch.add(on, other, alpha=0.3), torch.add(a, b * torch.tensor(0.3)))


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (257,), (1025, 3)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(shape).to(dtype)
    assert same(x.to(device) * x.to(device) + 1, x * x + 1)
    assert same(torch.relu(x.to(device)), torch.relu(x))


def test_in_place(device: torch.device) -> None:
    x, y = torch.randn(4, 6), torch.randn(6)
    on = x.to(device)
    whole, part = on.view(24), on[1:3, ::2]
    on += y.to(device)
    part.mul_(2)
    part.relu_()
    x += y
    x[1:3, ::2].mul_(2).relu_()
    assert same(on, x)
    assert same(whole, x.view(24))
    with pytest.raises(RuntimeError, match="cannot be written"):
        on[0].add_(torch.ones(4, 6, device=device))


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.int32], ids=str)
def test_where(dtype: torch.dtype, device: torch.device) -> None:
    x, y = (torch.randn(5, 7) * 50).abs().to(dtype), torch.arange(7).to(dtype)
    mask = torch.rand(5, 7) > 0.5
    on = x.to(device), y.to(device), mask.to(device)
    assert same(torch.where(on[2], on[0], on[1]), torch.where(mask, x, y))
    assert same(on[0].masked_fill(on[2], 3), x.masked_fill(mask, 3))
    assert same(torch.where(on[2][0], on[0].T[:7, :1], on[1]), torch.where(mask[0], x.T[:7, :1], y))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1])
def test_powers(exponent: float, device: torch.device) -> None:
    x = torch.rand(100) + 0.1
    torch.testing.assert_close(x.to(device).pow(exponent).cpu(), x.pow(exponent))


def test_numbers_as_bits() -> None:
    for number in (1.0, -0.0, 0.1, 1e-45, 1e40, float("nan")):
        expected = torch.tensor(number).view(torch.int32).item() & 0xFFFFFFFF
        assert elementwise.bits(number) == expected


WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ARITHMETIC_of_integers = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum]
BITS = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor]
COMPARISONS_of_integers = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]


def ends(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each of some numbers with each, among them the ends of the dtype's range."""
    info = torch.iinfo(dtype)
    middle = [0, 1, 2, 3, 77, 100, 2**15 + 7, 2**31 + 5, 2**33 - 1, 2**40 + 3]
    some = [info.min, info.min + 1, info.max, info.max - 1, *middle, *(-n for n in middle)]
    few = torch.tensor(sorted({n for n in some if info.min <= n <= info.max}), dtype=dtype)
    a, b = torch.cartesian_prod(few, few).T
    return a, b


@pytest.mark.some(16)
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize(
    "op", [*ARITHMETIC_of_integers, *BITS, *COMPARISONS_of_integers], ids=lambda op: op.__name__
)
def test_integers_of_two(
    op: Callable[..., Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    a, b = ends(dtype)
    assert same(op(a.to(device), b.to(device)), op(a, b))
    number = int(b[3])
    if op not in (torch.maximum, torch.minimum):
        assert same(op(a.to(device), number), op(a, number))


@pytest.mark.parametrize(
    "op", [torch.add, torch.mul, *BITS, *COMPARISONS_of_integers], ids=lambda op: op.__name__
)
def test_of_booleans(op: Callable[..., Tensor], device: torch.device) -> None:
    a, b = torch.cartesian_prod(*[torch.tensor([True, False])] * 2).T
    assert same(op(a.to(device), b.to(device)), op(a, b))
    assert same(torch.logical_and(a.to(device), b.to(device)), torch.logical_and(a, b))
    assert same(~a.to(device), ~a)
    assert same(a.to(device).logical_not(), a.logical_not())


@pytest.mark.some(3)
@pytest.mark.parametrize(("a", "b"), [*itertools.combinations(WHOLE, 2)], ids=str)
def test_of_two_dtypes(a: torch.dtype, b: torch.dtype, device: torch.device) -> None:
    x, y = torch.arange(-5, 6).to(a), torch.arange(5, -6, -1).to(b)[:, None]
    assert same(x.to(device) * y.to(device), x * y)


def test_integers_in_place(device: torch.device) -> None:
    x = torch.arange(10)
    on = x.to(device)
    on[2:5] += 7
    on *= 3
    x[2:5] += 7
    x *= 3
    assert same(on, x)
    mask = torch.ones(2, device=device) > 0
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="not supported"):
        mask - mask


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("to", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_as_floats(dtype: torch.dtype, to: torch.dtype, device: torch.device) -> None:
    x = torch.cat([ends(dtype)[0], torch.arange(2**24 - 5, 2**24 + 9).to(dtype)])
    assert same(x.to(device).to(to), x.to(to))


@pytest.mark.parametrize("shape", [(0,), (5,), (3, 70)], ids=str)
def test_all_and_any(shape: tuple[int, ...], device: torch.device) -> None:
    for x in (torch.ones(shape) > 0, torch.zeros(shape) > 0, torch.rand(shape) > 0.1):
        on = x.to(device)
        assert on.all().item() == x.all().item()
        assert on.any().item() == x.any().item()
        assert same(on.all(-1), x.all(-1))
        assert same(on.any(0, keepdim=True), x.any(0, keepdim=True))


def test_indices(device: torch.device) -> None:
    x = torch.randn(5, 6, 7)
    on = x.to(device)
    i, j = torch.tensor([[0], [-1]]), torch.tensor([[3, 2, -6]])
    assert same(on[i.to(device), j.to(device)], x[i, j])
    assert same(on[:, j.to(device)], x[:, j])
    assert same(on[i], x[i])
    assert same(on[..., torch.tensor([1, 1], dtype=torch.int32)], x[..., torch.tensor([1, 1])])
    with pytest.raises(IndexError, match="are out of range for 5 rows"):
        on[torch.tensor([5]).to(device)]


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
    "softmax_of_columns": lambda x: x.softmax(0),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[2],
    "products": lambda x: x @ x.T,
    "means": lambda x: x.mean(1) * x.sum(0)[: x.shape[0]],
    "quotients": lambda x: 1 / (x * x + 1),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", OPS)
def test_gradients(name: str, device: torch.device) -> None:
    x = torch.randn(5, 8)
    x[0, :3] = torch.tensor([0.0, -0.0, 1.0])
    on = x.to(device).requires_grad_()
    x.requires_grad_()
    for each in (x, on):
        y = OPS[name](each)
        (y * y).sum().backward()
    assert on.grad is not None
    torch.testing.assert_close(on.grad.cpu(), x.grad, atol=1e-5, rtol=1e-5)


EARLIER = """
import warnings
import torch
import blockscale as bs

torch.ones(2, requires_grad=True).sum().backward()
warnings.simplefilter("ignore")
x = torch.ones(3, device=bs.webgpu(), requires_grad=True)
(x * x).sum().backward()
(x * x).cpu().sum().backward()
torch.autograd.grad((x * 0).sum(), x)
print(x.grad.tolist())
"""


@pytest.mark.slow  # a process of its own
def test_after_a_pass_without_the_device() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLIER], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[4.0, 4.0, 4.0]", done.stderr


def test_an_error_within_a_pass(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ValueError("as planned")

    x = torch.ones(4, device=device).requires_grad_()
    with monkeypatch.context() as patched:
        patched.setitem(HANDLERS, torch.ops.aten.threshold_backward.default, fails)
        with pytest.raises(ValueError, match="as planned"):
            torch.relu(x).sum().backward()
    torch.relu(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1, 1]
