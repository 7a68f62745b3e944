# SPDX-License-Identifier: BSD-3-Clause
"""The nodes that are written: pairs share their parts, packed codes stay packed between them."""

import pytest
import torch

from blockscale.core.parse import parse
from tests.graph.adoption.cases import A, D, adopted, graph_of, inputs, left, notes
from tests.support.op_samples import bits


def nodes(graph) -> list:
    return [n for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.slow
def test_a_pair_shares_its_parts_and_its_packed_codes() -> None:
    def both(x):
        q = D.quantize_per_tensor(x, 0.3, 3, 0, 15, torch.uint8)
        return D.dequantize_per_tensor(q, 0.3, 3, 0, 15, torch.uint8)

    graph = graph_of(both, torch.randn(4, 11))
    made = adopted(graph)
    names = [str(n.target) for n in nodes(made)]
    assert names == ["blockscale.quantize.default", "blockscale.dequantize.default"]
    q, dq = nodes(made)
    assert dq.args[0] is q and dq.args[1] is q.args[1] and dq.args[2] is q.args[2]
    assert q.args[4] == dq.args[4] == "uint4:tensor:fp32:asym:recip"
    assert len(list(made.buffers())) == 2


def test_a_free_row_size_is_a_node() -> None:
    def both(x):
        q = D.quantize_per_tensor(x, 0.5, 0, -8, 7, torch.int8)
        return D.dequantize_per_tensor(q, 0.5, 0, -8, 7, torch.int8)

    sizes = {"x": {1: torch.export.Dim("n", min=2)}}
    from blockscale.graph.program import import_graph
    from tests.graph.adoption.cases import Calls

    graph = import_graph(
        torch.export.export(Calls(both), (torch.randn(4, 12),), dynamic_shapes=sizes)
    )
    made = adopted(graph)
    for n in (12, 7, 2):
        x = torch.randn(4, n)
        assert bits(made(x)) == bits(graph(x))


@pytest.mark.slow
def test_choices_become_one_node_with_theirs_gone() -> None:
    def both(x):
        scale, zero = A.choose_qparams_affine(x, "ASYMMETRIC", [1, 16], torch.uint8, 0, 255)
        q = A.quantize_affine(x, [1, 16], scale, zero, torch.uint8, 0, 255)
        return A.dequantize_affine(q, [1, 16], scale, zero, torch.uint8, 0, 255), q

    graph = graph_of(both, torch.randn(4, 16))
    made = adopted(graph)
    names = [str(n.target) for n in nodes(made)]
    assert names.count("blockscale.choose_quantize.default") == 1
    assert not [name for name in names if "torchao" in name]
    x = torch.randn(5, 16)
    assert bits(made(x)) == bits(graph(x))


def test_codes_out_of_range_stay() -> None:
    """Codes that say 4 bits and have more would be cut by packing."""
    codes = torch.tensor([[7, -9, 3, 0]], dtype=torch.int8)

    def values(x, codes):
        return x + D.dequantize_per_tensor(codes, 0.5, 0, -8, 7, torch.int8)

    graph = graph_of(values, torch.randn(3, 4), codes=codes)
    made = adopted(graph)
    assert str(nodes(made)[0].target).startswith("quantized_decomposed")
    x = torch.randn(3, 4)
    assert bits(made(x)) == bits(graph(x))


@pytest.mark.parametrize(
    ("scales", "scale"),
    [
        ([0.5, 2.0**-20, 4.0], "pow2/nearest"),
        ([2.0**-126, 2.0**127, 1.0], "pow2/nearest"),
        ([0.5, 0.3, 4.0], "fp32"),
        ([0.5, 2.0**-127, 4.0], "fp32"),  # a subnormal number
    ],
)
def test_powers_of_two_are_called_so(scales, scale) -> None:
    """And only where all are; bits are the producer's, whose reciprocals are exact then."""
    zeros = torch.zeros(3, dtype=torch.int64)

    def both(x, s, z):
        q = D.quantize_per_channel(x, s, z, 0, -128, 127, torch.int8)
        return D.dequantize_per_channel(q, s, z, 0, -128, 127, torch.int8)

    x = torch.randn(3, 40) * 100
    graph = graph_of(both, x, free=False, s=torch.tensor(scales), z=zeros)
    made = adopted(graph)
    q, dq = nodes(made)
    assert q.args[4] == f"int8:channel0:{scale}:full" + ":recip" * (scale == "fp32")
    assert dq.args[4] == q.args[4]
    for each in (x, x / 1e30, torch.tensor([[0.25], [2.0**-21], [2.0]]) * torch.arange(-20, 20)):
        assert bits(made(each)) == bits(graph(each))


# quantized_decomposed nodes against torch itself: the same codes and values, node for node.

RANGES = [
    (torch.int8, -128, 127, 0),
    (torch.int8, -127, 127, 0),
    (torch.int8, -128, 127, 5),
    (torch.uint8, 0, 255, 0),
    (torch.uint8, 0, 255, 131),
    (torch.uint8, 0, 127, 64),
    (torch.int8, -8, 7, 0),
    (torch.int8, -8, 7, -3),
    (torch.uint8, 0, 15, 7),
    (torch.int16, -32768, 32767, 0),
    (torch.int16, -32768, 32767, 1000),
    (torch.uint16, 0, 65535, 30000),
]
SCALES = (0.05, 2.0**-6, 1 / 3)


def exact(scale: float) -> float:
    """As observers give it: a float32."""
    return torch.tensor(scale, dtype=torch.float32).item()


def same(graph, xs, *, nodes: int = 0):
    """Adopted, with the same bits and so many foreign nodes left."""
    made = adopted(graph)
    assert len(left(made)) == nodes, left(made)
    for x in xs:
        for each in (x, x[:3]) if x.shape[0] > 3 else (x,):
            assert bits(made(each)) == bits(graph(each))
    return made


def formats(graph) -> set[str]:
    found = set()
    for node in graph.graph.nodes:
        found |= {str(a) for a in node.args if isinstance(a, str) and ":" in a}
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
@pytest.mark.parametrize("scale", SCALES)
def test_per_tensor(scale) -> None:
    scale, shape = exact(scale), (4, 40)

    def both(x):
        found = []
        for dtype, low, high, zero in RANGES:
            q = D.quantize_per_tensor(x, scale, zero, low, high, dtype)
            found += [q, D.dequantize_per_tensor(q, scale, zero, low, high, dtype)]
        return found

    made = same(graph_of(both, torch.randn(shape)), inputs(shape, scale))
    assert all(parse(f).block.name == "tensor" for f in formats(made))
    assert all(part.ndim == 2 for part in made.buffers())


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_per_tensor_of_other_floats(dtype) -> None:
    scale = exact(0.05)

    def both(x):
        q = D.quantize_per_tensor(x, scale, 3, -128, 127, torch.int8)
        return q, D.dequantize_per_tensor(q, scale, 3, -128, 127, torch.int8, out_dtype=dtype)

    xs = [x.clamp(-6e4, 6e4) for x in inputs((4, 40), scale, dtype)]
    same(graph_of(both, torch.randn(4, 40).to(dtype)), xs)


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("zero", [0, 12])
def test_per_tensor_with_tensors(shape, zero) -> None:
    scale = torch.full(shape, 0.05, dtype=torch.float64).float().double()
    zeros = torch.full(shape, zero, dtype=torch.int64)

    def both(x, scale, zeros):
        q = D.quantize_per_tensor.tensor(x, scale, zeros, 0, 255, torch.uint8)
        return q, D.dequantize_per_tensor.tensor(q, scale, zeros, 0, 255, torch.uint8)

    graph = graph_of(both, torch.randn(4, 40), scale=scale, zeros=zeros)
    made = same(graph, inputs((4, 40), scale.item()))
    assert all(part.ndim == 2 and part.dtype != torch.float64 for part in made.buffers())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel(axis) -> None:
    shape = (4, 5, 6)
    n = shape[axis]
    scales = torch.rand(n) * 0.1 + 0.01
    zeros = {}
    ranges = RANGES[:-1]  # torch cannot take uint16 from int64
    for i, (*_, zero) in enumerate(ranges):
        zeros[f"zeros{i}"] = torch.full((n,), zero, dtype=torch.int64)
        zeros[f"zeros{i}"][0] = 0

    def both(x, scales, **zeros):
        found = []
        for zero, (dtype, low, high, _) in zip(zeros.values(), ranges, strict=True):
            q = D.quantize_per_channel(x, scales, zero, axis % 3, low, high, dtype)
            found += [q, D.dequantize_per_channel(q, scales, zero, axis % 3, low, high, dtype)]
        return found

    graph = graph_of(both, torch.randn(shape), free=axis != 0, scales=scales, **zeros)
    made = adopted(graph)
    assert not left(made)
    for x in inputs(shape, 0.05):
        assert bits(made(x)) == bits(graph(x))
    full = [1, 1, 1]
    full[axis] = n
    assert all(list(part.shape) == full for part in made.buffers())


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
@pytest.mark.parametrize("zero", [0, 9])
def test_per_token(zero) -> None:
    shape = (4, 3, 10)

    def both(x):
        scales = (x.abs().amax(-1, keepdim=True) + 0.1) / 100
        zeros = torch.full_like(scales, zero).to(torch.int32)
        q = D.quantize_per_token(x, scales, zeros, -128, 127, torch.int8)
        return q, D.dequantize_per_token(q, scales, zeros, -128, 127, torch.int8, torch.float32)

    made = same(graph_of(both, torch.randn(shape)), inputs(shape, 0.05))
    # these add the zero point before they round: ties tell
    assert any("asym(fp32)" in f for f in formats(made))


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_zero_points_inside_of_rounding_are_told_apart() -> None:
    """round(y + z) is not round(y) + z at ties with an odd z, and a planted swap shows."""
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5]])
    ones, zeros = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.int32)
    inside = D.quantize_per_token(x, ones, zeros, -128, 127, torch.int8)
    outside = D.quantize_per_tensor(x, 1.0, 1, -128, 127, torch.int8)
    assert not torch.equal(inside, outside)


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_per_channel_group() -> None:
    scales, ranges = torch.rand(6, 4) * 0.1 + 0.01, RANGES[:9]
    zeros = {
        f"zeros{i}": torch.full((6, 4), zero, dtype=torch.int32)
        for i, (*_, zero) in enumerate(ranges)
    }

    def both(x, scales, **zeros):
        found = []
        for zero, (dtype, low, high, _) in zip(zeros.values(), ranges, strict=True):
            q = D.quantize_per_channel_group(x, scales, zero, low, high, dtype, 16)
            of = (scales, zero, low, high, dtype, 16, torch.float32)
            found += [q, D.dequantize_per_channel_group(q, *of)]
        return found

    graph = graph_of(both, torch.randn(6, 64), free=False, scales=scales, **zeros)
    made = adopted(graph)
    assert not left(made)
    for x in inputs((6, 64), 0.05):
        assert bits(made(x)) == bits(graph(x))
    assert all("group16" in f for f in formats(made))


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_dynamic_per_tensor() -> None:
    def both(x):
        scale, zero = D.choose_qparams.tensor(x, 0, 255, 1e-7, torch.uint8)
        q = D.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        return q, D.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8)

    graph = graph_of(both, torch.randn(4, 40))
    # the choice stays: no format has torch's smallest scale, eps
    xs = [x for x in inputs((4, 40), 0.05) if x.abs().max() < 1e20]
    made = same(graph, xs, nodes=1)
    assert left(made) == ["quantized_decomposed.choose_qparams.tensor"]


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_dynamic_per_token() -> None:
    def both(x):
        scale, zero = D.choose_qparams_per_token(x, torch.int8)
        q = D.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return q, D.dequantize_per_token(q, scale, zero, -128, 127, torch.int8, torch.float32)

    made = same(graph_of(both, torch.randn(4, 3, 10)), inputs((4, 3, 10), 0.05), nodes=1)
    assert formats(made) == {"int8:block1x1x*:fp32:full:recip"} or all(
        "asym" not in f for f in formats(made)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_what_has_no_counterpart_stays_and_says_why() -> None:
    def asymmetric(x):
        scale, zero = D.choose_qparams_per_token_asymmetric(x, torch.int8)
        q = D.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return D.dequantize_per_token(q, scale, zero, -128, 127, torch.int8, torch.float32)

    graph = graph_of(asymmetric, torch.randn(4, 10))
    made = adopted(graph)
    assert "quantized_decomposed.quantize_per_token.default" in left(made)
    assert "quantized_decomposed.dequantize_per_token.default" not in left(made)
    assert "formats compute in float32" in notes(made)
    for x in inputs((4, 10), 0.05):
        assert bits(made(x)) == bits(graph(x))

    def narrow(x):
        return D.quantize_per_tensor(x, 0.5, 3, -127, 127, torch.int8)

    made = adopted(graph_of(narrow, torch.randn(4, 10)))
    assert len(left(made)) == 1
    assert "no element here has the codes -127 … 127 with a zero point" in notes(made)

    def inexact(x):
        return D.quantize_per_tensor(x, 1 / 49, 0, -128, 127, torch.int8)

    made = adopted(graph_of(inexact, torch.randn(4, 10)))
    exact_reciprocal = torch.tensor(49.0) == 1 / torch.tensor(1 / 49)
    assert bool(exact_reciprocal) == (not left(made))

    def float8(x):
        return D.quantize_per_tensor(x, 0.5, 0, -448, 448, torch.float8_e4m3fn)

    made = adopted(graph_of(float8, torch.randn(4, 10)))
    assert "integers that it stores as torch.float8_e4m3fn" in notes(made)


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_zero_points_that_wrap_around() -> None:
    zeros = torch.full((4,), -100, dtype=torch.int8)

    def values(x, codes, zeros, scales):
        return x + D.dequantize_per_channel(codes, scales, zeros, 0, -128, 127, torch.int8)

    codes = torch.randint(-128, 128, (4, 8), dtype=torch.int8)
    graph = graph_of(
        values, torch.randn(4, 8), free=False, codes=codes, zeros=zeros, scales=torch.rand(4)
    )
    made = adopted(graph)
    assert len(left(made)) == 1 and "codes minus zero points overflow torch.int8" in notes(made)
    x = torch.randn(4, 8)
    assert bits(made(x)) == bits(graph(x))


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_biases_of_32_bits() -> None:
    codes = torch.randint(-(2**30), 2**30, (8,), dtype=torch.int32)

    def values(x, codes, scales, zeros):
        one = D.dequantize_per_channel(codes, scales, zeros, 0, -(2**31), 2**31 - 1, torch.int32)
        return x + one + D.dequantize_per_tensor(codes, 0.1, 0, -(2**31), 2**31 - 1, torch.int32)

    zeros = torch.zeros(8, dtype=torch.int64)
    graph = graph_of(values, torch.randn(4, 8), codes=codes, scales=torch.rand(8), zeros=zeros)
    made = same(graph, [torch.randn(4, 8)])
    assert [str(n.target) for n in made.graph.nodes if "mul" in str(n.target)]


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_codes_that_others_read_are_unpacked() -> None:
    def function(x):
        q = D.quantize_per_tensor(x, 0.5, 0, -8, 7, torch.int8)
        return q + 1, D.dequantize_per_tensor(q, 0.5, 0, -8, 7, torch.int8), q.to(torch.int32)

    same(graph_of(function, torch.randn(4, 11)), inputs((4, 11), 0.5))


@pytest.mark.filterwarnings("ignore:no cpu kernel runs .*asym.fp32")
def test_different_parameters_of_one_tensors_codes() -> None:
    def function(x):
        q = D.quantize_per_tensor(x, 0.5, 3, 0, 15, torch.uint8)
        return D.dequantize_per_tensor(q, 0.25, 4, 0, 15, torch.uint8)

    same(graph_of(function, torch.randn(4, 11)), inputs((4, 11), 0.5))
