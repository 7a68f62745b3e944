# SPDX-License-Identifier: BSD-3-Clause
"""NVFP4, 4/6 and IF4 are what their authors' references give, on numbers of our own.

against_fouroversix.json holds our inputs and the outputs of fouroversix (MIT, commit dadfad6,
`quantize/pytorch/reference.py`, rule mse) and TransformerEngine (Apache-2.0, commit d0067d0da,
`custom_recipes/reference_nvfp4.py`, errors MSE), run beside; none of their code is here. Both
multiply by fl(1 / step) where we divide, so a tie may go the other way, and both have scales below
2^-6 and 0, where ours is 2^-6.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import pack, reference
from blockscale.core.parse import parse

PATH = Path(__file__).with_name("against_fouroversix.json")
ROWS, COLUMNS = 12, 64
TIES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
SMALLEST = 0x08  # e4m3's code of 2^-6


@cache
def stored() -> dict[str, Any]:
    return json.loads(PATH.read_text())


def tensor(text: str, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=dtype).reshape(ROWS, -1)


@pytest.mark.parametrize(
    ("fmt", "who", "ties"),
    [
        ("e2m1:group16:e4m3/four_six", "fouroversix", 0),
        ("e2m1:group16:e4m3/four_six", "TransformerEngine", 0),
        ("if4:group16:e4m3", "fouroversix", 0),
        ("nvfp4", "fouroversix", 0),
        ("nvfp4", "TransformerEngine", 0),
        ("nvfp4_token", "TransformerEngine", 2),
    ],
)
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_codes_and_scales(fmt: str, who: str, ties: int, backend: str) -> None:
    told = stored()[fmt][who]
    x, scales = tensor(stored()["inputs"], torch.float32), tensor(told["scales"], torch.uint8)
    with bs.use(backend):
        q = bs.quantize(x, fmt)
    mine = q.operand.scale.reshape(scales.shape)
    small = (scales & 0x7F) < SMALLEST
    assert torch.equal(mine[~small], scales[~small])
    assert 1 <= int(small.sum()) <= 2 and bool((mine[small] & 0x7F == SMALLEST).all())
    if "if4" in fmt:
        assert bool((scales >= 128).any() and (scales < 128).any())
    element = parse("e2m1:token:fp32").element
    theirs = pack.unpack(tensor(told["codes"], torch.uint8), element, x.shape)
    unlike = (q.codes != theirs) & ~small.repeat_interleave(16, -1)
    assert int(unlike.sum()) == ties
    y = reference.in_steps(x, q.operand.qparams, parse(fmt).plain).abs()[unlike]
    assert bool(((y[:, None] / TIES - 1).abs().amin(-1, keepdim=True) < 2.0**-22).all())
