"""The PTX that decodes weights, run by a small interpreter of PTX: every code of every element."""

import re
import struct

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.bits import pow2
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import linear_asm, linear_pairs

ELEMENTS = (
    *("int8", "uint8", "int4", "uint4", "int2", "uint2", "uint1", "ternary", "binary"),
    *("e4m3", "e5m2", "e2m1", "e3m0", "e4m3r3", "e5m2r1", "e6m1", "e7m0", "e3m4", "e1m2", "log4"),
    *("log8", "log2", "e2m1r1", "e2m5"),
)


def as_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def bf16_pair(op, *registers: int) -> int:
    """One bfloat16 operation on both halves, rounded to nearest even by torch."""
    out = 0
    for shift in (0, 16):
        values = [torch.tensor(as_float((r >> shift & 0xFFFF) << 16)) for r in registers]
        rounded = op(*values).to(torch.bfloat16)
        out |= (rounded.view(torch.int16).item() & 0xFFFF) << shift
    return out


def f32_bits(value: torch.Tensor) -> int:
    return value.view(torch.int32).item() & 0xFFFFFFFF


def permute(a: int, b: int, selector: int) -> int:
    table = (a | b << 32).to_bytes(8, "little")
    picks = [selector >> 4 * i & 15 for i in range(4)]
    assert max(picks) < 8  # bit 3 would repeat a sign
    return int.from_bytes(bytes(table[p] for p in picks), "little")


OPS = {
    "mov.b32": lambda a: a,
    "prmt.b32": permute,
    "shl.b32": lambda a, n: a << n,
    "shr.u32": lambda a, n: a >> n,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "add.u32": lambda a, b: a + b,
    "mul.lo.u32": lambda a, b: a * b,
    "shf.r.wrap.b32": lambda a, b, n: (a | b << 32) >> n,
    "lop3.b32": lambda a, b, c, lut: sum(
        (lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32)
    ),
    "add.rn.bf16x2": lambda a, b: bf16_pair(torch.add, a, b),
    "mul.rn.bf16x2": lambda a, b: bf16_pair(torch.mul, a, b),
    "sub.rn.f32": lambda a, b: f32_bits(torch.tensor(as_float(a)) - torch.tensor(as_float(b))),
    "cvt.rn.f16x2.e4m3x2": lambda a: sum(
        (
            torch.tensor([a >> 8 * i & 0xFF], dtype=torch.uint8)
            .view(torch.float8_e4m3fn)
            .half()
            .view(torch.int16)
            .item()
            & 0xFFFF
        )
        << 16 * i
        for i in range(2)
    ),
    "cvt.f32.f16": lambda a: f32_bits(
        torch.tensor([a - (a >> 15 << 16)], dtype=torch.int16).view(torch.float16).float()[0]
    ),
    "cvt.rn.bf16x2.f32": lambda a, b: bf16_pair(lambda v: v, (a >> 16) << 16 | b >> 16),
}


def execute(ptx: str, outputs: int, inputs: list[int]) -> list[int]:
    registers = {f"${outputs + i}": value for i, value in enumerate(inputs)}

    def read(name: str) -> int:
        if name.startswith("0f"):
            return int(name[2:], 16)
        return registers[name] if name in registers else int(name, 0)

    body = re.sub(r"\.reg[^;]*;", "", ptx.strip()[1:-1])
    body = re.sub(r"mov.b32 \{p, q\}, (\w+);", r"and.b32 p, \1, 0xFFFF; shr.u32 q, \1, 16;", body)
    for line in filter(None, (part.strip() for part in body.split(";"))):
        op, rest = line.split(None, 1)
        target, *sources = (part.strip() for part in rest.split(","))
        registers[target] = OPS[op](*map(read, sources)) & 0xFFFFFFFF
    return [registers[f"${i}"] for i in range(outputs)]


def halves(register: int) -> torch.Tensor:
    bits = torch.tensor([register & 0xFFFF, register >> 16], dtype=torch.int32)
    return (bits << 16).view(torch.float32)


