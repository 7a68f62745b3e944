# SPDX-License-Identifier: BSD-3-Clause
"""Float8 codes with a scale beside them."""

import pytest
import torch

from blockscale.export.checkpoints.plain_codes import float8

E4M3 = torch.float8_e4m3fn
PARTS = {"codes": "w", "scale": "s"}


@pytest.mark.parametrize(
    ("scale", "fmt"),
    [
        ((torch.float32, ()), "e4m3:tensor:fp32"),
        ((torch.bfloat16, (6, 1)), "e4m3:channel0:bf16"),
        ((torch.uint8, (6, 2)), "e4m3:group32:e8m0/given"),
        ((torch.float8_e8m0fnu, (6, 2)), "e4m3:group32:e8m0/given"),
    ],
)
def test_formats(scale, fmt):
    weight = float8("fp8", PARTS, {"w": (E4M3, (6, 64)), "s": scale})
    assert weight.format == fmt and weight.kind == "fp8" and not weight.unread


def test_others():
    assert float8("fp8", PARTS, {"w": (torch.int8, (6, 64)), "s": (torch.float32, ())}) is None
    for scale in ((torch.float32, (7, 9)), (torch.int32, (6, 1)), (None, (6, 1))):
        weight = float8("fp8", PARTS, {"w": (E4M3, (6, 64)), "s": scale})
        assert weight.format is None and weight.unread.startswith("s is ")
