# SPDX-License-Identifier: BSD-3-Clause
"""QTensor and the functions that make one: codes, scales, bytes, containers, and every message."""

import copy
import io
import math
import pickle
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import blockscale as bs
from blockscale.core.parse import CATALOG
from blockscale.ops.tensor import join
from tests.support.exact import layout, pack_row
from tests.support.ops_tensor import bits, parts
from tests.support.oracle import Oracle
from tests.support.strategies import DTYPES, SHAPES, spellings, tensors

NATIVE = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "uint16": torch.uint16}

CODES = {("int", 0): torch.int8, ("int", 1): torch.int16, ("uint", 1): torch.int32}
CODES |= {("binary", 0): torch.int8, ("ternary", 0): torch.int8}  # all others uint8


FLOATS = {"fp32": 4, "fp16": 2, "bf16": 2}


def offset_bytes(oracle: Oracle, counts: tuple[int, ...]) -> int:
    """Of the offsets of so many blocks, and of their scales."""
    if not oracle.offset:
        return 0
    inner = oracle.offset_inner
    if inner is None:
        return FLOATS[oracle.offset_type] * math.prod(counts)
    return math.prod(counts) + FLOATS[inner.scale] * math.prod(layout(inner.block, counts)[1])


@st.composite
def cases(draw) -> tuple[str, Tensor]:
    shape = draw(SHAPES)
    spelling = draw(spellings(len(shape)))
    return spelling, draw(tensors(spelling, shape))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of the reference, too
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_tensor_in_any_format(case) -> None:
    """Codes by the rational oracle; bytes by counting what is stored."""
    spelling, x = case
    oracle, shape, values = Oracle(spelling), tuple(x.shape), x.double().flatten().tolist()
    q = bs.quantize(x, spelling, seed=7)
    assert (q.shape, q.format, q.device) == (x.shape, bs.parse(spelling), x.device)
    qparams = oracle.choose(values, shape)
    codes = oracle.quantize(values, shape, qparams, seed=7)
    assert q.codes.shape == x.shape
    assert q.codes.flatten().tolist() == codes
    kind = (oracle.name.rstrip("0123456789"), q.format.bits > 8)
    assert q.codes.dtype == CODES.get(kind, torch.uint8)
    counts = layout(oracle.block, shape)[1]
    assert tuple(q.scale.shape) == counts
    if oracle.inner:
        assert q.scale.format == q.format.scale.inner
        assert q.scale.codes.flatten().tolist() == qparams.scale
    assert (q.zero_point is None) == (not oracle.asym)
    zero = 0 if q.zero_point is None else 4 * math.prod(counts)
    zero = zero // 2 if oracle.zero_type in ("fp16", "bf16") else zero
    outer = math.prod(layout(oracle.inner.block, counts)[1]) if oracle.inner else 0
    outer *= FLOATS[oracle.inner.scale] if oracle.inner else 0
    outer += offset_bytes(oracle, counts)
    one = {**FLOATS, "pow2": 4}.get(oracle.scale, 1)
    row = -(-(shape[-1] if shape else 1) * q.format.bits // 8)
    assert q.nbytes == row * math.prod(shape[:-1]) + one * math.prod(counts) + zero + outer
    again = bs.quantize(x, spelling, q.scale, q.zero_point, seed=7, offset=q.offset)
    assert parts(again) == parts(q)
    scale, zero_point = bs.choose_qparams(x, spelling)
    assert bits(zero_point) == bits(q.zero_point)
    assert parts(scale) == parts(q.scale) if oracle.inner else bits(scale) == bits(q.scale)
    for name, dtype in DTYPES.items():
        wanted = torch.tensor(oracle.dequantize(codes, shape, qparams, name), dtype=dtype)
        exact = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(q.dequantize(dtype), wanted.reshape(shape), **exact)
    assert bits(bs.fake_quantize(x, spelling, seed=7)) == bits(q.dequantize(x.dtype))


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CATALOG)
def test_packed_bytes(name: str) -> None:
    """numerics.md, section 6: the bytes themselves, for odd rows."""
    q, fmt = bs.quantize(torch.randn(2, 3, 11), name), bs.parse(name)
    element = fmt.element.name
    assert q.packed.dtype == NATIVE.get(element, torch.uint8)
    if fmt.bits not in (8, 16):
        stored = (q.codes > 0).int() if element == "binary" else q.codes
        rows = stored.flatten(0, -2).tolist()
        assert q.packed.flatten(0, -2).tolist() == [pack_row(row, fmt.bits) for row in rows]


