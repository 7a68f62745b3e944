# SPDX-License-Identifier: BSD-3-Clause
"""Every fused op against the plain composition: dequantize, the torch function, quantize.

The composition is written here from the reference alone: no op of ours runs in it.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import pack, reference
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value, quantizer
from blockscale.core.parse import parse
from blockscale.kernels.registry import KERNELS
from blockscale.ops.fused import FUSED, Fused
from tests.support.op_samples import bits
from tests.support.some import crossed

FORMATS = (
    "",
    "int8:tensor:fp32",
    "uint8:tensor:fp32:asym",
    "int8:channel0:fp32",
    "mxfp8",
    "bfp8",
    "nvfp4",
    "nf4",
    "uint4:group16:fp16:offset",
)
STATIC = ("int8:tensor:fp32", "uint8:tensor:fp32:asym", "mxfp8", "uint4:group16:fp16:offset")
DYNAMIC = ("uint8:tensor:fp32:asym", "bfp8", "nvfp4", "int8:channel0:fp32")
RESULTS = ("float", *(f"static {fmt}" for fmt in STATIC), *(f"dynamic {fmt}" for fmt in DYNAMIC))
SCALARS = tuple(result for result in RESULTS if ":group" not in result and ":tensor:" in result)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """Operands of these shapes, settings, and what torch computes of them.

    plain: of the float operands and the settings by name
    positive: operands that are all positive, as those of a square root
    settings: a function of the dtype, where they hold floats
    after: what comes behind the cast to the result's dtype
    rows: whether dimension 0 of all operands is a batch, of any size
    dtypes: those that torch computes it in
    """

    shapes: tuple[tuple[int, ...], ...]
    plain: Callable[..., Tensor]
    settings: dict[str, Any] | Callable[[torch.dtype], dict[str, Any]] = field(default_factory=dict)
    positive: bool = False
    after: Callable[[Tensor], Tensor] | None = None
    rows: bool = True
    name: str = ""
    dtypes: tuple[torch.dtype, ...] = DTYPES

    def given(self, dtype: torch.dtype) -> dict[str, Any]:
        """The settings."""
        return self.settings(dtype) if callable(self.settings) else dict(self.settings)

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        """The operands as floats."""
        torch.manual_seed(7)
        made = [torch.randn(shape) for shape in self.shapes]
        return [(x.abs() + 0.5 if self.positive else x).to(dtype) for x in made]


def coded(x: Tensor, fmt: str) -> Value:
    """x as an operand in a format, by the reference."""
    form = parse(fmt)
    qparams = reference.choose_qparams(x, form)
    codes = pack.pack(reference.quantize(x, qparams, form), form.element).contiguous()
    by = quantizer(qparams, form)
    return Value(codes, by.scale, by.zero_point, by.outer, by.fmt, x.shape[-1], by.more)


def decoded(value: Value, dtype: torch.dtype) -> Tensor:
    """The floats of an operand, by the reference."""
    if not value.fmt:
        return value.data
    form = parse(value.fmt)
    codes = pack.unpack(value.data, form.element, (*value.data.shape[:-1], value.size))
    return reference.dequantize(codes, value.operand.qparams, form, dtype)


def quantizer_of(y: Tensor, result: str) -> Quantizer:
    """`float`, `static FORMAT` or `dynamic FORMAT` -> how y becomes that."""
    how, _, fmt = result.partition(" ")
    if how == "float":
        return UNQUANTIZED
    form = parse(fmt)
    return quantizer(reference.choose_qparams(y, form) if how == "static" else None, form)


def encoded(y: Tensor, by: Quantizer) -> list[Tensor]:
    """What a fused op gives of the float y, by the reference."""
    if not by.fmt:
        return [y]
    form = by.format
    qparams = by.qparams or reference.choose_qparams(y, form)
    codes = [pack.pack(reference.quantize(y, qparams, form), form.element)]
    return codes if by.scale is not None else codes + [p for p in qparams if p is not None]


def expected(fused: Fused, case: Case, given: list[Value], dtype: torch.dtype) -> Tensor:
    """The float result of the composition."""
    compute = torch.float32 if fused.wide else dtype
    values = [decoded(value, compute) for value in given]
    if fused.wide:
        values = [x.to(compute) for x in values]
    y = case.plain(*values, **case.given(dtype))
    if not fused.indices:
        y = y.to(dtype)
    return case.after(y) if case.after else y


def operands(count: int) -> Iterator[tuple[str, ...]]:
    """Formats for so many operands: each with itself, with floats, and with the next."""
    for i, fmt in enumerate(FORMATS):
        yield (fmt,) * count
        if count > 1:
            yield tuple(FORMATS[(i + 1 + n) % len(FORMATS)] if n else fmt for n in range(count))
            yield tuple("" if n == i % count else fmt for n in range(count))


def check(name: str, case: Case, dtype: torch.dtype) -> None:
    """The op equals the composition for all formats, with three kinds of result each."""
    fused = FUSED[name]
    tensors = case.tensors(dtype)
    for i, formats in enumerate(operands(len(tensors))):
        given = [coded(x, f) if f else Value(x) for x, f in zip(tensors, formats, strict=True)]
        y = expected(fused, case, given, dtype)
        kinds = RESULTS if y.ndim else SCALARS
        results = {kinds[(i + n) % len(kinds)] for n in (0, 3, 6)}
        for result in sorted({"float"} if fused.indices else results):
            by = quantizer_of(y, result)
            wanted = bits(encoded(y, by))
            told = f"{name} of {formats} -> {result}"
            with bs.use("reference"):
                found = fused(*given, dtype=dtype, y=by, **case.given(dtype))
            assert bits(found) == wanted, told
            assert all(each.is_contiguous() for each in found), told
            sums = fused.ulps and (fused.op.name, "cpu") in KERNELS  # compared in tests/kernels
            if not sums:
                again = fused(*given, dtype=dtype, y=by, **case.given(dtype))
                assert bits(again) == wanted, f"{told}, by kernels"


def cases_of(name: str) -> list[Case]:
    """Those of an op: each family's test file has a table of them."""
    family = FUSED[name].body.__module__.rpartition(".")[2]
    table: dict[str, list[Case]] = importlib.import_module(f"tests.ops.fused.test_{family}").CASES
    return table[name]


def every(
    table: dict[str, list[Case]], one_in: int = 2
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each case of each op and each of its dtypes; of an op one in so many is fast,
    and the first one always."""
    rows, told = [], []
    for name, cases in table.items():
        for row in crossed(one_in, enumerate(cases), DTYPES):
            (i, case), dtype = row.values
            if dtype in case.dtypes:
                rows.append(pytest.param(name, case, dtype, marks=row.marks))
                told.append(f"{name}-{case.name or f'case{i}'}-{dtype}")
    return pytest.mark.parametrize(("name", "case", "dtype"), rows, ids=told)
