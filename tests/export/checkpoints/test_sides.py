# SPDX-License-Identifier: BSD-3-Clause
"""`compare` on what other producers wrote: every layout against the floats that it means."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockscale.export.checkpoints.comparing import compare
from blockscale.export.checkpoints.sides import CheckpointSide, StoredSide
from blockscale.files.metadata import FileError
from tests.export.checkpoints import packing
from tests.export.checkpoints.layouts.recorded import RECORDED, cases, directory

CASES = [
    ("gptq", "4act"), ("gptq", "8"), ("awq", "gemm"), ("bitsandbytes", "nf4 odd"),
    ("bitsandbytes", "fp4 mixed"), ("hqq", "4 axis 0 fp32"), ("quanto", "qint4 bytes fp32"),
    ("mlx", "3 bytes fp32"),
]  # fmt: skip


@pytest.mark.parametrize("elements", [300, 10**6])
@pytest.mark.parametrize(("producer", "case"), CASES, ids=" ".join)
def test_equal_to_the_floats_that_they_mean(producer, case, elements, tmp_path):
    stored, values, config = cases(producer)[case]
    theirs = directory(tmp_path / "theirs", stored, config)
    if producer in ("gptq", "awq"):  # compared before the rounding to float16
        values = _exactly(theirs)
    save_file({"a.weight": values.float()}, tmp_path / "floats.safetensors")
    found = compare(tmp_path / "floats.safetensors", theirs, elements=elements)
    [row] = found.differences
    assert (row.equal, row.name, row.shape) == (True, "a.weight", tuple(values.shape))
    assert row.a == "float32" and row.b.count(":") >= 2 and row.bits_b < 16
    assert found.only_b == (("a.bias",) if "a.bias" in stored else ())


def _exactly(path):
    """What the codes, zero points and scales mean, with the columns where they belong."""
    with CheckpointSide(_checkpoint(path)) as side:
        q, order = side._source["a.weight"], side._source.order("a.weight")
    values = q.dequantize()
    return values if order is None else torch.empty_like(values).index_copy_(1, order, values)


def _checkpoint(path):
    import blockscale as bs

    return bs.checkpoint(path)


def test_against_a_file_of_ours_that_is_transposed(tmp_path):
    """A GPT-2 layer is stored [outputs, inputs] by both, and called [inputs, outputs] by one."""
    from transformers.pytorch_utils import Conv1D

    import blockscale as bs

    model = torch.nn.ModuleDict({"c": Conv1D(32, 64)})
    parts, values = packing.gptq((32, 64), 4, 32)
    model["c"].weight.data.copy_(values.T)
    bs.quantize_(model, "int8:channel0:fp32")
    bs.save(model, tmp_path / "ours.safetensors")
    path = directory(tmp_path / "d", {f"c.{n}": t for n, t in parts.items()}, {})
    found = compare(tmp_path / "ours.safetensors", path)
    assert found.mismatched == {"c.weight": ((64, 32), (32, 64))}


def test_gguf(tmp_path):
    values = load_file(RECORDED / "gguf_values.safetensors")
    save_file(values, tmp_path / "floats.safetensors")
    found = compare(tmp_path / "floats.safetensors", RECORDED / "small.gguf")
    names = {each.name for each in found.differences}
    assert names == values.keys() and all(each.equal for each in found.differences)
    assert "blk.0.IQ2_XXS.weight" in found.unread
    assert all(each.b != "F16" for each in found.differences)


def test_which_side_it_is(tmp_path):
    stored, _, config = cases("awq")["gemm"]
    assert StoredSide.of(directory(tmp_path / "d", stored, config)) is None
    assert StoredSide.of(RECORDED / "small.gguf") is None
    save_file({"x": torch.ones(2)}, tmp_path / "floats")
    with StoredSide.of(tmp_path / "floats") as side:
        assert set(side.rows) == {"x"} and side.unread == {}
    with pytest.raises(FileError, match="does not exist"):
        compare(tmp_path / "nowhere", tmp_path / "floats")
