"""GPTQ: what AutoGPTQ stored, again; zero points are those of version 2."""

from pathlib import Path

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.export.writers.writer import Planned, writer_of
from tests.export.checkpoints.layouts.recorded import cases
from tests.export.writers.producers.again import same_bytes, written_again


@pytest.mark.parametrize("case", ["2", "3", "4", "8"])
def test_the_same_bytes(case: str, tmp_path: Path) -> None:
    made = written_again("gptq", case, "gptq", tmp_path)
    same_bytes("gptq", case, made, ("qzeros",))
    first = cases("gptq")[case][0]["a.qzeros"]  # of version 1: less one in each field
    if case in ("2", "4", "8"):
        bits = int(case)
        for shift in range(0, 32, bits):
            found, stored = (each >> shift & 2**bits - 1 for each in (made["a.qzeros"], first))
            assert torch.equal(found, (stored + 1) % 2**bits)


def test_what_it_does_not_hold() -> None:
    writer = writer_of("gptq")
    assert "uint2, uint3, uint4" in str(writer.holds(parse("uint5:group32:fp16:asym"), (32, 32)))
    assert "fp16 scales" in str(writer.holds(parse("uint4:group32:bf16:asym"), (32, 32)))
    assert "whole words" in str(writer.holds(parse("uint3:group4:fp16:asym"), (32, 36)))
    assert "3 dimensions" in str(writer.holds(parse("uint4:group32:fp16:asym"), (2, 32, 32)))
    both = [
        Planned(n, (32, 64), parse(f"uint{b}:group32:fp16:asym")) for n, b in (("a", 4), ("b", 8))
    ]
    assert "one for a whole model" in str(writer.together(both))


def test_settings() -> None:
    planned = [Planned("a.weight", (32, 64), parse("uint4:channel0:fp16:asym"))]
    found = writer_of("gptq").config(planned, {"hidden_size": 3})
    assert found["hidden_size"] == 3
    settings = found["quantization_config"]
    assert settings["group_size"] == -1 and settings["checkpoint_format"] == "gptq_v2"
    assert settings["quant_method"] == "gptq" and settings["bits"] == 4
    assert writer_of("gptq").more_files(planned)["quantize_config.json"]["desc_act"] is False
