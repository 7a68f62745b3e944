# SPDX-License-Identifier: BSD-3-Clause
"""Blocks, elements and constants of other libraries in our terms."""

import itertools

import pytest
import torch

from blockscale.core.block import WHOLE
from blockscale.core.parse import parse
from blockscale.graph.adoption import calls
from blockscale.graph.adoption.calls import NoFormatError
from tests.graph.adoption.cases import graph_of


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_blocks_name_means_its_sizes(rank: int) -> None:
    """Each name gives a scale of the shape that the sizes say."""
    shape = (4, 6, 8)[:rank]
    for sizes in itertools.product(*([WHOLE, 1, 2] for _ in shape)):
        block = parse(f"int8:{calls.block_name(sizes)}:fp32").block
        counts = [1 if s == WHOLE else n // s for n, s in zip(shape, sizes, strict=True)]
        assert list(block.scale_shape(shape)) == counts, sizes


def test_sizes_that_are_the_tensors_own_are_whole() -> None:
    assert calls.in_whole((4, 2), (4, 8)) == (WHOLE, 2)
    assert calls.in_whole((1, -1), (4, 8)) == (1, WHOLE)
    assert calls.in_whole((1, 8), (1, 8)) == (WHOLE, WHOLE)


@pytest.mark.parametrize(
    ("low", "high", "zero", "expected"),
    [
        (-128, 127, False, ("int8", ["full"])),
        (-127, 127, False, ("int8", [])),
        (-128, 127, True, ("int8", ["asym"])),
        (0, 255, True, ("uint8", ["asym"])),
        (0, 15, False, ("uint4", [])),
        (-8, 7, True, ("int4", ["asym"])),
        (0, 1, False, ("uint1", [])),
        (0, 65535, True, ("uint16", ["asym"])),
        (-32768, 32767, False, ("int16", ["full"])),
    ],
)
def test_elements(low, high, zero, expected) -> None:
    name, options = calls.element(low, high, zero)
    assert (name, options) == expected
    fmt = parse(":".join([name, "tensor", "fp32", *options]))
    assert fmt.element.limits(fmt.wide) == (low, high)


@pytest.mark.parametrize(
    ("low", "high", "zero"),
    [
        (-127, 127, True),
        (0, 100, False),
        (-100, 100, False),
        (-(2**31), 2**31 - 1, False),
        (1, 15, False),
    ],
)
def test_codes_that_no_element_has(low, high, zero) -> None:
    with pytest.raises(NoFormatError, match=r"codes -?\d+ … \d+"):
        calls.element(low, high, zero)


def test_constants() -> None:
    graph = graph_of(lambda x, held: x + held, torch.randn(3, 4), held=torch.ones(4))
    x, held = (n for n in graph.graph.nodes if n.op in ("placeholder", "get_attr"))
    if x.op == "get_attr":
        x, held = held, x
    assert calls.constant(graph, x) is None and calls.constant(graph, None) is None
    assert torch.equal(calls.constant(graph, held), torch.ones(4))
    assert calls.constant(graph, 0.5).item() == 0.5
    assert calls.rank_of(x) == 2
    x.meta.pop("val")
    with pytest.raises(NoFormatError, match="the shape of x is not known"):
        calls.rank_of(x)
