# SPDX-License-Identifier: BSD-3-Clause
"""Block types: gguf 0.19.0's own values of random bytes, and the bytes again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockscale.core.parse import parse
from blockscale.core.reference import QParams, dequantize
from blockscale.export.checkpoints.gguf.blocks import GRIDS, PLAIN, TYPES

RECORDED = load_file(Path(__file__).parents[3] / "recorded" / "gguf.safetensors")
ANY = torch.Generator().manual_seed(4)


@pytest.mark.parametrize("name", [n for n in TYPES if f"{n}.bytes" in RECORDED])
def test_values(name: str) -> None:
    of = TYPES[name]
    parts = of.apart(RECORDED[f"{name}.bytes"])
    fmt, codes = parse(of.format), parts.pop("codes")
    assert tuple(parts) == fmt.parts
    values = dequantize(codes, QParams(**parts), fmt, torch.float32)
    expected = RECORDED[f"{name}.values"]
    assert expected.unique().numel() > 50
    assert torch.equal(values, expected)


@pytest.mark.parametrize("name", TYPES)
def test_the_same_bytes_again(name: str) -> None:
    of = TYPES[name]
    blocks = torch.randint(0, 256, (50, of.size), dtype=torch.uint8, generator=ANY)
    if name == "TQ1_0":  # several bytes mean the same digits: ggml's own
        blocks = of.together(of.apart(blocks))
    parts = of.apart(blocks)
    assert torch.equal(of.together(parts), blocks)
    assert parts["codes"].shape == (50, of.elements)
    flipped = blocks.clone()
    flipped[7, of.size // 2] ^= 16
    assert not torch.equal(of.apart(flipped)["codes"], parts["codes"]) or name == "Q3_K"


def test_numbers_are_of_one_type_each() -> None:
    numbers = [t.number for t in TYPES.values()] + [n for n, _ in PLAIN.values()] + [*GRIDS]
    assert len(numbers) == len(set(numbers))
