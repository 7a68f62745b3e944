# SPDX-License-Identifier: BSD-3-Clause
"""Rounding column after column: a loop over single numbers gives the same."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.ops import primitives
from blockscale.ops.primitives import round_columns
from tests.support.ops_round_columns import FORMATS, scales_for


def test_a_loop_over_numbers() -> None:
    wanted, base = torch.randn(7, 5).double(), torch.randn(7, 5).double()
    coupling, scale = torch.randn(7, 7).double(), torch.rand(7, 5) + 0.2
    by = Quantizer(scale, None, None, "int3:group1:fp32")
    for given in (None, base):
        found = round_columns(wanted, given, coupling, by)
        for row in range(5):
            pending = wanted[:, row].numpy().copy()
            for j in range(7):
                code = np.clip(np.rint(np.float32(pending[j]) / scale[j, row].numpy()), -3, 3)
                value = np.float32(code) * scale[j, row].numpy()
                error = (pending[j] if given is None else given[j, row].item()) - np.float64(value)
                assert found.codes[j, row] == code and found.values[j, row] == value
                assert found.errors[j, row] == error
                for later in range(j + 1, 7):
                    pending[later] = pending[later] - error * coupling[j, later].item()


@pytest.mark.some(3)
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of learned tables
@pytest.mark.parametrize("fmt", FORMATS)
def test_without_coupling_it_is_quantize(fmt: str) -> None:
    wanted = torch.randn(6, 20).double()
    by = scales_for(wanted, fmt)
    found = round_columns(wanted, None, wanted.new_zeros(6, 6), by)
    packed = primitives.quantize(wanted.float(), by)
    assert torch.equal(found.codes, primitives.unpack(packed, by.fmt, 20))
    assert torch.equal(found.values, primitives.fake_quantize(wanted.float(), by))
    assert torch.equal(found.errors, wanted - found.values)
    with bs.use("reference"):
        again = round_columns(wanted, None, wanted.new_zeros(6, 6), by)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_what_it_is_given_stays() -> None:
    wanted, coupling = torch.randn(3, 4).double(), torch.randn(3, 3).double()
    kept = wanted.clone(), coupling.clone()
    by = Quantizer(torch.ones(3, 4), None, None, "int4:group1:fp32")
    for backend in ("auto", "reference"):
        with bs.use(backend):
            round_columns(wanted, None, coupling, by)
        assert torch.equal(wanted, kept[0]) and torch.equal(coupling, kept[1])
