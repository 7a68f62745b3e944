# SPDX-License-Identifier: BSD-3-Clause
"""The kernels on Arm: each instruction set, under qemu, gives the reference's bits."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import reference
from blockscale.core.operand import Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from blockscale.ops.primitives import round_columns
from tests.kernels.cpu.arm.build import FLAGS, ISAS, built, emulate, missing
from tests.kernels.cpu.arm.calls import DTYPES, Calls

# Processors of qemu's, and what they have: the first two lack the dot product, the third i8mm.
PROCESSORS = {
    "cortex-a53": ["neon"],
    "cortex-a57": ["neon"],
    "neoverse-n1": ["neon", "dotprod"],
    "max": ["neon", "dotprod", "i8mm"],
}
RUNS = [("cortex-a53", "neon"), ("neoverse-n1", "dotprod"), ("max", "dotprod"), ("max", "i8mm")]
# Each family of elements, kind of scale, rounding, offset and block.
FORMATS = (
    *(
        "int8:tensor:fp32",
        "int16:tensor:fp32",
        "uint8:tensor:fp32:asym",
        "uint4:group128:fp32:asym",
    ),
    *("int8:token:bf16:full", "int4:group32:fp16:recip", "int2:group64:fp32", "int3:tile3x8:fp32"),
    *("nf4:group64:fp32", "ternary:channel0:fp32", "binary:channel0:fp32", "log4:channel0:fp32"),
    *("log8f3:group32:fp32", "log6f3:channel-1:fp32", "log4f1:tensor:fp32", "iq4_nl:group32:fp16"),
    *("e4m3:group32:e8m0/floor", "e5m2:tensor:fp32", "e3m2:group32:e8m0/even", "e2m1:group16:e4m3"),
    *("e2m1:group32:e8m0/floor", "int8:group32:e8m0/ceil", "int16:group64:e8m0/floor"),
    *("int8:tensor:pow2/nearest", "int4:group16:(uint8:tensor:fp32)", "e2m3:group32:e8m0/rceil"),
    *("uint4:group32:fp16:offset", "uint8:token:fp32:asym(fp32)", "int5:group48:fp32:half"),
    *("int8:token:fp32:stochastic", "e4m3:token:fp32:stochastic", "int8:token:fp32:toward_zero"),
    *("e2m1:token:fp32:nearest_away", "int4:token:fp32:up", "book(1,2,0,-0,-1,-2):group8:fp32"),
    f"book({','.join(str(7 * k % 200 - 100) for k in range(200))}):group32:fp32",
)
SHAPES = ((6, 256), (3, 70, 16))
COLUMNS = ("int4:group1:fp32", "e2m1:group1:fp32", "nf4:group1:fp32", "log8f3:group1:fp32")

needs_arm = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def hard(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Normal numbers, ties, zeros of both signs, subnormals and, in one row, the non-finite."""
    x = torch.randn(shape)
    kind = torch.randint(0, 8, shape)
    x = torch.where(kind == 0, torch.randint(-30, 30, shape) / 2, x)
    x = torch.where(kind == 1, x * 2.0**-140, x)
    x = torch.where(kind == 2, torch.full((), -0.0), x)
    x.view(-1)[-5:] = torch.tensor([torch.inf, 0.0, -torch.inf, torch.nan, 1.0])
    x.view(-1)[5] = 65519.0
    return x.to(dtype)


def primitives(c: Calls, spelling: str, x: Tensor) -> None:
    """Every primitive on x, as the reference has it."""
    form, f, dtype = parse(spelling), c.format(spelling), DTYPES.index(x.dtype)
    shape = [x.ndim, *x.shape]
    seed = torch.tensor([7, 3]) if form.rounding == "stochastic" else None
    words = [7, 3] if seed is not None else [0, 0]
    q = P.from_list(P.choose_qparams(x, spelling), form)
    packed = P.quantize(x, quantizer(q, spelling, seed))
    slope = (torch.arange(x.numel()).reshape(x.shape) % 97 + 1).to(x.dtype)
    at, given, name = c.put(x), c.parts(q), f"{spelling} {x.dtype}"

    def new(call: str) -> list[int]:
        return [c.get(part, f"{call} {name} part {i}") for i, part in enumerate(q[:4])]

    c.add("choose", f, shape, at, dtype, new("choose"), 0, 0)
    codes = c.get(packed, f"quantize {name}")
    c.add("quantize", f, shape, at, dtype, given, 1, codes, words)
    codes = c.get(packed, f"choose_quantize {name}")
    c.add("choose_quantize", f, shape, at, dtype, new("choose_quantize"), 1, codes, words)
    y = P.dequantize(operand(packed, q, spelling, x.shape[-1]), x.dtype)
    c.add("dequantize", f, shape, c.put(packed), dtype, given, 1, c.get(y, f"dequantize {name}"), 0)
    for known in (False, True):
        by = quantizer(q, spelling, seed) if known else Quantizer(None, None, None, spelling, seed)
        parts, label = (given if known else [0] * 4), f"{name} given {known}"
        y = c.get(P.fake_quantize(x, by), f"fake_quantize {label}")
        c.add("fake_quantize", f, shape, at, dtype, parts, int(known), y, words)
        by = quantizer(q, spelling) if known else Quantizer(None, None, None, spelling)
        y = c.get(P.straight_through(slope, x, by), f"straight_through {label}")
        c.add("straight_through", f, shape, at, dtype, parts, int(known), y, c.put(slope))


