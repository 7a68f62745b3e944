# SPDX-License-Identifier: BSD-3-Clause
"""What is kept beside a weight is made once, again when the weight changes, and goes with it."""

import gc

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.kernels.resident import Residents
from tests.support.set_aside import set_aside


def weight(fmt: str = "int8", size: int = 4) -> Operand:
    return Operand(torch.zeros(3, 4, dtype=torch.int8), torch.ones(3, 1), None, None, fmt, size)


class Counted:
    """A Residents whose values are the numbers of their making."""

    def __init__(self, unchanged=None) -> None:
        self.made = 0
        self.residents = Residents(self.make, self.fingerprint, unchanged)

    def make(self, operand: Operand) -> int:
        self.made += 1
        return self.made

    def fingerprint(self, part: Tensor) -> int:
        return hash(tuple(part.flatten().tolist()))


def test_made_once() -> None:
    counted, w = Counted(), weight()
    assert [counted.residents[w] for _ in range(3)] == [1, 1, 1]
    assert counted.residents[Operand(*w)] == 1  # the tensors count, not the tuple
    assert counted.residents[weight()] == 2


@pytest.mark.parametrize("part", ["codes", "scale"])
def test_made_again_when_a_tensor_changes(part: str) -> None:
    counted, w = Counted(), weight()
    assert counted.residents[w] == 1
    getattr(w, part).add_(1)
    assert [counted.residents[w] for _ in range(2)] == [2, 2]
    other = w._replace(**{part: getattr(w, part).clone()})
    assert counted.residents[other] == 3


def test_made_again_for_another_meaning() -> None:
    """The same codes in another format, of another size, with a zero point that was not there."""
    counted, w = Counted(), weight()
    assert counted.residents[w] == 1
    zero = torch.zeros(3, 1, dtype=torch.int32)
    for n, other in enumerate(
        (w._replace(fmt="uint8"), w._replace(size=3), w._replace(zero_point=zero))
    ):
        assert counted.residents[other] == n + 2


def test_inference_tensors_by_their_bytes() -> None:
    counted = Counted()
    with torch.inference_mode():
        w = weight()
        assert counted.residents[w] == counted.residents[w] == 1
        w.codes[1, 2] = 5
        assert counted.residents[w] == 2


def test_values_may_know_themselves_that_they_are_stale() -> None:
    stale: list[int] = []
    counted, w = Counted(lambda value: value not in stale), weight()
    assert counted.residents[w] == 1
    stale.append(1)
    assert counted.residents[w] == 2


def test_it_goes_with_the_weight() -> None:
    set_aside()
    counted, w, other = Counted(), weight(), weight()
    counted.residents[w], counted.residents[other]
    assert len(counted.residents) == 2
    del w
    gc.collect()
    assert len(counted.residents) == 1
    kept = other.codes
    del other  # its scale goes: what was made of both is of no use any more
    gc.collect()
    assert len(counted.residents) == 0 and kept.shape == (3, 4)


def test_what_making_raises_is_raised_and_nothing_is_kept() -> None:
    def make(operand: Operand) -> int:
        raise ValueError("codes of another shape")

    residents: Residents[int] = Residents(make, lambda part: 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="codes of another shape"):
            residents[weight()]
    assert len(residents) == 0
