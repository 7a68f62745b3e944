# SPDX-License-Identifier: BSD-3-Clause
"""Float layers between quantized ones (test_plan.py has them over two processes)."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from blockscale.parallel import parts
from blockscale.parallel.parts import FloatParameter, put_float, refuses_float

On = Callable[[int, int], None]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Be one process of so many, which adds nothing to what others have."""

    def be(rank: int, count: int) -> None:
        monkeypatch.setattr(parts.dist, "get_rank", lambda group: rank)
        monkeypatch.setattr(parts.dist, "get_world_size", lambda group: count)
        monkeypatch.setattr(parts, "summed", lambda x, group: x)

    return be


def test_outputs_are_those_of_the_whole_layer(on: On) -> None:
    torch.manual_seed(0)
    whole, x = nn.Linear(8, 10), torch.randn(3, 8)
    found = []
    for rank in range(3):
        layer = nn.Linear(8, 10)
        layer.load_state_dict(whole.state_dict())
        layer.weight.requires_grad_(False)
        on(rank, 3)
        put_float(layer, "colwise", None)
        assert not layer.weight.requires_grad and layer.bias.requires_grad
        found.append(layer(x))
    assert layer.part == "8 to 10 of 10" and layer.weight.shape == (2, 8)
    torch.testing.assert_close(torch.cat(found, -1), whole(x))


def test_products_of_inputs_add_up(on: On) -> None:
    torch.manual_seed(0)
    whole, x = nn.Linear(8, 10), torch.randn(3, 8)
    total = -2 * whole.bias
    for rank, own in enumerate(x.split([3, 3, 2], -1)):
        layer = nn.Linear(8, 10)
        layer.load_state_dict(whole.state_dict())
        on(rank, 3)
        put_float(layer, "rowwise", None)
        total = total + layer(own)
    torch.testing.assert_close(total, whole(x))


@pytest.mark.parametrize(
    ("style", "found"),
    [("colwise", [2, 3]), ("packed_colwise", [1, 3]), ("rowwise", [[1], [1], [1], [1]])],
)
def test_stacks(on: On, style: str, found: object) -> None:
    """Matrices [4, 2]: the second half of rows, of rows of each of two parts, and of columns."""
    owner = nn.Module()
    rows = torch.arange(4.0)[:, None].expand(4, 2)
    columns = torch.arange(2.0).expand(4, 2)
    owner.stack = nn.Parameter((columns if style == "rowwise" else rows).clone()[None])
    on(1, 2)
    put_float(FloatParameter(owner, "stack"), style, None)
    kept = owner.stack[0].tolist() if style == "rowwise" else owner.stack[0, :, 0].tolist()
    assert kept == found


def test_what_cannot_be_cut() -> None:
    owner = nn.Module()
    owner.row, owner.stack = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 3, 4))
    row, stack = FloatParameter(owner, "row"), FloatParameter(owner, "stack")
    assert "has one dimension (3,), which no style" in refuses_float(row, "colwise")
    assert refuses_float(stack, "colwise") == refuses_float(nn.Linear(3, 3), "rowwise") == ""
    assert refuses_float(stack, "packed_colwise") == "3 rows cannot be divided into 2 equal parts"
    told = refuses_float(stack, "embedding_rowwise")
    assert told == "it is a float parameter; those are colwise, packed_colwise, rowwise"
    told = refuses_float(nn.Embedding(3, 4), "colwise")
    assert told.startswith("it is in float and no nn.Linear (Embedding)")