def others(c: Calls) -> None:
    """Packing, rows of a table, columns one after the other, tables of codes."""
    for bits in (*range(1, 8), *range(9, 16)):  # others are stored as they are
        fmt = f"uint{bits}:tensor:fp32"
        codes = torch.randint(0, 2**bits, (5, 83), dtype=torch.int32)
        patterns = codes.to(torch.uint8) if bits <= 8 else codes.to(torch.int16)
        packed = P.pack(parse(fmt).element.from_bits(codes), fmt)
        c.add("pack", bits, c.put(patterns), 5, 83, c.get(packed, f"pack {bits}"))
        c.add("unpack", bits, c.put(packed), 5, 83, c.get(patterns, f"unpack {bits}"))
    table = torch.randn(9, 64)
    indices = torch.tensor([8, 0, 3, 3])
    for fmt in ("e2m1:group16:e4m3", "int8:token:fp32", "log8f3:group32:fp32"):
        form = parse(fmt)
        q = P.from_list(P.choose_qparams(table, fmt), form)
        packed = P.quantize(table, quantizer(q, fmt))
        y = P.dequantize(operand(packed, q, fmt, 64), torch.float32)[indices]
        words = [c.format(fmt), 9, 64, c.put(packed), *c.parts(q), c.put(indices), 4]
        c.add("embedding", words, c.get(y, f"embedding {fmt}"), 0)
    for fmt in COLUMNS:
        wanted, coupling = torch.randn(9, 37).double() * 2, torch.randn(9, 9).double() * 0.3
        by = Quantizer(torch.rand(9, 37) + 0.1, None, None, fmt)
        codes, values, errors = round_columns(wanted, None, coupling, by)
        patterns = parse(fmt).element.to_bits(codes).to(torch.uint8)
        words = [c.format(fmt), 9, 37, c.put(wanted), c.put(coupling), c.put(by.scale), 0, 0, 0]
        told = [(patterns, "codes"), (values, "values"), (errors, "errors")]
        c.add("round_columns", words, [c.get(t, f"round_columns {fmt} {n}") for t, n in told])
    codes = torch.randint(0, 256, (1001,), dtype=torch.uint8)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        entries = torch.randint(-100, 100, (256,)).to(dtype)
        y = c.get(entries[codes.long()], f"look_up {dtype}")
        c.add("look_up", c.put(entries), dtype.itemsize, c.put(codes), codes.numel(), y)


