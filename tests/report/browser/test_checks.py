"""The tensors that a page checks itself with."""

import base64

import pytest
import torch

from blockscale.core.parse import formats as catalogue
from blockscale.core.parse import parse
from blockscale.report.browser.checks import COLUMNS, ROWS, check, numbers


@pytest.mark.parametrize("name", catalogue())
def test_they_ask_something(name):
    """Several codes are in use, and subnormals, zeros of both signs and ties are there."""
    found = check(name, parse(name))
    codes = torch.frombuffer(bytearray(base64.b64decode(found["codes"])), dtype=torch.int32)
    assert codes.shape == (ROWS * COLUMNS,)
    assert len(codes.unique()) >= 2
    x = numbers(parse(name))
    assert (x[4].abs() < 2**-126).all()
    assert x[3].signbit().any()
    assert (x == 0).any()


def test_numbers_that_are_not_finite_come_where_they_do_not_poison():
    assert not numbers(parse("int8")).isfinite().all()
    assert numbers(parse("mxfp8")).isfinite().all()
