# SPDX-License-Identifier: BSD-3-Clause
"""Rows of quantized pieces, moved: they dequantize to what the same move makes of floats."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    Interleave,
    MergeModulelist,
    PermuteForRope,
    Transpose,
    WeightConverter,
)

import blockscale as bs
from blockscale.core import joined_weights
from blockscale.core.pack import from_stored, stored_shape, to_stored
from blockscale.core.parse import parse
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming_carry import carry
from blockscale.files.renaming_moves import Move
from blockscale.ops.tensor import from_parts

FORMATS = (
    "mxfp4", "nvfp4", "int8", "int8_channel", "uint4", "int4:group16:fp16:asym",
    "int8:channel1:fp32", "e4m3:tile16x16:fp32", "int8:tile8x32:fp32",
    "uint4:group16:(uint6:tensor:fp16)", "int5:group7:fp32", "nf4:flat32:fp32",
)  # fmt: skip
GATE_UP = ["e.*.gate", "e.*.up"]


@dataclass
class Case:
    """What transformers does with pieces of `shapes`, which makes tensors of `targets`."""

    sources: dict[str, list[tuple[int, ...]]]
    targets: dict[str, tuple[int, ...]]
    operations: list[Any]
    layout: str = "plain"
    result: str = "plain"


CASES = {
    "experts": Case({"e.*.down": [(48, 32)] * 3}, {"e.down": (3, 48, 32)}, [MergeModulelist(0)]),
    "gate and up": Case(
        {p: [(48, 32)] * 3 for p in GATE_UP}, {"e.gate_up": (3, 96, 32)},
        [MergeModulelist(0), Concatenate(1)],
    ),
    "joined": Case({"a": [(16, 32)], "b": [(48, 32)]}, {"ab": (64, 32)}, [Concatenate(0)]),
    "cut": Case({"qkv": [(96, 32)]}, dict.fromkeys("qkv", (32, 32)), [Chunk(0)]),
    "permuted": Case({"wq": [(32, 32)]}, {"q": (32, 32)}, [PermuteForRope()]),
    "interleaved": Case({"w13": [(3, 64, 32)]}, {"gu": (3, 64, 32)}, [Interleave(1)]),
    "transposed": Case({"w": [(3, 32, 48)]}, {"t": (3, 48, 32)}, [Transpose(1, 2)], "transposed"),
    "laid down": Case({"w": [(48, 32)]}, {"t": (32, 48)}, [Transpose(0, 1)], "plain", "transposed"),
    "convolutions": Case(
        {"a": [(8, 4, 3)], "b": [(8, 4, 3)]}, {"ab": (16, 4, 3)}, [Concatenate(0)],
        "channels_last", "channels_last",
    ),
}  # fmt: skip
NEVER = {  # one scale for pieces of several sizes, for rows in another order, beyond a piece's end
    ("joined", "nvfp4"), ("joined", "int8"), ("joined", "int8:channel1:fp32"),
    ("joined", "uint4:group16:(uint6:tensor:fp16)"), ("permuted", "int8:tile8x32:fp32"),
    ("interleaved", "e4m3:tile16x16:fp32"), ("interleaved", "int8:tile8x32:fp32"),
    ("convolutions", "e4m3:tile16x16:fp32"), ("convolutions", "nf4:flat32:fp32"),
}  # fmt: skip


def quantized(case: Case, fmt: str) -> tuple[Move, dict[str, TensorInfo], dict[str, bs.QTensor]]:
    """The move, and its pieces in this format, each by itself; a stack's matrices as well."""
    generator = torch.Generator().manual_seed(0)
    infos, pieces, sources = {}, {}, {}
    for pattern, shapes in case.sources.items():
        names = [f"{pattern.replace('*', str(i))}" for i in range(len(shapes))]
        sources[pattern] = tuple(names)
        for name, shape in zip(names, shapes, strict=True):
            stored = to_stored(torch.randn(shape, generator=generator), case.layout)
            own = parse(fmt)
            if stored.ndim == 3:
                own = joined_weights.of_stack(own, stored.shape)
            pieces[name] = bs.quantize(stored, own)
            infos[name] = TensorInfo(str(own), shape, "float32", case.layout)
    converter = WeightConverter(list(sources), list(case.targets), case.operations)
    return Move(sources, next(iter(case.targets)), converter), infos, pieces


MODEL: Any = SimpleNamespace(config=SimpleNamespace(num_attention_heads=2))


def result(move: Move, case: Case, infos, pieces) -> dict[str, Tensor] | None:
    """The carried tensors, dequantized; None where codes cannot be kept."""
    found = carry(MODEL, move, infos, {n: torch.Size(s) for n, s in case.targets.items()})
    if found is None:
        return None
    values = {}
    for name, each in found.items():
        assert each.info.layout == case.result
        parts = {}
        for part in each.parts:
            stored = {
                n: q.packed if part == "codes" else getattr(q.qparams, part)
                for n, q in pieces.items()
            }
            parts[part] = each.part(part, stored)
            assert (parts[part].dtype, parts[part].shape) == each.info.parts()[part]
        shape = stored_shape(each.info.shape, each.info.layout)
        q = from_parts(parse(each.info.format), shape[-1], parts)
        values[name] = from_stored(q.dequantize(), each.info.layout, each.info.shape)
    return values


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_values_move_as_transformers_moves_floats(name, fmt):
    case = CASES[name]
    move, infos, pieces = quantized(case, fmt)
    found = result(move, case, infos, pieces)
    floats = {
        n: from_stored(q.dequantize(), infos[n].layout, infos[n].shape).contiguous()
        for n, q in pieces.items()
    }
    expected = move.converted(MODEL, floats)
    assert (found is None) == ((name, fmt) in NEVER)
    if found is None:
        return
    assert found.keys() == expected.keys()
    for target in expected:
        assert torch.equal(found[target], expected[target])


def test_pieces_that_differ_are_not_carried():
    case = CASES["joined"]
    move, infos, _ = quantized(case, "mxfp4")
    for change in ({"format": "mxfp6"}, {"dtype": "bfloat16"}, {"shape": (48, 64)}):
        name = move.names[-1]
        odd = {**infos, name: TensorInfo(**{**vars(infos[name]), **change})}
        targets = {n: torch.Size(s) for n, s in case.targets.items()}
        assert carry(MODEL, move, odd, targets) is None
    assert carry(MODEL, move, {}, {n: torch.Size(s) for n, s in case.targets.items()}) is None
