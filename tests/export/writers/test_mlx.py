# SPDX-License-Identifier: BSD-3-Clause
"""MLX: what mlx 0.32.4 stored has the same bytes again."""

from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.conversion.plan import NotLosslessError
from blockscale.export.writers import PlannedTensor, writer_of
from tests.export.checkpoints.layouts.recorded import cases
from tests.export.writers.again import same_bytes, written_again
from tests.support.conversion_models import tensors, value, write


@pytest.mark.parametrize("case", cases("mlx"))
def test_the_same_bytes(case: str, tmp_path: Path) -> None:
    same_bytes("mlx", case, written_again("mlx", case, "mlx", tmp_path))


def test_settings_of_layers() -> None:
    """What most have stands once, the others by their names."""
    spelled = {"a": "uint4:group64:fp16:offset", "b": "uint4:group64:fp16:offset",
               "c": "uint8:group32:fp16:offset", "d": "e2m1:group32:e8m0/given"}  # fmt: skip
    planned = [PlannedTensor(f"{n}.weight", (8, 64), parse(text)) for n, text in spelled.items()]
    assert writer_of("mlx").config(planned, {})["quantization"] == {
        "group_size": 64, "bits": 4, "mode": "affine",
        "c": {"group_size": 32, "bits": 8, "mode": "affine"},
        "d": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    }  # fmt: skip


def test_what_it_does_not_hold() -> None:
    writer = writer_of("mlx")
    assert "in groups of 32, 64" in str(writer.holds(parse("uint4:group16:fp16:offset"), (8, 32)))
    assert "instead of zero points" in str(writer.holds(parse("uint4:group32:fp16:asym"), (8, 32)))
    assert "do not divide into groups" in str(
        writer.holds(parse("uint4:group32:fp16:offset"), (8, 48))
    )


NVFP4 = "e2m1:group16:e4m3"


def under(outer: float, fmt: str = NVFP4) -> bs.QTensor:
    """Scales 1, 2, 3 and 0.5 of one another scale."""
    q = bs.quantize(torch.randn(4, 64, generator=torch.Generator().manual_seed(1)), fmt)
    scale = torch.tensor([1.0, 2.0, 3.0, 0.5]).to(torch.float8_e4m3fn).view(torch.uint8)
    parts = q.qparams._replace(scale=scale.expand(4, 4).contiguous(),
                               outer=torch.full_like(q.qparams.outer, outer))  # fmt: skip
    return bs.QTensor(q.packed, parts, q.format, q.size)


@pytest.mark.parametrize(
    ("outer", "fmt", "scales"),
    [
        (1.0, NVFP4, [1, 2, 3, 0.5]),
        (0.25, NVFP4, [0.25, 0.5, 0.75, 0.125]),
        (0.625, NVFP4, [0.625, 1.25, 1.875, 0.3125]),  # no power of two, but each is of e4m3
        (4.0, f"{NVFP4}/inv", [0.25, 0.5, 0.75, 0.125]),  # the outer scale divides
    ],
)
def test_scales_of_scales_that_go_into_the_scales(outer: float, fmt: str, scales: list) -> None:
    q, writer = under(outer, fmt), writer_of("mlx")
    assert writer.depends(q.format) and writer.lacks(q) is None
    stored = writer.store("a.weight", q)["a.scales"].view(torch.float8_e4m3fn).float()
    assert torch.equal(stored, torch.tensor(scales).expand(4, 4))


@pytest.mark.parametrize("outer", [0.3, 1.0000001, 2.0**-12, 2.0**9])
def test_scales_of_scales_that_do_not(outer: float) -> None:
    """Rounded, below e4m3's numbers or above them."""
    reason = writer_of("mlx").lacks(under(outer))
    assert reason is not None and f"it has an outer scale, {outer:.4g}, which MLX" in reason
    assert "profile:gguf.nvfp4" in reason


def test_scales_that_are_no_numbers() -> None:
    q = under(1.0)
    q.qparams.scale.fill_(127)
    assert writer_of("mlx").lacks(q) == "it has NaN scales"


@pytest.mark.parametrize("fold", [1.0, 0.5])
def test_nvfp4_there_and_back(fold: float, tmp_path: Path) -> None:
    held = tensors("nvfp4", "nvfp4")
    names = [name for name, q in held.items() if isinstance(q, bs.QTensor)]
    for name in names:
        parts = held[name].qparams
        parts.outer.fill_(fold)
        parts.scale.copy_(torch.full_like(parts.scale, 56) + parts.scale % 8)  # 1 to 1.875
    source = write(tmp_path / "m", held)
    done = bs.export.convert_checkpoint(source, tmp_path / "out", "mlx")
    assert done.lossless and {t.written for t in done.of("exact")} == {NVFP4}
    with bs.checkpoint(tmp_path / "out") as again:
        assert again.stored[names[0]].kind == "mlx nvfp4"
        for name, tensor in held.items():
            assert torch.equal(value(again[name]), value(tensor)), name


def test_nvfp4_that_cannot_be_written(tmp_path: Path) -> None:
    source = write(tmp_path / "m", tensors("nvfp4"))
    with pytest.raises(NotLosslessError, match=r"profile:gguf\.nvfp4, whose outer scale is 1"):
        bs.export.convert_checkpoint(source, tmp_path / "out", "mlx")
    assert not (tmp_path / "out").exists()
