# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's table of fields, against the functions that say what blocks are."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.export.checkpoints.gguf import records
from blockscale.export.checkpoints.gguf.blocks import TYPES
from blockscale.kernels import cpu
from blockscale.ops import primitives

native = pytest.mark.skipif(isinstance(cpu.load(), str), reason="the native library is not here")


def test_every_type_but_one() -> None:
    assert set(TYPES) - set(records.PARTS) == {"TQ1_0"} and records.record("TQ1_0") is None
    for name, parts in records.PARTS.items():
        fmt = parse(TYPES[name].format)
        absent = {"NVFP4": {"outer"}, "Q2_0": {"zero_point"}}.get(name, set())
        assert {part.name for part in parts} == {"codes", *fmt.parts} - absent


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
