# SPDX-License-Identifier: BSD-3-Clause
"""One input of several layers is multiplied once, and never mistaken for another."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration import last_products
from blockscale.calibration.input_stats import Product, product_of
from blockscale.calibration.last_products import LastProducts


class Rows:
    """Rows of an input in pieces, and how often somebody asked for them."""

    def __init__(self, x: Tensor, size: int = 3):
        self.x, self.size, self.asked = x, size, 0

    def __call__(self) -> Iterator[Tensor]:
        self.asked += 1
        yield from self.x.split(self.size)


def sums(last: LastProducts, rows: Rows, alike: object = 0) -> Tensor:
    (found,) = last.of(rows.x, alike, rows)
    assert found.rows == len(rows.x)
    return found.sum


def test_the_same_input_is_multiplied_once() -> None:
    last, rows = LastProducts(), Rows(torch.randn(7, 4))
    first = sums(last, rows)
    torch.testing.assert_close(first.float(), rows.x.T @ rows.x)
    assert sums(last, rows) is first and rows.asked == 1


def test_what_is_another_input_is_multiplied_anew() -> None:
    last, rows = LastProducts(), Rows(torch.randn(7, 4))
    before = sums(last, rows).clone()
    assert sums(last, rows, alike=1) is not None and rows.asked == 2  # other rows of it
    rows.x.mul_(2)  # the same tensor, changed in place
    torch.testing.assert_close(sums(last, rows, alike=1), 4 * before)
    other = Rows(rows.x.clone())
    sums(last, other)
    assert (rows.asked, other.asked) == (3, 1)
    with torch.inference_mode():
        unseen = Rows(torch.randn(3, 4))
        for _ in range(2):
            assert len(list(last.of(unseen.x, 0, unseen))) == 1
    assert unseen.asked == 2  # without a version nobody could tell


def test_it_holds_no_input() -> None:
    last = LastProducts()
    sums(last, Rows(torch.randn(7, 4)))
    assert last._of is not None and last._of() is None
    assert list(last.of(torch.randn(0, 4), 0, list)) == []


class Attention(nn.Module):
    """Query, key and value of one input; the value's is changed in place between."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        return self.q(x) * self.k(x) + self.v(x.mul_(2))


def test_grams_of_layers_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Tensor] = {}

    class Spy:
        name, needs_gram = "spy", True

        def quantize(
            self, weight: Tensor, fmt: bs.Format, gram: Tensor, layer: str
        ) -> tuple[bs.QTensor, list[str]]:
            seen[layer] = gram
            return bs.quantize(weight, fmt), []

    made = []

    def counted(x: Tensor) -> Product:
        made.append(x)
        return product_of(x)

    monkeypatch.setattr(last_products, "product_of", counted)
    batches = [torch.randn(5, 8) for _ in range(2)]
    bs.calibrate(Attention(), batches, "int8_channel", weight=Spy(), progress=False)
    x = torch.cat(batches).double()
    torch.testing.assert_close(seen["q"], x.T @ x / 10)
    assert torch.equal(seen["q"], seen["k"])
    torch.testing.assert_close(seen["v"], 4 * seen["q"])
    assert len(made) == 2 * 2  # of each batch that of query and key, and that of value
