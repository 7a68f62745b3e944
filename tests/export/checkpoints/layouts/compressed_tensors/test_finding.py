"""What is taken for compressed-tensors', and what is left to others."""

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from blockscale.export.checkpoints.contents import inspect
from tests.export.checkpoints.layouts.compressed_tensors.oracle import configuration, directory

PACKED = {"weight_packed": torch.zeros(4, 4, dtype=torch.int32), "weight_scale": torch.ones(4, 1),
          "weight_shape": torch.tensor([4, 32])}  # fmt: skip


def test_evidence(tmp_path):
    found = inspect(directory(tmp_path, PACKED, configuration("pack-quantized", {})))
    assert (found.producer, found.evidence) == (
        "compressed-tensors", "config.json: quant_method compressed-tensors",
    )  # fmt: skip
    assert inspect(directory(tmp_path, PACKED, None)).evidence == "it has m.weight_packed"
    [row] = [each for each in found.rows if each.quantized]
    assert (row.name, row.format, row.bits) == ("m.weight", "int4:channel0:fp32:full", 6.0)


def test_sparse_ones_are_refused(tmp_path):
    """By name, with what to do; bitmasks have no packed weight at all."""
    stored = {"weight.compressed": torch.ones(8), "weight.bitmask": torch.zeros(4, 4).byte()}
    tensors = {f"m.{name}": each for name, each in stored.items()}
    directory(tmp_path, {}, configuration("sparse-24-bitmask", {}))
    save_file(tensors, tmp_path / "model.safetensors")
    with bs.checkpoint(tmp_path) as model:
        assert [name for name, each in model.stored.items() if each.unread]
        with pytest.raises(bs.FileError, match="save it densely"):
            model[next(name for name, each in model.stored.items() if each.unread)]


def test_without_its_configuration_plain_codes_are_others(tmp_path):
    stored = {"weight": torch.zeros(4, 8, dtype=torch.int8), "weight_scale": torch.ones(4, 1)}
    assert bs.checkpoint(directory(tmp_path, stored, None)).producer == "scaled codes"
    config = configuration("int-quantized", {"num_bits": 8})
    assert bs.checkpoint(directory(tmp_path, stored, config)).producer == "compressed-tensors"


def test_a_part_that_is_huge_is_not_read_to_look(tmp_path):
    stored = PACKED | {"weight_g_idx": torch.zeros((1 << 20) + 1, dtype=torch.int8)}
    with bs.checkpoint(directory(tmp_path, stored, None)) as model:
        assert model.order("m.weight") is None
