"""MLX: what mlx 0.32.4 stored has the same bytes again."""

from pathlib import Path

import pytest

from blockscale.core.parse import parse
from blockscale.export.writers.writer import Planned, writer_of
from tests.export.checkpoints.layouts.recorded import cases
from tests.export.writers.producers.again import same_bytes, written_again

CASES = [case for case in cases("mlx") if not case.startswith("nvfp4")]


@pytest.mark.parametrize("case", CASES)
def test_the_same_bytes(case: str, tmp_path: Path) -> None:
    same_bytes("mlx", case, written_again("mlx", case, "mlx", tmp_path))


def test_settings_of_layers() -> None:
    """What most have stands once, the others by their names."""
    spelled = {"a": "uint4:group64:fp16:offset", "b": "uint4:group64:fp16:offset",
               "c": "uint8:group32:fp16:offset", "d": "e2m1:group32:e8m0/given"}  # fmt: skip
    planned = [Planned(f"{n}.weight", (8, 64), parse(text)) for n, text in spelled.items()]
    assert writer_of("mlx").config(planned, {})["quantization"] == {
        "group_size": 64, "bits": 4, "mode": "affine",
        "c": {"group_size": 32, "bits": 8, "mode": "affine"},
        "d": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    }  # fmt: skip


def test_what_it_does_not_hold() -> None:
    writer = writer_of("mlx")
    assert "in groups of 32, 64" in str(writer.holds(parse("uint4:group16:fp16:offset"), (8, 32)))
    assert "no zero points" in str(writer.holds(parse("uint4:group32:fp16:asym"), (8, 32)))
    assert "no whole groups" in str(writer.holds(parse("uint4:group32:fp16:offset"), (8, 48)))
