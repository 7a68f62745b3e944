# SPDX-License-Identifier: BSD-3-Clause
"""Views of stacks: products of any of their matrices are calls of layers, all else is as floats."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.calibration.matrices import (
    Matrices,
    StackView,
    read_as_before,
    read_as_views,
)

E, N, K = 3, 6, 4


class Holder(nn.Module):
    """What has a stack."""

    def __init__(self, values: Tensor):
        super().__init__()
        self.stack = nn.Parameter(values)


def held(
    values: Tensor, parts: int = 1, *, transposed: bool = False
) -> tuple[Holder, Matrices, Any]:
    """A module with a stack that is read as a view; and who was called with what."""
    home, calls = Holder(values), []
    matrices = Matrices("a.stack", home, E, parts, transposed=transposed)
    read_as_views(home, {"stack": matrices})
    home._modules.update(matrices.layers)
    for key, layer in matrices.layers.items():
        layer.register_forward_hook(lambda _, x, y, key=key: calls.append((key, x[0])))
    return home, matrices, calls


STACK = torch.arange(float(E * N * K)).reshape(E, N, K)
X = torch.tensor([[1.0, 2, 0, -1], [0, 1, 1, 0], [3, 0, 0, 1], [2, 2, 1, 1], [1, 0, 0, 0]])
OFFS = torch.tensor([2, 2, 5], dtype=torch.int32)
IDS = torch.tensor([2, 0, 2, 0, 0])

# {how code may do it: (with w [E, n, k], the calls by expert)}
WAYS: dict[str, tuple[Callable[[Any], Tensor], list[int]]] = {
    "linear": (lambda w: F.linear(X, w[1]), [1]),
    "linear with bias": (lambda w: F.linear(X, w[torch.tensor(2)], torch.ones(N)), [2]),
    "negative index": (lambda w: F.linear(X, w[-1]), [2]),
    "matmul": (lambda w: X @ w[0].T, [0]),
    "mT": (lambda w: torch.matmul(X, w.mT[1]), [1]),
    "weight first": (lambda w: w[1] @ X.T, [1]),
    "vector": (lambda w: w[1] @ X[0], [1]),
    "unbind": (lambda w: F.linear(X, w.unbind(0)[2]), [2]),
    "loop": (lambda w: torch.stack([X @ each.t() for each in w]), [0, 1, 2]),
    "grouped": (lambda w: torch._grouped_mm(X, w.transpose(-2, -1), offs=OFFS), [0, 2]),
    "batched": (lambda w: torch.bmm(w[IDS], X.unsqueeze(-1)).squeeze(-1), [0, 2]),
    "batched, turned": (lambda w: torch.bmm(X.unsqueeze(1), w.permute(0, 2, 1)[IDS]), [0, 2]),
    "all": (lambda w: torch.bmm(X[None].expand(E, -1, -1), w.mT), [0, 1, 2]),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_products(way: str, parts: int) -> None:
    home, matrices, calls = held(STACK, parts)
    compute, experts = WAYS[way]
    assert torch.equal(compute(home.stack), compute(STACK))
    keys = [key for e in experts for key in matrices.keys[e]]
    assert [key for key, _ in calls] == keys
    assert not matrices.unseen


def test_turned_stacks_and_rows() -> None:
    home, _, calls = held(STACK.mT.contiguous(), transposed=True)
    assert torch.equal(X @ home.stack[1], X @ STACK[1].T)
    assert torch.equal(torch.bmm(X[None].expand(E, -1, -1), home.stack)[2], X @ STACK[2].T)
    rows, _, more = held(STACK.reshape(E * N, K))
    assert torch.equal(X @ rows.stack.view(-1, N, K)[2].T, X @ STACK[2].T)
    assert [key for key, _ in calls + more] == [
        "stack[1]",
        "stack[0]",
        "stack[1]",
        "stack[2]",
        "stack[2]",
    ]


def test_rows_of_zeros_were_not_routed() -> None:
    home, _, calls = held(STACK)
    x = torch.stack([X, torch.zeros_like(X), X.masked_fill(torch.arange(5)[:, None] == 1, 0.0)])
    assert torch.equal(torch.bmm(x, home.stack.mT), torch.bmm(x, STACK.mT))
    assert [(key, len(rows)) for key, rows in calls] == [("stack[0]", 5), ("stack[2]", 4)]


@pytest.mark.parametrize(
    "other",
    [lambda w: torch.einsum("tk,enk->ten", X, w), lambda w: X @ w[:, :K].sum(0), lambda w: w * 2],
)
def test_anything_else_gets_floats(other: Callable[[Any], Tensor]) -> None:
    home, matrices, calls = held(STACK)
    assert torch.equal(other(home.stack), other(STACK))
    assert not calls
    assert matrices.unseen


def test_it_looks_like_the_parameter() -> None:
    home, matrices, _ = held(STACK)
    view: Any = home.stack
    assert isinstance(view, StackView)
    assert (view.shape, view.dtype, view.ndim, len(view)) == (STACK.shape, torch.float32, 3, E)
    assert view.data_ptr() == matrices.parameter.data_ptr()
    assert torch.equal(view.detach().contiguous().floats(), STACK)
    assert matrices.layers["stack[1]"].weight.data_ptr() == matrices.parameter[1].data_ptr()
    assert not matrices.unseen
    read_as_before(home, Holder)
    assert type(home) is Holder


def test_gradients_go_through() -> None:
    home, matrices, _ = held(STACK, 2)
    x = X.clone().requires_grad_()
    torch._grouped_mm(x, home.stack.mT, offs=OFFS).sum().backward()
    expected = torch.cat([STACK[0].sum(0).expand(2, -1), STACK[2].sum(0).expand(3, -1)])
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    assert len(matrices.keys[0]) == 2
