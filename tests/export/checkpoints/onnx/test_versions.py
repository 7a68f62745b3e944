"""Files that use what their opset has not."""

import pytest
from onnx import helper

import blockscale as bs
from tests.export.checkpoints.onnx.files import floats, random_bytes, save, scales, tensor


@pytest.mark.parametrize(("opset", "warned"), [(21, 0), (19, 2)])
def test_blocks_and_int4_came_with_21(opset, warned, tmp_path):
    tensors = [tensor("w", "int4", (4, 16), random_bytes(32)), floats("s", scales((4, 2)))]
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=1, block_size=8)
    with bs.checkpoint(save(tmp_path / "m.onnx", [node], tensors, (), 1, opset)) as model:
        assert len(model.warnings) == warned
        told = "it says that it is of opset 19, and has int4, which came with 21"
        assert not warned or told in model.warnings
        assert model["w"].shape == (4, 16)  # read all the same: types and blocks are told


def test_other_domains_have_versions_of_their_own(tmp_path):
    tensors = [tensor("w", "int4", (4, 16), random_bytes(32)), floats("s", scales((4, 1)))]
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s"], ["y"], domain="com.microsoft", block_size=16
    )
    with bs.checkpoint(save(tmp_path / "m.onnx", [node], tensors, (), 1, 19)) as model:
        assert model.warnings == []
