# SPDX-License-Identifier: BSD-3-Clause
"""Cutting into super-blocks and putting together: any shape, in chunks."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.encoders import super_blocks


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "iq4_xs"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 2, 256)
    profile = bs.profile(f"gguf.{name}")
    whole = bs.quantize(x, profile)
    monkeypatch.setattr(super_blocks, "_CHUNK", 3)
    again = bs.quantize(x, profile)
    assert torch.equal(again.packed, whole.packed)
    for part in whole.format.parts:
        assert torch.equal(getattr(again.qparams, part), getattr(whole.qparams, part))


def test_nothing_to_encode() -> None:
    q = bs.quantize(torch.zeros(0, 256), bs.profile("gguf.q4_k"))
    assert q.shape == (0, 256)
    found = {part: tuple(getattr(q.qparams, part).shape) for part in q.format.parts}
    assert found == {part: shape for part, (_, shape) in q.format.stored((0, 256)).items()}
