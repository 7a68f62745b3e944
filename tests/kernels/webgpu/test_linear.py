# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers on the GPU against float64: formats, inputs, dtypes, sizes, hard numbers."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.webgpu import matmul, matmul_weight
from blockscale.kernels.webgpu.gpu import memory
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.gpu.probe import wrongly_computed
from blockscale.kernels.webgpu.linear import fingerprint
from blockscale.kernels.webgpu.linear import rows as rows_of
from blockscale.kernels.webgpu.matmul import MatrixPlaces, floats
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.ops import primitives as P
from blockscale.ops.embedding import embedding
from blockscale.ops.linear import linear
from tests.kernels.restated import FORMATS, awkward, runs
from tests.kernels.webgpu.equal import wrong
from tests.kernels.webgpu.exact import by, check, on_webgpu, stored
from tests.support import batch_rows
from tests.support.batch_rows import PAIRS, differing
from tests.support.same import same
from tests.support.some import crossed

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
QUICK = ("int8_channel", "nvfp4", "fp8", "uint4", "nf4")
WEIGHTS = (
    *CATALOG.values(),
    *("int4:group32:fp32", "uint4:group32:e8m0/floor:asym", "int3:group16:fp16", "e7m0:token:fp32"),
    *("int8:tile16x32:fp32", "int8:tile16x32:e8m0/floor", "int8:channel1:fp32"),
    *("uint8:group64:fp32", "int8:group20:fp32", "int5:group32:bf16", "int7:group8:fp32"),
    *("e2m1:group16:(e4m3:token:fp32)", "int8:group16:(uint8:tensor:fp32)", "e4m3:group16:e5m2"),
    *("log4:group32:e8m0/ceil", "e3m0:group64:pow2/even", "uint4:token:fp32:asym"),
    *("int8:block8x*:fp32", "uint4:block4x*:bf16:asym", "int4:flat32:fp32", "int6:flat48:fp32"),
    *("uint4:group32:fp16:offset", "nf4:group64:fp32:offset", "e2m1:group32:e8m0/ceil:offset"),
    *("fp4:group64:fp16", "book(-1,-0.5,0,0.5,1):token:fp32", "uint4:group32:fp16:asym(fp16)"),
)
INPUTS = ("int8:token:fp32", "mxfp8", "uint8:token:fp32:asym", "nvfp4", "int8:tensor:fp32")
SIZES = ((1, 96, 7), (2, 160, 33), (4, 64, 50), (5, 80, 1), (18, 64, 17), (70, 100, 66))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", crossed(8, QUICK))
def test_few_and_many_rows(name: str) -> None:
    w = stored(torch.randn(34, 128), name)
    for i, rows in enumerate((1, 3, 20)):
        dtype = DTYPES[(i + len(name)) % 3]
        check(torch.randn(rows, 128).to(dtype), w, torch.randn(34).to(dtype) if i else None)


def rows_of_a_kernel(size: tuple[int, int, int]) -> tuple[bool]:
    """Few or many."""
    return (size[0] > 4,)


@pytest.mark.slow
@pytest.mark.pairs(size=rows_of_a_kernel, dtype=lambda dtype: (), bias=lambda dtype: ())
@pytest.mark.parametrize("bias", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("fmt", "size"),
    [(fmt, size) for fmt in WEIGHTS for size in SIZES if size[1] % 16 == 0 or "flat" not in fmt],
)
def test_every_weight_format(
    fmt: str, size: tuple[int, int, int], dtype: torch.dtype, bias: torch.dtype | None
) -> None:
    """Each with few rows and with many, of which sizes, dtypes and biases take turns."""
    m, k, n = size
    w = stored(torch.randn(n, k), fmt)
    check(torch.randn(m, k).to(dtype), w, None if bias is None else torch.randn(n).to(bias))


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", INPUTS[:2])
def test_quantized_inputs(fmt: str) -> None:
    w = stored(torch.randn(10, 64), "int8_channel")
    for dtype in DTYPES[:2]:
        check(torch.randn(2, 3, 64).to(dtype), w, torch.randn(10), by(fmt))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", INPUTS)
def test_every_input_format(fmt: str) -> None:
    for i, name in enumerate(("int8_channel", "mxfp4", "fp8")):
        w = stored(torch.randn(9, 64), name)
        check(torch.randn(2, 3, 64).to(DTYPES[i]), w, torch.randn(9), by(fmt))


