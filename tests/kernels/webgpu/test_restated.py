# SPDX-License-Identifier: BSD-3-Clause
"""Formats that the WebGPU kernels know only restated."""

import pytest
import torch

from blockscale.kernels.webgpu.restated import fingerprint
from tests.kernels.restated import FORMATS, awkward, runs
from tests.kernels.webgpu.equal import wrong

SHAPES = ((4, 64), (2, 40))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_primitive_has_the_references_bits(fmt: str) -> None:
    assert runs("webgpu", "quantize", fmt)
    for shape in SHAPES:
        for x in (torch.randn(shape), awkward(shape)):
            assert not wrong(x, fmt), shape


def test_an_offset_of_two_levels() -> None:
    assert not wrong(torch.randn(2, 64), FORMATS[-3])


def test_scales_that_are_codes_of_a_table() -> None:
    """Kernels bind the table of scales where they ask for none of its codes, too."""
    assert not wrong(torch.randn(2, 40), "int8:group8:(nf4:group4:fp32)")


def test_fingerprints_tell_bytes_and_their_order_apart() -> None:
    a, b = torch.tensor([1, 2, 3]), torch.tensor([1, 3, 2])
    assert fingerprint(a) == fingerprint(a.clone()) != fingerprint(b)