def test_containers() -> None:
    """Copies, pickles, pytrees and devices keep every bit and the format."""
    for name in ("nvfp4", "uint4", "uint16", "mxfp4"):
        q = bs.quantize(torch.randn(3, 40), name)
        leaves, spec = pytree.tree_flatten(q)
        same = [copy.copy(q), copy.deepcopy(q), pytree.tree_unflatten(leaves, spec), q.to("cpu")]
        if name != "uint16":  # which torch 2.13 itself cannot pickle
            same.append(pickle.loads(pickle.dumps(q)))
        assert [parts(each) for each in same] == [parts(q)] * len(same)
        assert same[1].packed is not q.packed
        assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
        meta = q.to("meta")
        assert (meta.device.type, meta.shape, meta.nbytes) == ("meta", q.shape, q.nbytes)
        assert (meta.dequantize().shape, meta.codes.dtype) == (q.shape, q.codes.dtype)
        assert "'meta'" in repr(meta)
    assert (
        str(bs.quantize(torch.ones(1, 1), "int4"))
        == "QTensor('int4:group128:fp32', shape=(1, 1), 5 bytes)"
    )


def test_a_checkpoint_is_read_by_torch_load_as_it_is() -> None:
    """That is with weights_only: nobody should have to list our classes as safe."""
    q, file = bs.quantize(torch.randn(3, 40), "nvfp4"), io.BytesIO()
    torch.save({"q": q}, file)
    file.seek(0)
    assert parts(torch.load(file)["q"]) == parts(q)


def test_tree_map_over_its_tensors() -> None:
    """`tree_map(move, batch)` is how people move and pin: every leaf must be a tensor."""
    q = bs.quantize(torch.randn(3, 40), "mxfp4")
    assert parts(pytree.tree_map(lambda t: t.clone(), q)) == parts(q)


def test_to_takes_no_dtype() -> None:
    with pytest.raises((TypeError, ValueError)):  # half codes would mean nothing
        bs.quantize(torch.randn(3, 40), "int8").to(torch.float16)


class Requantize(nn.Module):
    def forward(self, q: bs.QTensor) -> bs.QTensor:
        return bs.quantize(q.dequantize() * 2, q.format, q.scale, q.zero_point)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "uint4"])
def test_export_of_a_function_of_qtensors(name: str) -> None:
    q, file = bs.quantize(torch.randn(3, 40), name), io.BytesIO()
    program = torch.export.export(Requantize(), (q,))
    torch.export.save(program, file)
    file.seek(0)
    for module in (program.module(), torch.export.load(file).module()):
        assert parts(module(q)) == parts(Requantize()(q))


@pytest.mark.slow
def test_compile_of_a_function_of_qtensors() -> None:
    """Also when it meets a second and a third format, and without a word."""
    torch._dynamo.reset()
    run = torch.compile(Requantize().forward, fullgraph=True, backend="aot_eager")
    for name in ("nvfp4", "uint4", "int8", "int4", "mxfp4"):
        q = bs.quantize(torch.randn(3, 40), name)
        assert parts(run(q)) == parts(Requantize()(q))
    run = torch.compile(lambda x: bs.quantize(x, "mxfp4"), fullgraph=True, backend="aot_eager")
    assert parts(run(torch.ones(3, 40))) == parts(bs.quantize(torch.ones(3, 40), "mxfp4"))


