"""PTX that decodes packed codes to bfloat16, two at a time: exact up to 8 bits.

Triton's own integer and float arithmetic takes one instruction an element and step. At 4 bits an
H200 has about five for each element that memory delivers, so decoding works on pairs: the same
code of two neighbouring words lies in the two halves of a register, which is the pair that a
tensor core reads. `linear_decode` has the same in plain Triton, for the interpreter.
"""

from blockscale.kernels.cuda.spec import ElementNumbers

_AND_OR = "0xEA"  # lop3: (a & b) | c
_AND_XOR = "0x6A"  # lop3: (a & b) ^ c


def _both(half: int) -> str:
    """The 16 bits `half` in each half of a register."""
    return f"0x{half & 0xFFFF:04X}{half & 0xFFFF:04X}"


def _bf16(value: float) -> int:
    """The bits of a bfloat16 that is a whole number below 256 or a power of two."""
    mantissa, exponent = abs(value).hex().removeprefix("0x").split("p")
    fraction = int((mantissa.partition(".")[2] + "00")[:2], 16) >> 1
    return (value < 0) << 15 | (int(exponent) + 127) << 7 | fraction


def _shifted(to: str, source: str, left: int) -> str:
    """`to` = source << left; a negative `left` shifts right."""
    if left == 0:
        return f"mov.b32 {to}, {source};"
    return f"shl.b32 {to}, {source}, {left};" if left > 0 else f"shr.u32 {to}, {source}, {-left};"


def _integer(e: ElementNumbers, out: str, source: str, at: int) -> list[str]:
    """A code of at most 7 bits as the last bits of 128 + code, from which 128 goes."""
    half = 1 << (e.bits - 1) if e.signed else 0
    mask = (1 << e.bits) - 1
    return [
        _shifted("t", source, -at),
        f"lop3.b32 t, t, {_both(mask)}, {_both(_bf16(128.0) | half)}, {_AND_XOR};",
        f"mov.b32 u, {_both(_bf16(-128.0 - half))};",
        f"add.rn.bf16x2 {out}, t, u;",
    ]


def _byte(e: ElementNumbers, out: str, code: int) -> list[str]:
    """Eight bits as the last bits of the float32 2^23 + code: they do not fit a bfloat16."""
    lines = ["mov.b32 u, 0x4B000000;"]
    for name, word in (("x", "a"), ("y", "b")):
        lines += [
            f"prmt.b32 t, {word}, u, 0x744{code};",
            f"mov.b32 {name}, t;",
            f"sub.rn.f32 {name}, {name}, 0f{0x4B000080 if e.signed else 0x4B000000:08X};",
        ]
    return [*lines, f"cvt.rn.bf16x2.f32 {out}, y, x;"]


def _sign(out: str, source: str, at: int) -> list[str]:
    """One bit: 1 is +1, 0 is -1."""
    minus = _both(_bf16(-1.0))
    return [
        _shifted("t", source, 15 - at),
        f"lop3.b32 {out}, t, 0x80008000, {minus}, {_AND_XOR};",
    ]


def _minifloat(
    e: ElementNumbers, out: str, source: str, at: int, lift: int | None = None
) -> list[str]:
    """Exponent and mantissa where a bfloat16 has them, times 2^lift: exact.

    Without one it is what makes up for the biases. Lift 0 leaves subnormal numbers.
    """
    width, place = e.bits - 1, 7 - e.mbits
    lift = 127 - e.bias if lift is None else lift
    lines = [
        _shifted("t", source, place - at),
        f"and.b32 t, t, {_both(((1 << width) - 1) << place)};",
        _shifted("u", source, 15 - width - at),
        f"lop3.b32 u, u, 0x80008000, t, {_AND_OR};",
    ]
    if lift:
        first = min(lift, 127)
        for power in (first, lift - first):
            lines += _times(power, "u") if power else []
    return [*lines, *_reserved(e, "t", "u", width + place), f"mov.b32 {out}, u;"]


def _times(power: int, register: str) -> list[str]:
    """Both halves times 2^power."""
    return [
        f"mov.b32 v, {_both(_bf16(2.0**power))};",
        f"mul.rn.bf16x2 {register}, {register}, v;",
    ]


def _float8(e: ElementNumbers, out: str, code: int) -> list[str]:
    """The hardware's own float8: e5m2 is the upper byte of a float16, e4m3 has an instruction."""
    if e.mbits == 2:
        pair = [f"prmt.b32 t, a, b, 0x{4 + code}0{code}0;", "and.b32 t, t, 0xFF00FF00;"]
    else:
        pair = [
            f"prmt.b32 t, a, b, 0x00{4 + code}{code};",
            "mov.b32 {p, q}, t;",
            "cvt.rn.f16x2.e4m3x2 t, p;",
        ]
    return [
        *pair,
        "mov.b32 {p, q}, t;",
        "cvt.f32.f16 x, p;",
        "cvt.f32.f16 y, q;",
        f"cvt.rn.bf16x2.f32 {out}, y, x;",
    ]


