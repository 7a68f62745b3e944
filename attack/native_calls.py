# SPDX-License-Identifier: BSD-3-Clause
"""Calls of each function of the native library, whose tensors are all made before.

What lacks memory in them is native code alone. Each case is `make(threads)`, which gives the call and the
tensors that it writes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import DTYPES, NO_PARTS, NativeFormat, addresses, native


class Call(NamedTuple):
    """run: without arguments; results: what it writes; keep: what it reads."""

    run: Callable[[], Any]
    results: list[Tensor]
    keep: list[Any]


class Held(NamedTuple):
    """A tensor in a format."""

    form: NativeFormat
    shape: tuple[int, ...]
    x: Tensor
    parts: Any
    codes: Tensor


def held(fmt: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Held:
    form = native(fmt)
    x = torch.linspace(-3, 5, shape[0] * shape[1]).view(shape).to(dtype)
    made = Held(form, shape, x, form.new_parts(shape), form.new_packed(shape))
    _native.choose_quantize(*_from(made), _at(made), made.codes.data_ptr(), True, 0, 0, 1)
    return made


def _from(h: Held) -> tuple[Any, ...]:
    return h.form.handle, h.shape, h.x.data_ptr(), DTYPES[h.x.dtype]


def _at(h: Held) -> tuple[int, ...]:
    return addresses(h.parts)


def primitive(
    name: str, fmt: str, shape: tuple[int, ...], threads: int, dtype: torch.dtype = torch.float32
) -> Call:
    h = held(fmt, shape, dtype)
    y, kind, codes = torch.zeros(shape, dtype=dtype), DTYPES[dtype], h.codes.data_ptr()
    arguments = {
        "choose": (*_from(h), _at(h)),
        "choose_quantize": (*_from(h), _at(h), codes, True, 0, 0),
        "quantize": (*_from(h), _at(h), codes, True, 0, 0),
        "dequantize": (h.form.handle, shape, codes, True, _at(h), y.data_ptr(), kind),
        "fake_quantize": (*_from(h), False, NO_PARTS, y.data_ptr(), 0, 0),
        "straight_through": (*_from(h), False, NO_PARTS, h.x.data_ptr(), kind, y.data_ptr()),
    }[name]
    run = partial(getattr(_native, name), *arguments, threads)
    parts = [part for part in h.parts if part is not None]
    written = {"dequantize": [y], "quantize": [h.codes], "choose": parts}
    results = written.get(name, [h.codes, *parts] if name == "choose_quantize" else [y])
    return Call(run, results, [h, y])


def embedding(threads: int) -> Call:
    h, rows = held("uint4:group2:fp32:asym", (300, 4096)), torch.arange(300)
    y = torch.zeros(300, 4096)
    table = (h.form.handle, *h.shape, h.codes.data_ptr(), _at(h))
    run = partial(_native.embedding, *table, rows.data_ptr(), 300, y.data_ptr(), 0, threads)
    return Call(run, [y], [h, rows])


def round_columns(threads: int) -> Call:
    h = held("int4:group1:fp32", (256, 512))
    wanted, coupling = h.x.double() / 8, torch.eye(256, dtype=torch.float64)
    codes, values = torch.zeros(256, 512, dtype=torch.uint8), torch.zeros(256, 512)
    errors = torch.zeros(256, 512, dtype=torch.float64)
    places = [t.data_ptr() for t in (codes, values, errors)]
    start = (h.form.handle, 256, 512, wanted.data_ptr(), 0, coupling.data_ptr(), _at(h))
    run = partial(_native.round_columns, *start, *places, threads)
    return Call(run, [codes, values], [h, wanted, coupling, errors])


def linear(fmt: str, rows: int, integers: bool, threads: int) -> Call:
    """Its steps, panels and sums are made again each time."""
    h, x = held(fmt, (512, 1024)), torch.linspace(-2, 2, rows * 1024).view(rows, 1024)
    y, form = torch.zeros(rows, 512), native("uint8:token:fp32:asym")
    to = (0, y.data_ptr(), 0, threads)

    def run() -> None:
        weight = _native.LinearWeight(h.form.handle, 512, 1024, h.codes.data_ptr(), _at(h))
        if not integers:
            weight.floats(x.data_ptr(), 0, rows, *to)
        elif not weight.integers(form.handle, x.data_ptr(), 0, rows, 2**62, 0, 0, *to):
            raise AssertionError("no integer kernel takes what it should")

    return Call(run, [y], [h, x])


def fused(name: str, threads: int) -> Call:
    shape = (512, 2048)
    h, y, one = held("int8:group32:fp32", shape), torch.zeros(shape), torch.ones(2048)
    a = _native.Rows(h.form.handle, 32, h.codes.data_ptr(), _at(h))
    to = (*shape, 0, y.data_ptr()) if name == "norm" else (*shape, y.data_ptr())
    first = (True, 1e-5, one.data_ptr(), one.data_ptr()) if name == "norm" else (0,)
    run = partial(getattr(_native, name), *first, a, a, *to, None, False, threads)
    return Call(run, [y], [h, one, a])


def attention(threads: int) -> Call:
    q = torch.linspace(-1, 1, 2 * 300 * 64).view(1, 2, 300, 64)
    k = torch.linspace(-1, 1, 2 * 4000 * 64).view(1, 2, 4000, 64)
    y = torch.zeros(1, 2, 300, 64)
    tensors = (q.data_ptr(), k.data_ptr(), k.data_ptr(), 0)
    strides = [list(t.stride()[:3]) for t in (q, k, k)] + [[0, 0, 0, 0]]
    sizes = (1, 2, 1, 300, 4000, 64, 64)
    to = (False, 0.125, y.data_ptr(), None, False, threads)
    return Call(partial(_native.attention, tensors, strides, sizes, *to), [y], [q, k])


def look_up(threads: int) -> Call:
    table, codes = torch.arange(256, dtype=torch.float32), torch.arange(1 << 20).to(torch.uint8)
    y = torch.zeros(1 << 20)
    places = (table.data_ptr(), 4, codes.data_ptr(), 1 << 20, y.data_ptr(), threads)
    return Call(partial(_native.look_up, *places), [y], [table, codes])


def fingerprint(threads: int) -> Call:
    x = torch.zeros(1 << 28, dtype=torch.uint8)
    return Call(partial(_native.fingerprint, x.data_ptr(), x.numel(), threads), [], [x])


_CODES = "uint4:group1:fp32:asym"
CASES: dict[str, Callable[[int], Call]] = {
    "choose of groups": partial(primitive, "choose", "int8:group4:fp32", (512, 4096)),
    "choose of columns": partial(primitive, "choose", "binary:channel1:fp32", (2048, 2048)),
    "choose of two levels": partial(primitive, "choose", "nvfp4", (1024, 4096)),
    "choose_quantize": partial(primitive, "choose_quantize", "int4:group4@0:fp32:asym", (512, 4096)),
    "choose_quantize of two levels": partial(primitive, "choose_quantize", "nvfp4", (1024, 4096)),
    "quantize": partial(primitive, "quantize", "int8:group2:fp32:asym", (16, 262144)),
    "dequantize": partial(primitive, "dequantize", _CODES, (64, 65536), dtype=torch.bfloat16),
    "fake_quantize": partial(primitive, "fake_quantize", "int8:group2:fp32", (512, 4096)),
    "straight_through": partial(primitive, "straight_through", "int8:group2:fp32:asym", (512, 4096)),
    "embedding": embedding,
    "round_columns": round_columns,
    "integers": partial(linear, "int8:channel0:fp32", 64, True),
    "integers of few rows": partial(linear, "int8:channel0:fp32", 1, True),
    "floats": partial(linear, "int4:group32:fp32:asym", 256, False),
    "floats of few rows": partial(linear, "int4:group32:fp32:asym", 2, False),
    "norm": partial(fused, "norm"),
    "binary": partial(fused, "binary"),
    "attention": attention,
    "look_up": look_up,
    "fingerprint": fingerprint,
}  # fmt: skip


def _threads_last(make: Callable[..., Call]) -> Callable[[int], Call]:
    return lambda threads: make(threads=threads)


CASES = {name: _threads_last(make) for name, make in CASES.items()}
