# SPDX-License-Identifier: BSD-3-Clause
"""Profiles and learned codebooks give the same bits on a GPU as on a CPU."""

import pytest
import torch

import blockscale as bs
from blockscale.core import profiles
from tests.support.profile_inputs import KINDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:no c[a-z]* kernel runs"),
]


def same(ours: bs.QTensor, expected: bs.QTensor) -> None:
    assert ours.packed.is_cuda and ours.format == expected.format
    assert torch.equal(ours.packed.cpu(), expected.packed)
    for part, other in zip(ours.qparams, expected.qparams, strict=True):
        assert (part is None) == (other is None)
        assert part is None or torch.equal(part.cpu(), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in profiles.names() if n.startswith("torchao")])
def test_profiles(name: str, dtype: torch.dtype) -> None:
    for make in KINDS.values():
        x = make().to(dtype)
        same(bs.quantize(x.cuda(), bs.profile(name)), bs.quantize(x, bs.profile(name)))


@pytest.mark.parametrize(
    "fmt", ["book4:channel0:fp32", "book3:group16:fp16:offset", "apot4:token:bf16"]
)
def test_tables(fmt: str) -> None:
    for make in KINDS.values():
        x = make()
        q = bs.quantize(x, fmt)
        same(bs.quantize(x.cuda(), fmt), q)
        assert torch.equal(bs.fake_quantize(x.cuda(), fmt).cpu(), q.dequantize())
