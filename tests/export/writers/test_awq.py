# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: what AutoAWQ stored has the same bytes again."""

from pathlib import Path

from blockscale.core.parse import parse
from blockscale.export.writers import PlannedTensor, writer_of
from tests.export.writers.again import same_bytes, written_again


def test_the_same_bytes(tmp_path: Path) -> None:
    same_bytes("awq", "gemm", written_again("awq", "gemm", "awq", tmp_path))


def test_what_it_does_not_hold() -> None:
    writer = writer_of("awq")
    assert "uint4 with fp16" in str(writer.holds(parse("uint8:group32:fp16:asym"), (32, 32)))
    assert "multiple of 8" in str(writer.holds(parse("uint4:group32:fp16:asym"), (12, 32)))
    different = [
        PlannedTensor(n, (32, 64), parse(f"uint4:{n}:fp16:asym")) for n in ("group32", "group16")
    ]
    assert "its size of groups" in str(writer.together(different))
    plain = PlannedTensor("lm_head.weight", (8, 8), None)
    settings = writer.config([different[0], plain], {})["quantization_config"]
    assert settings["modules_to_not_convert"] == ["lm_head"] and settings["version"] == "gemm"