def whole(fmt: str, shape: tuple[int, int]) -> tuple[Tensor, QParams, Tensor]:
    """Packed codes of an integer format, their scale, and codes less zero points as integers."""
    form = parse(fmt)
    low, high = int(form.element.numbers(False).low), int(form.element.numbers(False).high)
    codes = torch.randint(low, high + 1, shape, dtype=torch.int32)
    blocks = form.block.scale_shape(shape)
    zero = torch.randint(low, high + 1, blocks, dtype=torch.int32) if form.asym else None
    scale = torch.rand(blocks) + 0.5
    each = [-(-n // b) for n, b in zip(shape, blocks, strict=True)]
    spread = 0 if zero is None else zero.repeat_interleave(each[0], 0).repeat_interleave(each[1], 1)
    return (
        P.pack(codes.to(form.element.code_dtype), fmt),
        QParams(scale, None, zero),
        codes - spread,
    )


def integers(c: Calls, fmt: str, input_fmt: str, m: int, *, coded: bool) -> None:
    """Exact sums of each block, scaled and added in float32: weight [n, k] times rows [m, k]."""
    n, k, size = 37, 96, 32 if "group" in fmt + input_fmt else 96
    packed, q, w = whole(fmt, (n, k))
    x_packed, x_q, x_codes = whole(input_fmt, (m, k))
    bias = torch.randn(n)
    x, form = x_packed, parse(input_fmt)
    if not coded:  # numbers whose codes under scales of 1 or 2 are these
        assert x_q.zero_point is None
        x_codes[:, ::32] = 127
        exact = x_codes.float() * torch.randint(1, 3, x_q.scale.shape).repeat_interleave(
            k // x_q.scale.shape[1], 1
        )
        x = exact
        x_q = reference.choose_qparams(x, form)
        assert torch.equal(reference.quantize(x, x_q, form).int(), x_codes)
    y = torch.zeros(m, n)
    for i in range(k // size):
        at = slice(i * size, (i + 1) * size)
        sums = (x_codes[:, at].double() @ w[:, at].double().T).float()
        step = [s[:, min(i, s.shape[1] - 1)].float() for s in (q.scale, x_q.scale)]
        y += sums * step[0] * step[1][:, None]
    weight = c.weight(fmt, packed, q, k)
    row = x_q.scale.shape[1]
    words = [weight, c.format(input_fmt), c.put(x), 0, m, c.put(bias)]
    words.append(c.get(y + bias, f"{fmt} x {input_fmt} m {m} codes {coded}"))
    parts = [c.put(x_q.scale), c.put(x_q.zero_point), x_q.scale.numel()] if coded else [0, 0, 0]
    c.add("codes" if coded else "integers", words, k // row, parts)


def floats(c: Calls, fmt: str, dtype: torch.dtype, m: int) -> None:
    """Few bits in each number: float32 sums do not round, in whatever order they are taken."""
    n, k = 53, 130
    form = parse(fmt)
    w = torch.randint(-4, 5, (n, k)).float()
    q = P.from_list(P.choose_qparams(w, fmt), form)
    packed = P.quantize(w, quantizer(q, fmt))
    dense = P.dequantize(operand(packed, q, fmt, k), torch.float32)
    x = torch.randint(-8, 9, (m, k)).to(dtype)
    exact = x.double() @ dense.double().T
    weight = c.weight(fmt, packed, q, k)
    y = c.get(exact.to(dtype), f"floats {fmt} {dtype} m {m}")
    c.add("floats", weight, c.put(x), DTYPES.index(dtype), m, 0, y)


@pytest.fixture(scope="module")
def calls() -> Calls:
    c = Calls()
    torch.manual_seed(0)
    with bs.use("reference"):
        for i, fmt in enumerate(FORMATS):
            for j, shape in enumerate(SHAPES):
                primitives(c, fmt, hard(shape, DTYPES[(i + j) % 3]))
            primitives(c, fmt, torch.randn(4, 256))
        others(c)
        for fmt in (
            "int8:channel0:fp32",
            "uint8:channel0:fp32:asym",
            "int4:group32:fp32",
            "uint4:group32:fp32:asym",
            "int3:channel0:fp32",
        ):
            for m in (1, 2, 3, 6, 7, 11):
                integers(c, fmt, "int8:token:fp32", m, coded=True)
                integers(c, fmt, "uint8:token:fp32:asym", m, coded=True)
                integers(c, fmt, "int8:group32:fp32", m, coded=True)
                integers(c, fmt, "int8:token:fp32", m, coded=False)
        for fmt in (
            "e2m1:group32:e8m0/floor",
            "e4m3:group32:e8m0/floor",
            "int8:group64:e8m0/floor",
        ):
            for m in (1, 3, 6, 9, 21):
                for dtype in DTYPES[:1] if m != 6 else DTYPES:
                    floats(c, fmt, dtype, m)
    return c


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("arm"))


@needs_arm
@pytest.mark.slow
@pytest.mark.parametrize("cpu", PROCESSORS)
def test_what_is_present(driver: Path, cpu: str) -> None:
    assert emulate(cpu, driver, "list").split() == PROCESSORS[cpu]


@needs_arm
@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "isa"), RUNS)
def test_the_references_bits(
    driver: Path, calls: Calls, tmp_path: Path, cpu: str, isa: str
) -> None:
    result = tmp_path / "result"
    emulate(cpu, driver, isa, *calls.write(tmp_path), result)
    assert calls.wrong(result.read_bytes()) == []
    assert len(calls.expected) > 1000


@needs_arm
@pytest.mark.slow
def test_an_instruction_set_that_is_not_there(driver: Path) -> None:
    with pytest.raises(AssertionError, match="no instruction set 'i8mm' here: this processor does"):
        emulate("cortex-a57", driver, "i8mm", "x", "x", "x")


def test_the_same_flags_as_the_build() -> None:
    text = (Path(__file__).parents[4] / "CMakeLists.txt").read_text()
    found = dict(re.findall(r"set\(FLAGS_(dotprod|i8mm) (.*)\)", text))
    assert {isa: flags.split() for isa, flags in found.items()} == {
        isa: flags for isa, flags in ISAS.items() if flags
    }
    assert set(FLAGS[1:]) == set(re.findall(r"set\(FLAGS (.*)\)", text)[0].split())
    assert f"set(ISAS {' '.join(ISAS)})" in text


def test_a_difference_is_found() -> None:
    """The comparison itself: a sign of zero, a byte beyond the end."""
    c = Calls()
    c.get(torch.tensor([0.0, 1.0]), "y")
    good = c.memory()
    at = c.expected[0][0]
    good[at : at + 8] = torch.tensor([0.0, 1.0]).numpy().tobytes()
    assert c.wrong(bytes(good)) == []
    for place, value in ((at + 3, 0x80), (at + 8, 0), (at - 1, 0)):
        bad = bytearray(good)
        bad[place] = value
        assert c.wrong(bytes(bad))
