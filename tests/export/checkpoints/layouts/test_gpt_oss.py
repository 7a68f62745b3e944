# SPDX-License-Identifier: BSD-3-Clause
"""gpt-oss's blocks: as transformers decodes them, of any bytes."""

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs

NAME = "experts.gate_up_proj"


def files(path, *shape, scale=None):
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
    scale = torch.randint(0, 255, shape, dtype=torch.uint8) if scale is None else scale
    stored = {f"{NAME}_blocks": blocks, f"{NAME}_scales": scale, f"{NAME}_bias": torch.ones(3)}
    save_file(stored, path / "model.safetensors")
    return blocks, scale


@pytest.mark.parametrize("shape", [(2, 6, 3), (6, 3)])
def test_values(shape, tmp_path):
    blocks, scale = files(tmp_path, *shape)
    with bs.checkpoint(tmp_path) as model:
        assert (model.producer, model.evidence) == ("gpt-oss", f"it has {NAME}_blocks")
        assert list(model) == [NAME, f"{NAME}_bias"]
        q = model[NAME]
    assert str(q.format) == "e2m1:group32:e8m0/given" and q.shape == (*shape[:-1], 96)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    values = table[torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()]
    expected = torch.ldexp(values, scale.int().unsqueeze(-1) - 127).flatten(-2)
    assert torch.equal(q.dequantize(), expected)
    assert torch.equal(q.packed.flatten(), blocks.flatten())


@pytest.mark.slow
def test_transformers_own_values(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scale = files(tmp_path, 2, 6, 3)
    expected = convert_moe_packed_tensors(blocks, scale)  # [experts, in, out]
    with bs.checkpoint(tmp_path) as model:
        found = model[NAME].dequantize(torch.bfloat16)
    assert torch.equal(found.mT, expected)


def test_what_no_writer_stores(tmp_path):
    files(tmp_path, 2, 6, 3, scale=torch.full((2, 6, 3), 255, dtype=torch.uint8))
    with (
        bs.checkpoint(tmp_path) as model,
        pytest.raises(bs.FileError, match="which is NaN in OCP MX"),
    ):
        model[NAME]
    files(tmp_path, 2, 6, 3, scale=torch.ones(2, 6, 4, dtype=torch.uint8))
    with bs.checkpoint(tmp_path) as model, pytest.raises(bs.FileError, match="not of 16 bytes"):
        model[NAME]
