# SPDX-License-Identifier: BSD-3-Clause
"""Columns rounded one after the other: the kernel has the reference's bits."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.kernels.cpu.quantize import round_columns as kernel
from blockscale.kernels.registry import supporting
from blockscale.ops.primitives import round_columns
from tests.kernels.cpu.equal import settings
from tests.support.ops_round_columns import FORMATS, scales_for

KNOWN = [fmt for fmt in FORMATS if not fmt.startswith("book3")]  # the reference runs that one


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", KNOWN)
def test_the_reference_has_the_same_bits(isa: str, fmt: str) -> None:
    assert supporting("round_columns", "cpu", (fmt,), ()) is not None
    for columns, rows in ((1, 1), (5, 16), (9, 37), (40, 700)):
        wanted = torch.randn(columns, rows).double() * 2
        by = scales_for(wanted, fmt)
        coupling = torch.randn(columns, columns).double() * 0.3
        for base in (None, torch.randn(columns, rows).double()):
            with settings(isa, threads=2):
                found = round_columns(wanted, base, coupling, by)
            with bs.use("reference"):
                expected = round_columns(wanted, base, coupling, by)
            for a, b in zip(found, expected, strict=True):
                assert a.dtype == b.dtype and torch.equal(a, b)


def test_halves_ties_zeros_and_subnormals(isa: str) -> None:
    odd = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1e-310, 2.0**-149, 1e39, -1e39, 3.4028236e38, 7.5, -8.5]
    wanted = torch.tensor([odd, odd[::-1]], dtype=torch.float64)
    coupling = torch.tensor([[0.0, 1e-3], [0.0, 0.0]], dtype=torch.float64)
    for fmt in ("int4:group1:fp32", "e2m1:group1:fp32", "nf4:group1:fp32", "log4:group1:fp32"):
        by = Quantizer(torch.ones(2, len(odd)), None, None, fmt)
        with settings(isa, threads=1):
            found = round_columns(wanted, None, coupling, by)
        with bs.use("reference"):
            expected = round_columns(wanted, None, coupling, by)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def test_strides_and_empty() -> None:
    wanted, coupling = torch.randn(20, 6).double().T, torch.randn(6, 6).double().T
    by = Quantizer(torch.rand(20, 6).T + 0.1, None, None, "int4:group1:fp32")
    found = kernel(wanted, None, coupling, by)
    again = kernel(wanted.contiguous(), None, coupling.contiguous(), by)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    for shape in ((0, 4), (4, 0)):
        none = torch.empty(shape, dtype=torch.float64)
        square = torch.zeros(shape[0], shape[0], dtype=torch.float64)
        by = Quantizer(torch.empty(shape), None, None, "int4:group1:fp32")
        assert [t.shape for t in kernel(none, None, square, by)] == [shape] * 3


def test_what_it_refuses() -> None:
    wanted, square = torch.randn(3, 4).double(), torch.zeros(3, 3).double()
    by = Quantizer(torch.ones(3, 4), None, None, "int4:group1:fp32")
    with pytest.raises(ValueError, match=r"expected float64 of shape \(3, 4\) on the CPU, found"):
        kernel(wanted.float(), None, square, by)
    with pytest.raises(ValueError, match=r"of shape \(3, 4\) .* found .* \(3, 3\)"):
        kernel(wanted, square, square, by)
    with pytest.raises(ValueError, match=r"of shape \(3, 3\) .* found .* \(3, 4\)"):
        kernel(wanted, None, wanted, by)
    with pytest.raises(ValueError, match="int4:group1:fp32"):
        kernel(wanted, None, square, by._replace(scale=torch.ones(3, 1)))
