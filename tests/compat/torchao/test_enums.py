# SPDX-License-Identifier: BSD-3-Clause
"""torchao's own enum members are accepted wherever ours are."""

import torch

from blockscale.compat import torchao as ours
from blockscale.compat.torchao import MappingType, ZeroPointDomain
from tests.compat.torchao.inputs import (
    SYMMETRIC,
    same,
    their,
    theirs,
)


def test_torchaos_members_are_accepted() -> None:
    x = torch.randn(4, 64)
    for mapping in theirs.MappingType:
        mine = ours.choose_qparams_affine(x, mapping, (1, 64), torch.int8)
        same(mine, theirs.choose_qparams_affine(x, mapping, (1, 64), torch.int8))
    assert {m.name for m in theirs.MappingType} == {m.name for m in MappingType}
    assert {m.name for m in theirs.ZeroPointDomain} == {m.name for m in ZeroPointDomain}
    none = theirs.ZeroPointDomain.NONE
    args = (their(SYMMETRIC), (1, 64), torch.int8)
    assert ours.choose_qparams_affine(x, *args, zero_point_domain=none)[1] is None
