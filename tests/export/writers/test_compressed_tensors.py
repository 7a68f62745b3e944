# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors from formats alone, without a model."""

import json
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.writers import PlannedTensor, writer_of
from tests.support.conversion_models import tensors, write

FORMATS = (
    "int8:channel0:bf16:full", "int4:group32:fp16:full", "uint4:group32:fp16:asym",
    "e4m3:channel0:fp32", "e4m3:tile128x128:fp32", "mxfp4", "mxfp8", "mxfp6_e2m3",
    "e2m1:group16:e4m3/inv", "uint3:group32:fp32:asym",
)  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_parts_are_what_is_stored(fmt: str) -> None:
    writer, q = writer_of("compressed-tensors"), bs.quantize(torch.randn(64, 96), fmt)
    assert writer.holds(q.format, q.shape) is None
    made = writer.store("a.weight", q)
    assert {n: (t.dtype, tuple(t.shape)) for n, t in made.items()} == writer.parts(
        "a.weight", q.format, (64, 96)
    )


@pytest.mark.parametrize("fmt", ["int4:group32:fp16:full", "uint4:group128:fp16:asym"])
def test_there_and_back(fmt: str, tmp_path: Path) -> None:
    held = tensors(fmt)
    done = bs.export.convert_checkpoint(
        write(tmp_path / "source", held), tmp_path / "there", "compressed-tensors"
    )
    assert done.lossless and {t.compared for t in done.of("exact")} == {"codes"}
    config = json.loads((tmp_path / "there" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "pack-quantized" and "lm_head" in config["ignore"]
    [group] = config["config_groups"].values()
    assert "model.layers.0.mlp.up_proj" in group["targets"]


def test_experts_that_transformers_reads_otherwise() -> None:
    """Their group is found by a pattern; what is ignored of them is said."""
    writer = writer_of("compressed-tensors")
    names = ("layers.0.mlp.experts.0.up_proj", "layers.0.self_attn.q_proj")
    both = [
        PlannedTensor(f"{name}.weight", (8, 32), parse(fmt))
        for name, fmt in zip(names, ("uint4:group32:fp16:asym", "int8:channel0:fp32"), strict=True)
    ]
    groups = writer.config(both, {})["quantization_config"]["config_groups"]
    assert groups["group_0"]["targets"] == [r"re:^layers\.0\.mlp\.experts\.0\.up_proj$"]
    assert groups["group_1"]["targets"] == [names[1]]
    [note] = writer.notes(both)
    assert note.startswith(f"{names[0]}.weight and others: transformers (5.23) ignores the zero p")
    assert writer.notes(both[1:]) == writer_of("awq").notes(both) == []


def test_what_it_does_not_hold() -> None:
    writer = writer_of("compressed-tensors")
    assert "offsets and" in str(writer.holds(parse("uint4:group32:fp16:offset"), (8, 32)))
    assert "divides by" in str(writer.holds(parse("nvfp4"), (8, 32)))
    assert "2 dimensions" not in str(writer.holds(parse("mxfp4"), (8, 48)))
    assert "do not divide into groups" in str(writer.holds(parse("mxfp4"), (8, 48)))
    several = [PlannedTensor(n, (8, 32), parse(n)) for n in ("mxfp4", "mxfp8")]
    found = writer.config(several, {})["quantization_config"]
    assert found["format"] == "mixed-precision" and len(found["config_groups"]) == 2
