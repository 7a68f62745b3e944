# SPDX-License-Identifier: BSD-3-Clause
"""The contract as a profile: the bits of the format itself."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.codes import quantize
from tests.support.profile_inputs import KINDS


@pytest.mark.parametrize("name", bs.formats())
def test_the_bits_of_the_format(name: str) -> None:
    profile = bs.profile(f"blockscale.{name}")
    for make in KINDS.values():
        x = make()
        q, expected = bs.quantize(x, profile), bs.quantize(x, name)
        codes, qparams, fmt = quantize(x, profile)
        assert q.format == fmt == expected.format
        assert torch.equal(q.packed, expected.packed)
        assert torch.equal(codes, expected.codes)
        for ours, theirs, own in zip(q.qparams, expected.qparams, qparams, strict=True):
            assert (ours is None) == (theirs is None)
            assert theirs is None or (torch.equal(ours, theirs) and torch.equal(own, theirs))