def _reserved(e: ElementNumbers, magnitude: str, value: str, top: int) -> list[str]:
    """Magnitude codes that are no numbers carry into bit `top`, and from there into a NaN.

    Where one of them is infinity, its mantissa is 0: only the exponent is filled in.
    """
    count = (1 << (e.bits - 1)) - 1 - e.max_code
    if not count:
        return []
    low = 7 if e.infinity >= 0 else 6
    return [
        f"add.u32 {magnitude}, {magnitude}, {_both(count << (7 - e.mbits))};",
        f"and.b32 {magnitude}, {magnitude}, {_both(1 << top)};",
        f"shr.u32 {magnitude}, {magnitude}, {top - low};",
        f"mul.lo.u32 {magnitude}, {magnitude}, {(1 << (15 - low)) - 1};",
        f"or.b32 {value}, {value}, {magnitude};",
    ]


def _block(lines: list[str]) -> str:
    registers = ".reg .b32 a, b, l, h, t, u, v; .reg .f32 x, y; .reg .b16 p, q;"
    return "{ " + registers + "\n" + "\n".join(lines) + "\n}"


def decode_words(e: ElementNumbers, lift: int | None = None) -> str:
    """Two words of 32 bits -> 32 / bits registers, the i-th code of both as bfloat16.

    e: an element of 1, 2, 4 or 8 bits.
    lift: of a minifloat of fewer than 8 bits. With 0, values are too small by 2^(127 - bias),
        which the scale can make up for at once.
    """
    planes = 32 // e.bits
    lines = [
        f"mov.b32 a, ${planes};",
        f"mov.b32 b, ${planes + 1};",
        "prmt.b32 l, a, b, 0x5410;",
        "prmt.b32 h, a, b, 0x7632;",
    ]
    if (e.family, e.bits, e.signed) == ("integer", 8, True):  # then -128 is 0, as _byte wants
        lines += [f"xor.b32 {word}, {word}, 0x80808080;" for word in "ab"]
    for i in range(planes):
        source, at = "lh"[i * e.bits // 16], i * e.bits % 16
        if e.family == "binary":
            lines += _sign(f"${i}", source, at)
        elif native_float8(e):
            lines += _float8(e, f"${i}", i)
        elif e.family == "minifloat":
            lines += _minifloat(e, f"${i}", source, at, lift)
        elif e.bits == 8:
            lines += _byte(e, f"${i}", i)
        else:
            lines += _integer(e, f"${i}", source, at)
    return _block(lines)


def native_float8(e: ElementNumbers) -> bool:
    """Whether the hardware reads the element: OCP's e4m3 and e5m2, as they are by default."""
    count = (1 << (e.bits - 1)) - 1 - e.max_code
    kind = (e.family, e.bits, e.mbits, e.bias, count)
    return kind in (("minifloat", 8, 3, 7, 1), ("minifloat", 8, 2, 15, 4))


def decode_bytes(e: ElementNumbers, lift: int = 0) -> str:
    """Four codes of a minifloat of 8 bits, times 2^lift -> two registers of bfloat16."""
    lines = ["prmt.b32 l, $2, 0, 0x4140;", "prmt.b32 h, $2, 0, 0x4342;"]
    for out, source in (("$0", "l"), ("$1", "h")):
        lines += _minifloat(e, out, source, 0, 127 - e.bias + lift)
    return _block(lines)


def decode_exponents(fraction_bits: int) -> str:
    """Four e8m0 bytes -> two registers of bfloat16, 2^(byte - 127 - fraction_bits); 255 is NaN.

    2^-127 is a subnormal bfloat16, and so is all that the fraction bits may leave of it.
    """
    lines = ["prmt.b32 l, $2, 0, 0x4140;", "prmt.b32 h, $2, 0, 0x4342;"]
    for out, source in (("$0", "l"), ("$1", "h")):
        lines += [
            f"shl.b32 t, {source}, 7;",
            f"add.u32 u, {source}, 0x00010001;",  # bit 8 where the byte is 255
            "shr.u32 u, u, 2;",
            "and.b32 u, u, 0x00400040;",
            "or.b32 t, t, u;",
            f"xor.b32 u, {source}, 0x00FF00FF;",  # 255 where the byte is 0
            "add.u32 u, u, 0x00010001;",
            "shr.u32 u, u, 2;",
            "and.b32 u, u, 0x00400040;",
            "or.b32 t, t, u;",
        ]
        if fraction_bits:
            lines += [
                f"mov.b32 v, {_both(_bf16(2.0**-fraction_bits))};",
                "mul.rn.bf16x2 t, t, v;",
            ]
        lines += [f"mov.b32 {out}, t;"]
    return _block(lines)


def constraints(outputs: int, inputs: int) -> str:
    """What Triton wants to know of the registers: all of 32 bits."""
    return ",".join(["=r"] * outputs + ["r"] * inputs)
