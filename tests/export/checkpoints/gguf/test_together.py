# SPDX-License-Identifier: BSD-3-Clause
"""Quantized tensors become the bytes that they were read from, with and without the kernel."""

import pytest
import torch

import blockscale as bs
from blockscale.export.checkpoints.gguf import records
from blockscale.export.checkpoints.gguf.blocks import TYPES
from blockscale.export.checkpoints.gguf.together import blocks_of
from tests.support.gguf_reading import SMALL


@pytest.mark.parametrize("kernel", [True, False])
def test_the_bytes_of_a_file(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(records, "record", lambda _: None)
    with bs.checkpoint(SMALL) as found:
        for name, stored in found.stored.items():
            if stored.kind in TYPES and stored.kind != "TQ1_0":
                assert torch.equal(
                    blocks_of(found[name], TYPES[stored.kind]).flatten(), found.blocks(name)
                ), name