@pytest.mark.parametrize("fmt", ["mxfp4", "int8", "uint4", "nvfp4", "nf4"])
def test_products_of_two(fmt: str) -> None:
    a, b = torch.randn(2, 4, 36), torch.randn(36, 20)
    p, q = bs.quantize(a, fmt), bs.quantize(b, "int4:group8:fp16")
    for found, expected in (
        (p @ q, p.dequantize().double() @ q.dequantize().double()),
        (a @ q, a.double() @ q.dequantize().double()),
        (p @ b, p.dequantize().double() @ b.double()),
    ):
        assert found.shape == (2, 4, 20)
        assert found.dtype is torch.float32
        assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_products_with_what_is_no_tensor() -> None:
    q = bs.quantize(torch.randn(4, 4), "int8")
    for other in (3, "int8", None):
        with pytest.raises(TypeError, match="unsupported operand type"):
            q @ other
        with pytest.raises(TypeError, match="unsupported operand type"):
            other @ q


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "uint4:group32:bf16:offset", "int8:tensor:fp32"])
def test_what_a_tensor_answers(fmt: str) -> None:
    """Of its values, and for codes and scales together; also of scales that are quantized."""
    x = torch.randn(3, 4, 32)
    q, values = bs.quantize(x, fmt), bs.quantize(x, fmt).dequantize()
    for each, like in ((q, values), (q.scale, q.scale.dequantize() if fmt == "nvfp4" else q.scale)):
        assert (each.dtype, each.device, each.shape) == (like.dtype, like.device, like.shape)
        assert (each.ndim, each.dim(), each.numel()) == (like.ndim, like.dim(), like.numel())
    for same in (q.cpu(), q.to("cpu"), q.to(torch.device("cpu"), non_blocking=True), q.detach()):
        assert parts(same) == parts(q) and same.packed.data_ptr() == q.packed.data_ptr()
    for copied in (q.clone(), q.to("cpu", copy=True)):
        assert parts(copied) == parts(q) and copied.packed.data_ptr() != q.packed.data_ptr()
        assert copied.qparams.scale.data_ptr() != q.qparams.scale.data_ptr()
    for same in (q.to(torch.float32), q.to(values), q.to(q), q.to("cpu", torch.float32)):
        assert parts(same) == parts(q) and same.packed.data_ptr() == q.packed.data_ptr()
    assert parts(q.to(device="cpu", dtype=torch.float32, copy=True)) == parts(q)
    assert q.to("meta").device.type == "meta"
    for half in (lambda: q.to(values.half()), lambda: q.to("cpu", torch.float16)):
        with pytest.raises(TypeError, match=r"not to torch.float16: for another dtype use deq"):
            half()
    with pytest.raises(TypeError, match=r"expected a device, found list \[\]"):
        q.to([])
    with pytest.raises(
        TypeError, match=r"not to torch.float16: for another dtype use dequantize\(dtype\)"
    ):
        q.to(torch.float16)
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            q.cuda()


@pytest.mark.parametrize("fmt", ["int4:group8:fp32", "nvfp4", "uint4:group8:fp16:asym", "nf4"])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_that_are_joined_are_the_whole(fmt: str, dim: int) -> None:
    """To the bit, with what all parts have whole, such as an outer scale or a table."""
    q = bs.quantize(torch.randn(160, 160), fmt)
    some = [q.narrow(dim, a, b - a) for a, b in pairwise([0, 64, 160])]
    whole = join(some, dim - 2)
    assert (whole.format, whole.size) == (q.format, q.size)
    assert torch.equal(whole.packed, q.packed)
    for name in q.format.parts:
        part = getattr(whole.qparams, name)
        assert torch.equal(part, getattr(q.qparams, name))
        assert part.data_ptr() != getattr(q.qparams, name).data_ptr()
