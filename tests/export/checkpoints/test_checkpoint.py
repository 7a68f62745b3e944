# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint is a mapping that reads what it is asked for."""

from pathlib import Path

import pytest
import torch

import blockscale as bs

SMALL = Path(__file__).parents[2] / "recorded" / "small.gguf"


def test_a_mapping() -> None:
    with bs.checkpoint(SMALL) as model:
        assert "norm" in model and "other" not in model and len(model) == len(list(model))
        assert repr(model).startswith("<Checkpoint GGUF, 21 tensors, ")
        assert model.stored["norm"].bits == 32 and model.stored["norm"].format is None
        assert model.stored["blk.0.Q4_K.weight"].bits == 4.5
        assert isinstance(model["norm"], torch.Tensor)
        assert isinstance(model.get("blk.0.Q8_0.weight"), bs.QTensor)
        assert model.get("other") is None


def test_nothing_is_read_before(tmp_path: Path) -> None:
    """Damage of one tensor is met when that tensor is asked for."""
    data = bytearray(SMALL.read_bytes())
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with bs.checkpoint(path) as model:
        with path.open("r+b") as file:
            file.truncate(len(data) - 40)
        assert isinstance(model["blk.0.Q4_0.weight"], bs.QTensor)
        with pytest.raises(bs.FileError, match="it was truncated while being read"):
            model["bytes"]
