# SPDX-License-Identifier: BSD-3-Clause
"""Columns rounded one after the other, of tensors that a GPU has: the reference's bits."""

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.kernels import registry
from blockscale.kernels.cuda.primitives.plan import form
from blockscale.kernels.cuda.quantize import round_columns as kernel
from blockscale.kernels.cuda.quantize import round_strip
from blockscale.ops.primitives import Rounded, round_columns
from tests.support.cuda_equal import DEVICE
from tests.support.ops_round_columns import FORMATS, scales_for
from tests.support.same import same

KNOWN = [each for each in FORMATS if not each.startswith("book")]  # tables are learned: no kernel
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities


def there(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.to(DEVICE)
    return [each.to(DEVICE) for each in part] if isinstance(part, list | tuple) else part


def rounded(fmt: str, c: int, n: int, backend: str, based: bool = False) -> Rounded:
    torch.manual_seed(c * n)
    wanted, coupling = torch.randn(c, n).double() * 2, torch.randn(c, c).double() * 0.3
    base = torch.randn(c, n).double().to(DEVICE) if based else None
    by = Quantizer._make(there(part) for part in scales_for(wanted, fmt))
    with bs.use(backend):
        return round_columns(wanted.to(DEVICE), base, coupling.to(DEVICE), by)


@pytest.mark.some(8)
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("fmt", KNOWN)
def test_the_references_bits(fmt: str, based: bool) -> None:
    found, expected = (rounded(fmt, 4, 37, each, based) for each in ("cuda", "reference"))
    assert all(map(same, found, expected))
    assert found.codes.device.type == DEVICE


@pytest.mark.parametrize(("c", "n"), [(0, 5), (3, 0), (1, 1), (1, 32), (2, 33)])
def test_ends(c: int, n: int) -> None:
    found, expected = (rounded("int4:group1:fp32", c, n, each) for each in ("cuda", "reference"))
    assert all(map(same, found, expected))


def test_negative_zeros_keep_their_sign() -> None:
    """And what is asked for stays: the kernel works on a copy."""
    wanted = torch.tensor([[-0.0, 0.0, -1e-300], [-0.0, 2.0, -3.0]], dtype=torch.float64).to(DEVICE)
    by = Quantizer(torch.ones(2, 3, device=DEVICE), None, None, "e2m1:group1:fp32")
    kept, coupling = wanted.clone(), wanted.new_zeros(2, 2)
    with bs.use("cuda"):
        found = round_columns(wanted, None, coupling, by)
    with bs.use("reference"):
        expected = round_columns(wanted, None, coupling, by)
    assert found.codes[0].tolist() == [8, 0, 8]
    assert all(map(same, found, expected)) and same(wanted, kept)


def test_no_call_asks_for_the_processors_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a machine with a GPU may lack: GPTQ then ran on the reference, with a warning."""
    monkeypatch.setattr(registry, "unavailable", {"cpu": "gone", "cuda": None}.get)
    expected = rounded("int4:group1:fp32", 3, 9, "reference")
    assert all(map(same, rounded("int4:group1:fp32", 3, 9, "cuda"), expected))


def test_other_tensors_are_refused() -> None:
    by = Quantizer(torch.ones(2, 3, device=DEVICE), None, None, "int4:group1:fp32")
    wide = torch.zeros(2, 3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(
        ValueError, match=r"expected float64 of shape \(2, 3\), found torch.float32"
    ):
        kernel(wide.float(), None, wide[:, :2].contiguous(), by)
    with pytest.raises(ValueError, match=r"expected float64 of shape \(2, 2\), found .*\(2, 3\)"):
        kernel(wide, None, wide, by)


@pytest.mark.parametrize("columns", [8, 16])
def test_errors_are_taken_on(columns: int) -> None:
    """Whole numbers, rounded with a step of 2; the second row has all of the first's error, the
    third half of it and none of the second's."""
    n = 11
    pending = torch.arange(3 * n, dtype=torch.float64).reshape(3, n).to(DEVICE) - 16
    wanted = pending.clone()
    coupling = torch.tensor([[9, 1, 0.5], [9, 9, 0], [9, 9, 9]], dtype=torch.float64).to(DEVICE)
    scale = torch.full((3, n), 2.0, device=DEVICE)
    codes = torch.full((3, n), 99, dtype=torch.uint8, device=DEVICE)
    values, errors = scale.clone(), pending.clone()
    round_strip[(-(-n // columns),)](
        pending, None, coupling, codes, values, errors, scale, None, None, None, 1, 3, n,
        spec=form("int8:group1:fp32").spec, columns=columns, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    expected = wanted.clone()
    for j in range(3):
        value = (expected[j] / 2).round() * 2  # to even, too
        assert torch.equal(values[j].double(), value)
        assert torch.equal(codes[j].view(torch.int8).double() * 2, value)
        error = expected[j] - value
        assert torch.equal(errors[j], error)
        for later in range(j + 1, 3):
            expected[later] -= error * coupling[j, later]
    assert torch.equal(pending, expected) and not torch.equal(pending, wanted)