def decoded(name: str, pattern: int) -> torch.Tensor:
    element = parse(f"{name}:tensor:fp32").element
    bits = torch.tensor([pattern], dtype=torch.uint8)
    codes = element.from_bits(bits) if element.bits < 8 else bits.view(element.code_dtype)
    return element.decode(codes)[0].float()


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_in_every_place(name: str) -> None:
    element = parse(f"{name}:tensor:fp32").element
    ptx = linear_asm.decode_words(element.numbers(True))
    count, codes = 32 // element.bits, 1 << element.bits
    expected = [decoded(name, pattern) for pattern in range(codes)]
    for start in range(codes):
        places = [[(start + i * step) % codes for i in range(count)] for step in (1, 3)]
        words = [sum(c << i * element.bits for i, c in enumerate(each)) for each in places]
        for i, register in enumerate(execute(ptx, count, words)):
            for got, place in zip(halves(register), places, strict=True):
                want = expected[place[i]]
                same = torch.equal(got, want) or bool(got.isnan() & want.isnan())
                assert same, (name, i, place[i], got, want)


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_in_every_pair(name: str) -> None:
    element = parse(f"{name}:tensor:fp32").element
    numbers = element.numbers(True)
    count, codes = 32 // element.bits, 1 << element.bits
    values = torch.stack([decoded(name, pattern) for pattern in range(codes)])
    order = linear_pairs.order_of(numbers)
    assert sorted(order) == list(range(count))
    four, zero = 0x40804080, 5 if codes > 8 else 1
    minus = halves(0)[0] - zero - linear_pairs.bias_of(numbers)
    given = {
        "": [],
        "scale": [four],
        "offset": [(minus.view(torch.int32).item() >> 16 & 0xFFFF) * 0x10001],
        "zero": [zero, zero + 1],  # one of each word
    }
    lasts = ["", "scale"]
    if numbers.family == "integer":
        lasts += ["offset", "zero"] if numbers.bits < 8 else ["offset"]
    for last in lasts:
        ptx = linear_pairs.decode(numbers, None, last)
        for start in range(0, codes, count if last == "" else 5 * count):
            places = [[(start + i * step) % codes for i in range(count)] for step in (1, 3)]
            words = [sum(c << i * element.bits for i, c in enumerate(each)) for each in places]
            got = [halves(r) for r in execute(ptx, count, [*words, *given[last]])]
            for word, each in enumerate(places):
                mine = torch.cat(got[word * count // 2 : (word + 1) * count // 2])
                want = values[[each[i] for i in order]]
                if last == "scale":
                    want = want * 4
                elif last:
                    want = want - zero - (word if last == "zero" else 0)
                assert torch.equal(mine.nan_to_num(nan=1e9), want.nan_to_num(nan=1e9)), (
                    name,
                    start,
                )


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "int6", "log6", "uint6", "e3m2r4"])
def test_every_code_of_six_bits(name: str) -> None:
    numbers = parse(f"{name}:tensor:fp32").element.numbers(True)
    values = torch.stack([decoded(name, pattern) for pattern in range(64)])
    for scaled, step in ((False, 1), (True, 5)):
        found = linear_pairs.six(numbers, scaled)
        assert sorted(found.order) == list(range(64))
        codes = [step * i % 64 for i in range(64)]
        stream = sum(c << 6 * i for i, c in enumerate(codes))
        words = [stream >> 32 * i & 0xFFFFFFFF for i in range(12)]
        got = execute(found.program, 32, [*words, 0x40804080, 0x3F003F00][: 14 if scaled else 12])
        want = values[[codes[i] for i in found.order]]
        if scaled:
            want = torch.cat([want[:32] * 4, want[32:] / 2])
        values_got = torch.cat([halves(r) for r in got])
        assert torch.equal(values_got.nan_to_num(1e9), want.nan_to_num(1e9))


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "int6", "log6"])
def test_turns_of_six_bits(name: str) -> None:
    """Codes i and 16 + i of two rows of 32, which have a factor each."""
    numbers = parse(f"{name}:tensor:fp32").element.numbers(True)
    values = torch.stack([decoded(name, pattern) for pattern in range(64)])
    rows = [list(range(32)), [(7 * i + 32) % 64 for i in range(32)]]
    streams = [sum(c << 6 * i for i, c in enumerate(codes)) for codes in rows]
    words = [stream >> 32 * j & 0xFFFFFFFF for j in range(6) for stream in streams]
    for half in range(2):
        for scaled in (False, True):
            ptx = linear_pairs.six_turn(numbers, half, scaled)
            got = torch.cat(
                [halves(r) for r in execute(ptx, 16, [*words, 0x40803F00][: 12 + scaled])]
            )
            pairs = [(i, 16 + i) for i in range(8 * half, 8 * half + 8)]
            want = torch.cat([values[[codes[i] for pair in pairs for i in pair]] for codes in rows])
            if scaled:
                want = want * torch.tensor([0.5] * 16 + [4.0] * 16)
            assert torch.equal(got.nan_to_num(1e9), want.nan_to_num(1e9)), (half, scaled)


@pytest.mark.parametrize("name", ["e2m1", "e3m0", "log4", "e1m2"])
def test_exponents_that_make_up_for_a_bias(name: str) -> None:
    numbers = parse(f"{name}:tensor:fp32").element.numbers(True)
    found = linear_pairs.pairs(numbers, None, "scale", True)
    codes = [(5 * i) % 16 for i in range(8)]
    word = sum(c << 4 * i for i, c in enumerate(codes))
    values = torch.stack([decoded(name, c) for c in codes])[list(linear_pairs.order_of(numbers))]
    for byte in (0, 1, 2, 60, 127, found.limit):
        scale = execute(found.fast_scale, 2, [byte * 0x01010101])[0]
        got = torch.cat([halves(r) for r in execute(found.fast, 8, [word, word, scale])])
        want = values * pow2(torch.tensor([byte - 127], dtype=torch.int32))
        assert torch.equal(got, torch.cat([want, want]).to(torch.bfloat16).float()), (name, byte)


@pytest.mark.parametrize("fraction_bits", [0, 2, 6])
def test_every_exponent_byte(fraction_bits: int) -> None:
    ptx = linear_asm.decode_exponents(fraction_bits)
    for byte in range(256):
        four = [byte, (byte + 100) % 256, 255, 0]
        word = sum(each << 8 * i for i, each in enumerate(four))
        got = torch.cat([halves(r) for r in execute(ptx, 2, [word])])
        bytes_ = torch.tensor(four, dtype=torch.int32)
        want = torch.where(
            bytes_ == 255, torch.nan, pow2(bytes_.clamp(max=254) - 127 - fraction_bits)
        )
        assert torch.allclose(got, want, rtol=0, atol=0, equal_nan=True), byte


@pytest.mark.parametrize("lift", [0, 117])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e3m4"])
def test_every_inner_scale(name: str, lift: int) -> None:
    element = parse(f"{name}:tensor:fp32").element
    lift -= 10 if name == "e5m2" else 0  # its largest number would be infinite
    ptx = linear_asm.decode_bytes(element.numbers(False), lift)
    for code in range(256):
        four = [code, 255 - code, 127, 8]
        word = sum(each << 8 * i for i, each in enumerate(four))
        got = torch.cat([halves(r) for r in execute(ptx, 2, [word])])
        want = torch.stack([decoded(name, each) for each in four]) * 2.0**lift
        assert torch.allclose(got, want, rtol=0, atol=0, equal_nan=True), code
