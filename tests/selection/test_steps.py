# SPDX-License-Identifier: BSD-3-Clause
"""Steps of a search: what cannot be, and what stays in float."""

import pytest
import torch
from torch import nn

import blockscale as bs


def test_a_candidate_that_no_layer_can_be():
    model = nn.Sequential(nn.Linear(8, 48), nn.Linear(48, 8))
    candidates = ["int8_channel", "int4:block3x3x2x1:fp32"]
    with pytest.raises(ValueError, match=r"no layer can be int4:block3x3x2x1:fp32: .*dimension"):
        bs.search(model, [(torch.randn(4, 8),)], 7, candidates=candidates, progress=False)


def test_a_front_leaves_out_what_no_choice_keeps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU())
    found = bs.search(
        model, [(torch.randn(4, 64),)], 9, candidates=["mxfp8"], points=(3, 8, 9), progress=False
    )
    assert [each.bits for each in found.points] == [8.25]
