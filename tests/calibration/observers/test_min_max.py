# SPDX-License-Identifier: BSD-3-Clause
"""What bs.quantize chooses for all the data at once."""

import torch

import blockscale as bs
from blockscale.core import reference
from tests.calibration.observers.seen import RANGE_FORMATS, draw, seeing


def test_min_max_is_what_quantize_chooses():
    for fmt in RANGE_FORMATS[:-1]:
        x = draw(8, 48)
        expected = reference.choose_qparams(x, bs.parse(fmt))
        found = seeing("min_max", fmt, x).qparams()
        assert all(
            a is b is None or torch.equal(a, b) for a, b in zip(expected, found, strict=True)
        )
