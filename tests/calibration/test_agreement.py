# SPDX-License-Identifier: BSD-3-Clause
"""What processes compare before they begin; tests/calibration/test_ranks.py has several of them."""

import torch
from torch import Tensor

from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.calibrate import _checksum, _facts
from blockscale.calibration.learn import Data, Methods
from blockscale.core.recipe import Recipe
from tests.calibration.walk.networks import decoder


def facts(weight: GPTQ, *, seed: int | None = None) -> dict[str, str]:
    methods = Methods(weight, None, "mse")
    return _facts(decoder(1), Data([], seed=seed), Recipe.read("int4"), methods)


def test_settings_and_options_are_told_apart() -> None:
    first = facts(GPTQ())
    assert first == facts(GPTQ())
    for other, what in (
        (facts(GPTQ(sweeps=1)), "weight algorithm"),
        (facts(GPTQ(), seed=1), "seed"),
    ):
        assert {name for name in first if first[name] != other[name]} == {what}
    assert "tensor 'layers.0.attention.q.weight' in its model" in first


def test_checksums_see_every_bit() -> None:
    x = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    seen = {_checksum(x)}
    for tensor in (*changed(x), x[:6], x.to(torch.bfloat16), x.to("meta"), x.flip(0)):
        seen.add(_checksum(tensor))
    assert len(seen) == 8
    assert _checksum(x.t().contiguous().t()) == _checksum(x)
    assert _checksum(torch.ones(3, dtype=torch.uint8)) != _checksum(
        torch.zeros(3, dtype=torch.uint8)
    )


def changed(x: Tensor) -> list[Tensor]:
    """One bit of the first, a middle and the last element."""
    found = []
    for place in (0, 40, -1):
        bits = x.clone().view(torch.int32).flatten()
        bits[place] ^= 1
        found.append(bits.view(torch.float32).view(x.shape))
    return found
