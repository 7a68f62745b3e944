# SPDX-License-Identifier: BSD-3-Clause
"""Block types: gguf 0.19.0's own values of random bytes, and the bytes again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.core.reference import QParams, dequantize
from blockscale.export.checkpoints.gguf import records
from blockscale.export.checkpoints.gguf.records import GRIDS, PLAIN, TYPES, blocks_of
from blockscale.kernels import cpu
from blockscale.ops import primitives
from tests.support.gguf_reading import SMALL

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


@pytest.mark.some(3)
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


# The kernel's table of fields, against the functions that say what blocks are.


native = pytest.mark.skipif(isinstance(cpu.load(), str), reason="the native library is not here")


def test_every_type_but_one() -> None:
    assert set(TYPES) - set(records.PARTS) == {"TQ1_0"} and records.record("TQ1_0") is None
    for name, parts in records.PARTS.items():
        fmt = parse(TYPES[name].format)
        absent = {"NVFP4": {"outer"}, "Q2_0": {"zero_point"}}.get(name, set())
        assert {part.name for part in parts} == {"codes", *fmt.parts} - absent


@pytest.mark.some(4)
@native
@pytest.mark.parametrize("count", [1, 517])
@pytest.mark.parametrize("name", records.PARTS)
def test_as_the_functions(name: str, count: int) -> None:
    of, random = TYPES[name], torch.Generator().manual_seed(count)
    blocks = torch.randint(0, 256, (count, of.size), dtype=torch.uint8, generator=random)
    expected = of.apart(blocks)
    expected["codes"] = primitives.pack(expected["codes"], of.format)
    expected.pop("zero_point", None)
    found = {part: torch.zeros_like(each).contiguous() for part, each in expected.items()}
    records.apart_into(name, blocks[: count // 2], 0, found)
    records.apart_into(name, blocks[count // 2 :], count // 2, found)
    stored = dict(found)
    found |= records.negate(name, found)
    for part, each in expected.items():
        assert torch.equal(found[part].view(torch.uint8), each.contiguous().view(torch.uint8)), part
    again = torch.full_like(blocks, 255)
    records.together_from(name, stored, 0, again)
    assert torch.equal(again, blocks)


@native
@pytest.mark.parametrize(
    "part",
    [(8, 4, 0, True, [(0, 9, 0, 4, 0, 0, False)]), (8, 4, 16, True, []), (3, 4, 0, True, []),
     (8, 4, 0, True, [(0, 4, 6, 4, 0, 0, False)]), (8, 4, 0, True, [(0, 2, 0, 1, 0, 0, True)] * 1),
     (4096, 4, 0, True, []), (8, 9, 0, False, []), (8, 8, 0, False, [(-1, 4, 0, 8, 0, 0, False)])],
)  # fmt: skip
def test_tables_that_would_leave_the_block(part: tuple) -> None:
    with pytest.raises(ValueError, match=r"part|piece|add"):
        cpu.load().Record(8, [part])


# Quantized tensors become the bytes that they were read from, with and without the kernel.


@pytest.mark.parametrize("kernel", [True, False])
def test_the_bytes_of_a_file(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(records, "record", lambda _: None)
    with bs.checkpoint(SMALL) as found:
        for name, stored in found.stored.items():
            if stored.kind in TYPES and stored.kind != "TQ1_0":
                assert torch.equal(
                    blocks_of(found[name], TYPES[stored.kind]).flatten(), found.blocks(name)
                ), name
