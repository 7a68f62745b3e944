# SPDX-License-Identifier: BSD-3-Clause
"""Scales and zero points become float32 and int32 of the tensor's rank, whatever they were."""

import itertools

import pytest
import torch

from blockscale.core.block import WHOLE
from blockscale.core.parse import parse
from blockscale.graph.adoption import parts
from blockscale.graph.adoption.parts import NoFormatError
from tests.graph.adoption.cases import A, D, adopted, graph_of, left, notes
from tests.support.op_samples import bits


def values(shape, scale, zeros, axis=None):
    """A graph that dequantizes codes it holds, per channel or in blocks of whole rows."""
    torch.manual_seed(0)
    codes = torch.randint(-128, 128, shape, dtype=torch.int8)

    def function(x, codes, scale, zeros):
        if axis is None:
            block = [1] * (len(shape) - 1) + [shape[-1]]
            return x + A.dequantize_affine(codes, block, scale, zeros, torch.int8)
        return x + D.dequantize_per_channel(codes, scale, zeros, axis, -128, 127, torch.int8)

    return graph_of(function, torch.randn(shape), free=False, codes=codes, scale=scale, zeros=zeros)


@pytest.mark.parametrize("zero_dtype", [torch.int32, torch.int64, torch.int16, torch.float32])
def test_one_dimensional_parts_become_full_rank(zero_dtype) -> None:
    graph = values((5, 4, 3), torch.rand(4), torch.arange(4).to(zero_dtype), axis=1)
    made = adopted(graph)
    assert not left(made)
    names = dict(made.named_buffers())
    scale = next(part for name, part in names.items() if name.endswith("scale"))
    zero = next(part for name, part in names.items() if name.endswith("zero_point"))
    assert scale.shape == zero.shape == (1, 4, 1) and zero.dtype == torch.int32
    x = torch.randn(5, 4, 3)
    assert bits(made(x)) == bits(graph(x))


def test_square_tensors_do_not_mix_their_axes() -> None:
    """[n] for axis 1 of [n, n] is [1, n], not [n, 1]: at square sizes both would run."""
    for axis in (0, 1):
        graph = values((4, 4), torch.rand(4), torch.zeros(4, dtype=torch.int64), axis=axis)
        made = adopted(graph)
        scale = next(part for name, part in made.named_buffers() if name.endswith("scale"))
        assert list(scale.shape) == ([4, 1] if axis == 0 else [1, 4])
        x = torch.randn(4, 4)
        assert bits(made(x)) == bits(graph(x))


def test_zeros_are_no_zero_point() -> None:
    made = adopted(values((4, 4), torch.rand(4), torch.zeros(4, dtype=torch.int64), axis=0))
    assert not [name for name, _ in made.named_buffers() if "zero_point" in name]


@pytest.mark.parametrize(
    ("scale", "zeros", "reason"),
    [
        (torch.rand(4, dtype=torch.float64), torch.zeros(4), "more bits than float32"),
        (torch.rand(4).half(), torch.zeros(4), "its scale is torch.float16"),
        (torch.rand(4), torch.full((4,), 0.5), "zero points are not integers"),
        (torch.rand(4), torch.ones(4, dtype=torch.int8), "overflow"),
    ],
)
def test_what_stays(scale, zeros, reason: str) -> None:
    graph = values((4, 4), scale, zeros, axis=0)
    made = adopted(graph)
    assert len(left(made)) == 1 and reason in notes(made)
    x = torch.randn(4, 4)
    assert bits(made(x)) == bits(graph(x))


def test_doubles_that_are_floats_are_taken() -> None:
    graph = values((4, 4), torch.rand(4).double().float().double(), torch.zeros(4), axis=0)
    made = adopted(graph)
    assert not left(made)
    x = torch.randn(4, 4)
    assert bits(made(x).float()) == bits(graph(x).float())


def test_the_reciprocal_of_a_number_with_more_bits() -> None:
    """torch divides 1 by a Python number in float64: of some it is another float32."""
    for each in range(3, 400):
        scale = 1.0 / each + 1e-9
        theirs = torch.tensor(1.0 / scale, dtype=torch.float32)
        same = bool(theirs == 1.0 / torch.tensor(scale, dtype=torch.float32))
        if same:
            continue
        made = adopted(
            graph_of(
                lambda x, s=scale: D.quantize_per_tensor(x, s, 0, -128, 127, torch.int8),
                torch.randn(3, 4),
            )
        )
        assert left(made) and "the reciprocal of its scale" in notes(made)
        return
    pytest.fail("no such scale among these")


# Blocks, elements and constants of other libraries in our terms.


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_blocks_name_means_its_sizes(rank: int) -> None:
    """Each name gives a scale of the shape that the sizes say."""
    shape = (4, 6, 8)[:rank]
    for sizes in itertools.product(*([WHOLE, 1, 2] for _ in shape)):
        block = parse(f"int8:{parts.block_name(sizes)}:fp32").block
        counts = [1 if s == WHOLE else n // s for n, s in zip(shape, sizes, strict=True)]
        assert list(block.scale_shape(shape)) == counts, sizes


def test_sizes_that_are_the_tensors_own_are_whole() -> None:
    assert parts.in_whole((4, 2), (4, 8)) == (WHOLE, 2)
    assert parts.in_whole((1, -1), (4, 8)) == (1, WHOLE)
    assert parts.in_whole((1, 8), (1, 8)) == (WHOLE, WHOLE)


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
    name, options = parts.element(low, high, zero)
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
        parts.element(low, high, zero)


def test_constants() -> None:
    graph = graph_of(lambda x, held: x + held, torch.randn(3, 4), held=torch.ones(4))
    x, held = (n for n in graph.graph.nodes if n.op in ("placeholder", "get_attr"))
    if x.op == "get_attr":
        x, held = held, x
    assert parts.constant(graph, x) is None and parts.constant(graph, None) is None
    assert torch.equal(parts.constant(graph, held), torch.ones(4))
    assert parts.constant(graph, 0.5).item() == 0.5
    assert parts.rank_of(x) == 2
    x.meta.pop("val")
    with pytest.raises(NoFormatError, match="the shape of x is not known"):
        parts.rank_of(x)