def test_given_scales_of_inputs() -> None:
    fmt = "uint8:tensor:fp32:asym"
    x, w = torch.randn(2, 5, 48), stored(torch.randn(9, 48), "int8_channel")
    scale, outer, zero = P.from_list(P.choose_qparams.reference(x * 0.7, fmt), parse(fmt))[:3]
    check(x, w, None, Quantizer(scale, zero, outer, fmt))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("rows", "outputs", "inner"),
    [(1, 5000, 160), (2, 40, 2080), (129, 12, 40), (40, 70, 24), (300, 260, 20)],
)
def test_shapes_of_every_plan(rows: int, outputs: int, inner: int) -> None:
    w = stored(
        torch.randn(outputs, inner), "int4:group8:fp32" if inner % 32 else "int4:group32:fp32"
    )
    check(torch.randn(rows, inner), w)


@pytest.mark.slow
def test_the_largest_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_BUSY", 4)
    matmul.plan.cache_clear()
    w = stored(torch.randn(133, 72), "uint4:group8:fp32:asym")
    check(torch.randn(140, 72).half(), w, torch.randn(133).half())
    matmul.plan.cache_clear()


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    [
        "int4:group32:fp32", "e4m3:group32:e8m0/floor",
        pytest.param("mxint8", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_numbers_that_are_not(fmt: str) -> None:
    values = torch.randn(6, 128)
    values[4] = 0.0
    w = stored(values, fmt)
    for rows in (3, 9):
        for odd in (torch.inf, -torch.inf, torch.nan):
            x = torch.randn(rows, 128)
            x[1, 7] = odd
            with bs.use("reference"):
                expected = linear(x, w)
            y = on_webgpu(x, w)
            assert torch.equal(y.isnan(), expected.isnan())
            assert torch.equal(y.isinf(), expected.isinf())
            assert torch.equal(y.sign().nan_to_num(), expected.sign().nan_to_num())


def test_poisoned_blocks_and_codes() -> None:
    w = stored(torch.randn(6, 128), "mxfp8")
    w.scale[2, 1], w.codes[3, 5] = 255, 0x7F  # a poisoned block, a NaN code
    for rows in (2, 20):
        y = on_webgpu(torch.randn(rows, 128), w)
        assert y.isnan().any(0).tolist() == [False, False, True, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt",
    [
        "int8:group32:e8m0/floor",
        pytest.param("nf4:group32:fp32", marks=pytest.mark.slow),
        pytest.param("int4:group32:fp32", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_small_and_large_numbers(fmt: str) -> None:
    """Subnormal factors, products and results; huge ones; and zeros, which are exact."""
    for w_size, x_size in ((1e-30, 1.0), (1e30, 1e-3), (1.0, 1e-25), (1e-20, 1e-20), (1e-38, 1e3),
                           (1e3, 1e-40), (1e38, 1e-38), (1e-42, 1.0)):  # fmt: skip
        w = stored(torch.randn(5, 64) * w_size, fmt)
        for rows in (2, 6):
            check(torch.randn(rows, 64) * x_size, w, torch.randn(5) * w_size * x_size)
    zeros = stored(torch.zeros(5, 64), fmt)
    assert not on_webgpu(torch.randn(2, 64), zeros).any()
    assert not on_webgpu(torch.zeros(20, 64), stored(torch.randn(5, 64), fmt)).any()


def test_magnitudes_of_every_kind_in_one_row() -> None:
    w = stored(torch.randn(33, 96) * torch.logspace(-44, 36, 96), "e4m3:group4:fp32")
    x = torch.randn(3, 96) * torch.logspace(36, -44, 96)
    check(x, w)
    check(x.repeat(4, 1), w)


def test_powers_of_two_are_exact_to_the_last_bit() -> None:
    codes = torch.randint(-15, 16, (7, 96)).to(torch.int8)
    scale = torch.randint(131, 136, (7, 3)).to(torch.uint8)
    w = Operand(codes, scale, None, None, "int8:group32:e8m0/floor", 96)
    dense = P.dequantize.reference(w, torch.float32)
    for rows in (2, 5):
        x = torch.randint(-15, 16, (rows, 96)).float()
        for dtype in DTYPES:
            assert torch.equal(on_webgpu(x.to(dtype), w), (x @ dense.T).to(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mxfp8", "uint4", pytest.param("int4", marks=pytest.mark.slow)])
def test_the_exact_way_for_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where hardware cannot be trusted: all sums by integers."""
    monkeypatch.setattr(
        matmul_weight, "limits_of", lambda fmt: matmul.Limits(1.0, 2.0**-126, 2.0**-126)
    )
    w = stored(torch.randn(7, 96), name)
    for rows in (3, 6):
        check(torch.randn(rows, 96), w, torch.randn(7))


@pytest.mark.parametrize("shape", [(64,), (2, 3, 64), (0, 64), (2, 0, 64)], ids=str)
def test_shapes_of_x(shape: tuple[int, ...]) -> None:
    w = stored(torch.randn(6, 64), "int8_channel")
    check(torch.randn(shape), w, torch.randn(6))
    check(torch.randn((*shape, 2))[..., 0], w, torch.randn(1))


def test_no_inputs_and_no_outputs() -> None:
    for m, k, n in ((3, 0, 5), (3, 16, 0), (0, 0, 0)):
        bias = torch.randn(n)
        y = on_webgpu(torch.randn(m, k), stored(torch.randn(n, k), "int8_channel"), bias)
        assert torch.equal(y, bias.expand(m, n))


def test_strided_codes_and_scales() -> None:
    w = stored(torch.randn(9, 256), "int4")
    wide = torch.zeros(9, 131, dtype=torch.uint8)
    wide[:, 1:129] = w.codes
    check(torch.randn(3, 256), w._replace(codes=wide[:, 1:129]))
    check(torch.randn(3, 256), w._replace(codes=w.codes.t().contiguous().t()))


@pytest.mark.slow
def test_more_than_kernels_see_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of codes, of x and of the result; windows of whole rows."""
    monkeypatch.setattr(type(gpu()), "binding_limit", property(lambda self: 32768))
    w = stored(torch.randn(700, 96), "int8:group32:fp32")
    check(torch.randn(2, 96), w, torch.randn(700))
    w = stored(torch.randn(30, 96), "int8:group32:fp32")
    check(torch.randn(600, 96), w, torch.randn(30))


def test_a_weight_is_uploaded_once_and_again_when_it_changes(monkeypatch) -> None:
    w, x = stored(torch.randn(8, 64), "int8_channel"), torch.randn(1, 64)
    on_webgpu(x, w)
    uploads: list[int] = []
    upload = memory.upload
    for module in ("blockscale.kernels.webgpu.torch_device",):
        monkeypatch.setattr(f"{module}.upload", lambda t: uploads.append(t.nbytes) or upload(t))
    check(x, w)
    assert uploads == [x.nbytes]
    w.codes.neg_()
    check(x, w)


def test_tensors_stay_on_the_gpu() -> None:
    w, x = stored(torch.randn(8, 64), "int4:group32:fp32"), torch.randn(3, 64)
    device = bs.webgpu()
    moved = w._replace(codes=w.codes.to(device), scale=w.scale.to(device))
    y = linear(x.to(device), moved, torch.ones(8).to(device))
    assert isinstance(y, WebGPUTensor)
    found, expected = y.cpu(), on_webgpu(x, w, torch.ones(8))
    assert torch.equal(found, expected), (found - expected, y.cpu() - expected)


def test_what_does_not_fit_is_an_error() -> None:
    w = stored(torch.randn(6, 32), "int8_channel")
    x = torch.randn(2, 32)
    for left, right in (
        (x[:, :31], w), (x, w._replace(codes=w.codes[:, :31])), (x, w._replace(scale=w.scale[:5])),
        (x, w._replace(codes=w.codes.to(torch.uint8))), (x, w._replace(codes=w.codes[None])),
        (x, w._replace(scale=w.scale.double())),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"expected|packed|codes"):
            on_webgpu(left, right)
    with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
        on_webgpu(x.double(), w)
    with pytest.raises(RuntimeError, match="expand"):
        on_webgpu(x, w, torch.zeros(5))
    with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
        on_webgpu(x, w, None, by("int8:token:fp32:stochastic"))


@pytest.mark.some(30)
@pytest.mark.parametrize(("weight_format", "input_format"), PAIRS)
def test_rows_do_not_depend_on_their_batch(weight_format: str, input_format: str | None) -> None:
    """By the bit, whatever kernel takes so many rows without the mode, and whoever is in doubt."""
    model, x = batch_rows.layer(weight_format, input_format, 8, 64), batch_rows.rows(512, 64)
    x[1] = x[3] = 0  # numbers that go the exact way are in the test below: here they take long
    x[511, 7] = 2.0**30
    with bs.use("webgpu", batch_invariant=True):
        assert differing(model, x, (0, 6, 511)) == []


def test_a_large_neighbour_changes_nothing() -> None:
    model, x = batch_rows.layer("int4:group32:fp32", None, 8, 64), torch.randn(3, 64)
    x[1] *= 2.0**30
    with torch.no_grad(), bs.use("webgpu", batch_invariant=True):
        y = model(x)
        assert all(torch.equal(model(x[i : i + 1]), y[i : i + 1]) for i in range(3))


QUICK_of_embedding = ("int8_channel", "nvfp4", "uint4:group32:fp16:offset", "int4:flat32:fp32")
MORE = (
    *("mxfp4", "mxfp8", "fp8", "nf4", "uint4", "int16", "binary", "ternary", "mxfp6", "bfp16"),
    *("int3:group16:fp16", "int8:tile16x32:fp32", "int4:flat32@0:fp32", "int5:group7:fp32"),
)


def wrong_of_embedding(
    fmt: str, size: int, dtype: torch.dtype, kind: torch.dtype = torch.int64
) -> bool:
    torch.manual_seed(0)
    table = stored(torch.randn(64, size) * torch.logspace(-44, 38, 64)[:, None], fmt)
    indices = torch.randint(0, 64, (5, 9)).to(kind)
    with bs.use("webgpu"):
        found = embedding(table, indices, dtype)
    with bs.use("reference"):
        return not same(found, embedding(table, indices, dtype))


@pytest.mark.parametrize("fmt", QUICK_of_embedding)
def test_rows_equal_the_reference(fmt: str) -> None:
    assert not wrong_of_embedding(fmt, 64, torch.float32)
    assert not wrong_of_embedding(fmt, 96, torch.float16, torch.int32)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", (*QUICK_of_embedding, *MORE))
def test_every_kind_of_format(fmt: str) -> None:
    for size in (64, 160, 33):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            assert not wrong_of_embedding(fmt, size, dtype), (size, dtype)


def test_an_odd_number_of_columns() -> None:
    assert not wrong_of_embedding("int8_channel", 33, torch.bfloat16)


def test_embedding_more_than_kernels_see_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrongly_computed()  # which the limit is too small for
    monkeypatch.setattr(type(gpu()), "binding_limit", property(lambda self: 2048))
    assert not wrong_of_embedding("int8_channel", 64, torch.float32)


def test_rows_that_do_not_exist() -> None:
    table = stored(torch.randn(4, 32), "int8_channel")
    with bs.use("webgpu"):
        for bad in (-1, 4):
            with pytest.raises(IndexError, match=f"a table of 4 rows has none of {bad}"):
                embedding(table, torch.tensor([0, bad]), torch.float32)
        with pytest.raises(TypeError, match="int32 or int64"):
            embedding(table, torch.tensor([1.0]), torch.float32)
        none = torch.zeros(0, 3, dtype=torch.int64)
        assert embedding(table, none, torch.float32).shape == (0, 3, 32)


def test_a_table_and_indices_on_the_gpu() -> None:
    device, table = bs.webgpu(), stored(torch.randn(8, 32), "int8_channel")
    there = table._replace(codes=table.codes.to(device), scale=table.scale.to(device))
    indices = torch.tensor([7, 0, 3])
    found = embedding(there, indices.to(device), torch.float32)
    with bs.use("reference"):
        assert same(found.cpu(), embedding(table, indices, torch.float32))
    with pytest.raises(IndexError):
        embedding(there, torch.tensor([8]).to(device), torch.float32)


def test_rows_of_floats() -> None:
    table = torch.randn(9, 7)
    right = floats(upload(table), torch.float32, 9, MatrixPlaces(0, 0, 7, 1))
    indices = torch.tensor([8, 0, 0, 5])
    for dtype in (torch.float32, torch.bfloat16):
        found = download(rows_of(right, 7, indices, dtype), (4, 7), dtype)
        assert torch.equal(found, table[indices].to(dtype))


SHAPES = ((4, 64), (2, 40))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_primitive_has_the_references_bits(fmt: str) -> None:
    assert runs("webgpu", "quantize", fmt)
    for shape in SHAPES:
        for x in (torch.randn(shape), awkward(shape)):
            assert not wrong(x, fmt), shape


@pytest.mark.slow
def test_an_offset_of_two_levels() -> None:
    assert not wrong(torch.randn(2, 64), FORMATS[-3])


@pytest.mark.slow
def test_scales_that_are_codes_of_a_table() -> None:
    """Kernels bind the table of scales where they ask for none of its codes, too."""
    assert not wrong(torch.randn(2, 40), "int8:group8:(nf4:group4:fp32)")


def test_fingerprints_tell_bytes_and_their_order_apart() -> None:
    a, b = torch.tensor([1, 2, 3]), torch.tensor([1, 3, 2])
    assert fingerprint(a) == fingerprint(a.clone()) != fingerprint(b)
