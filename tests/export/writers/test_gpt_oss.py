# SPDX-License-Identifier: BSD-3-Clause
"""gpt-oss: as transformers 5.23 unpacks it (integrations/mxfp4.py, convert_moe_packed_tensors)."""

from pathlib import Path

import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.writers import writer_of
from tests.support.conversion_models import write

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_values_and_there_and_back(tmp_path: Path) -> None:
    q = bs.quantize(torch.randn(2, 8, 64), "mxfp4")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    held = {name: q, "model.norm.weight": torch.ones(4)}
    source = write(tmp_path / "source", held)
    done = bs.export.convert_checkpoint(source, tmp_path / "there", "gpt-oss")
    assert done.lossless and [t.written for t in done.of("exact")] == ["e2m1:group32:e8m0/given"]
    with bs.checkpoint(tmp_path / "there") as found:
        assert torch.equal(found[name].packed, q.packed)
    made = writer_of("gpt-oss").store(name, q)
    blocks, scales = made[f"{name}_blocks"], made[f"{name}_scales"]
    low, high = VALUES[(blocks & 15).long()], VALUES[(blocks >> 4).long()]
    values = torch.stack([low, high], -1).flatten(-2) * (scales.float() - 127).exp2()[..., None]
    assert torch.equal(values.flatten(-2), q.dequantize())


def test_what_it_does_not_hold() -> None:
    writer, fmt = writer_of("gpt-oss"), parse("e2m1:group32:e8m0/given")
    assert "stacks of experts" in str(writer.holds(fmt, (8, 64)))
    assert "gpt-oss files hold MXFP4" in str(
        writer.holds(parse("e4m3:group32:e8m0/given"), (2, 8, 64))
    )
