# SPDX-License-Identifier: BSD-3-Clause
"""Codes of parts become the codes of what is fused of them, where blocks allow it."""

from typing import Any

import pytest
import torch
from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

import blockscale as bs
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming.view import piece_values
from blockscale.integrations.transformers.fusing import Fuse, only

PATTERNS = ["e.*.gate", "e.*.up"]


class Taker:
    def __init__(self) -> None:
        self.taken: dict[str, Any] = {}
        self.floats: list[str] = []

    def take_fused(self, name: str, info: TensorInfo, parts: dict[str, Any]) -> torch.Tensor:
        self.taken[name] = info, parts
        return torch.zeros(())

    def note_dequantized(self, name: str) -> None:
        self.floats.append(name)


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(3, 16, 64))
        self.config = type("Config", (), {"dtype": torch.float32})


def fused(fmt: str, operations: list[Any]) -> tuple[Taker, Any, torch.Tensor]:
    torch.manual_seed(0)
    floats = {pattern: [torch.randn(8, 64) for _ in range(3)] for pattern in PATTERNS}
    found: dict[str, list[torch.Tensor]] = {}
    for pattern, values in floats.items():
        for value in values:
            q = bs.quantize(value, fmt)
            parts = {"codes": q.packed} | {
                part: each for part, each in q.qparams._asdict().items() if each is not None
            }
            for part, each in parts.items():
                found.setdefault(f"{pattern}.{part}", []).append(each)
    whole = torch.stack([torch.cat(each) for each in zip(*floats.values(), strict=True)])
    infos = {pattern: TensorInfo(str(bs.parse(fmt)), (8, 64)) for pattern in PATTERNS}
    taker = Taker()
    given = Fuse(taker, infos, operations).convert(
        found, target_patterns=["fused"], full_layer_name="fused", model=Experts()
    )
    return taker, given, whole


MERGE = [MergeModulelist(0), Concatenate(1)]


@pytest.mark.parametrize("fmt", ["mxfp4", "int4", "int8:group16:fp32", "mxfp8"])
def test_codes_are_those_of_the_whole(fmt: str) -> None:
    taker, _, whole = fused(fmt, MERGE)
    info, parts = taker.taken["fused"]
    q = bs.quantize(whole, fmt)
    assert info.shape == (3, 16, 64)
    assert torch.equal(parts["codes"], q.packed)
    assert torch.equal(parts["scale"], q.qparams.scale)
    assert not taker.floats


@pytest.mark.parametrize(
    ("fmt", "operations"),
    [("nvfp4", MERGE), ("int8:tensor:fp32", MERGE), ("mxfp4", [*MERGE, Transpose(1, 2)])],
    ids=["two levels", "tensor", "turned"],
)
def test_others_are_dequantized(fmt: str, operations: list[Any]) -> None:
    taker, given, whole = fused(fmt, operations)
    assert taker.floats == ["fused"]
    expected = torch.stack([
        torch.cat([bs.quantize(half, fmt).dequantize() for half in each.chunk(2)]) for each in whole
    ])  # fmt: skip
    expected = expected.transpose(1, 2) if len(operations) == 3 else expected
    assert torch.equal(given["fused"], expected)


def test_only_one_way() -> None:
    a, b = TensorInfo("int8", (2, 4)), TensorInfo("int4", (2, 4))
    assert only("x", [("e.0", a), ("e.1", a)]) is a
    with pytest.raises(bs.FileError, match=r"e\.0 and e\.1 become one tensor"):
        only("x", [("e.0", a), ("e.1", b)])


def test_a_piece_has_the_float_shape() -> None:
    q = bs.quantize(torch.randn(8, 64).t().contiguous().t(), "mxfp4")
    info = TensorInfo(str(q.format), (64, 8), layout="transposed")
    parts = {"codes": q.packed, "scale": q.qparams.scale}
    assert torch.equal(piece_values(parts, info), q.dequantize().t())
