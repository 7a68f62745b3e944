# SPDX-License-Identifier: BSD-3-Clause
"""One native call for all matrices of a stack that have rows."""

import pytest
import torch

from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cpu import available

if (reason := available()) is not None:
    pytest.skip(reason, allow_module_level=True)

from blockscale.kernels.cpu import _native, grouped
from blockscale.kernels.cpu.native import Ready
from blockscale.ops.grouped_linear import grouped_linear
from tests.support.stacked import stacked


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The matrices that were made ready, in order."""
    seen: list[int] = []
    real = grouped._parts_ready

    def made(whole: object, index: int) -> tuple[Ready, ...]:
        seen.append(index)
        return real(whole, index)

    monkeypatch.setattr(grouped, "_parts_ready", made)
    return seen


def test_only_matrices_with_rows_are_read(ready: list[int]) -> None:
    """Neither cut nor multiplied: an expert without tokens costs nothing; another costs it once."""
    whole, x = stacked("mxfp4", experts=5), torch.randn(3, 64)
    first = grouped_linear(x, whole, torch.tensor([0, 2, 2, 2, 3]))
    assert ready == [1, 4]
    assert torch.equal(grouped_linear(x, whole, torch.tensor([0, 2, 2, 2, 3])), first)
    grouped_linear(x, whole, torch.tensor([0, 2, 2, 3, 3]))
    assert ready == [1, 4, 3]


def test_changes_are_seen(ready: list[int]) -> None:
    """Counted by torch or not, in one matrix or in all."""
    whole, x, ends = stacked("int8_channel"), torch.randn(4, 64), torch.tensor([2, 2, 4])
    before = grouped_linear(x, whole, ends)
    whole.scale.mul_(2)
    assert torch.equal(grouped_linear(x, whole, ends), before * 2)
    whole.scale.numpy()[0] *= 2  # torch does not count it
    after = grouped_linear(x, whole, ends)
    assert torch.equal(after[:2], before[:2] * 4)
    assert torch.equal(after[2:], before[2:] * 2)
    by = Quantizer(None, None, None, str(parse("int8_token")))
    coded = grouped_linear(x, whole, ends, None, by)
    whole.scale.numpy()[0] *= 0.5
    assert torch.equal(grouped_linear(x, whole, ends, None, by)[:2], coded[:2] / 2)
    assert ready[:4] == [0, 2, 0, 2]


def test_integers_and_what_they_cannot_give() -> None:
    """One matrix with a step that float32 sums could leave their range by: it alone goes another
    way, and has the bits that it has alone."""
    whole, x = stacked("int8_channel"), torch.randn(6, 64)
    whole.scale[1, 3] = 1e35
    ends = torch.tensor([2, 4, 6])
    by = Quantizer(None, None, None, str(parse("int8_token")))
    calls: list[list[int]] = []
    real = _native.grouped_integers

    def counted(*args: object) -> list[int] | None:
        calls.append(real(*args))
        return calls[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "grouped_integers", counted)
        y = grouped_linear(x, whole, ends, None, by)
    assert calls == [[1]]
    assert torch.equal(y, grouped_linear.reference(x, whole, ends, None, by))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_and_small_groups(threads: int) -> None:
    """A matrix with most of the rows has all threads; the others share a region."""
    whole, x = stacked("nvfp4", experts=6, parts=2), torch.randn(90, 64)
    ends = torch.tensor([70, 71, 75, 75, 82, 90])
    expected = grouped_linear.reference(x, whole, ends)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(grouped_linear(x, whole, ends), expected)
    finally:
        torch.set_num_threads(before)


def test_rows_without_numbers() -> None:
    """Of k = 0 the products are the biases."""
    bias, y = torch.randn(3, 12), torch.empty(4, 12)
    rows = grouped._Rows([0, 2], [0, 1, 3], torch.randn(4, 0), y, bias)
    assert torch.equal(grouped._without_sums(rows)[:3], bias[[0, 2, 2]])
