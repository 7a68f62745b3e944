# SPDX-License-Identifier: BSD-3-Clause
"""Timing the ways to run a product, in turns."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core import reference
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value, operand, quantizer
from blockscale.core.parse import parse
from blockscale.graph.lowering import onednn
from blockscale.graph.lowering.products.choose import TABLE, Table, Times, key_of, processor
from blockscale.graph.lowering.products.product import OPEN, Product, spelling
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.plan import activate
from blockscale.ops.linear import linear
from blockscale.ops.primitives import choose_quantize, dequantize, from_list, quantize

_SECONDS = 0.015  # of each way, at least


def time_ways(product: Product, ways: list[str], rounds: int = 5) -> Times:
    """{way: milliseconds} of a product on random numbers: the least of some rounds, in turns.

    Each way begins with floats x, and ends in what the product gives. On one thread, in processor
    time, which other processes that want the cores hardly change.
    """
    runs = _runs(product)
    selection = {way: runs[way] for way in ways if way in runs}
    best = dict.fromkeys(selection, float("inf"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        counts = {way: _count(run) for way, run in selection.items()}
        for _ in range(rounds):
            for way, run in selection.items():
                best[way] = min(best[way], _time(run, counts[way]))
    finally:
        torch.set_num_threads(before)
    return {way: round(1000 * seconds, 5) for way, seconds in best.items()}


def _count(run: Callable[[], Any]) -> int:
    """How many calls take about `_SECONDS`."""
    run()
    return max(1, int(_SECONDS / max(_time(run, 1), 1e-6)))


def _time(run: Callable[[], Any], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - start) / count


def _runs(product: Product) -> dict[str, Callable[[], Any]]:
    """A function of each way that computes the product."""
    seed = torch.Generator().manual_seed(0)
    x = torch.randn(product.rows, product.k, generator=seed)
    weight = _operand(torch.randn(product.n, product.k, generator=seed), product.weight)
    bias, fused = torch.randn(product.n, generator=seed), FUSED["linear"].op
    by, y = _quantizer_of(x, product.x), UNQUANTIZED
    if product.y:
        values = activate(F.linear(x, dequantize(weight, torch.float32), bias), product.activation)
        y = (
            _quantizer_of(values, product.y)
            if product.has_scale
            else Quantizer(None, None, None, product.y)
        )
    end = (bias, product.activation, torch.float32, y)

    def value_of_x() -> Value:
        return Value(x) if not by.fmt else Value(*_encode(x, by))

    def kernel() -> Any:
        return fused.overload(*fused.flatten(value_of_x(), Value(*weight), *end))

    def inside() -> Any:
        sums = linear.overload(*linear.flatten(x, weight, bias, by))
        return _finish(activate(sums, product.activation), y)

    def with_onednn() -> Any:
        return onednn.LINEAR(*fused.flatten(value_of_x(), Value(*weight), *end))

    def by_parts() -> Any:
        values = dequantize(value_of_x().operand, torch.float32) if by.fmt else x
        product_of = F.linear(values, dequantize(weight, torch.float32), bias)
        return _finish(activate(product_of, product.activation), y)

    return {"kernel": kernel, "inside": inside, "onednn": with_onednn, "composed": by_parts}


def _quantizer_of(x: Tensor, fmt: str) -> Quantizer:
    """How x is quantized: by a scale given beforehand where one can be."""
    if not fmt:
        return UNQUANTIZED
    form = parse(fmt)
    return quantizer(reference.choose_qparams(x, form) if form.block.static else None, form)


def _encode(x: Tensor, by: Quantizer) -> Operand:
    if by.scale is None:
        codes, *parts = choose_quantize.overload(*choose_quantize.flatten(x, by.fmt, None))
        return operand(codes, from_list(parts, by.format), by.fmt, x.shape[-1])
    qparams = by.qparams
    assert qparams is not None
    codes = quantize.overload(*quantize.flatten(x, by))
    return operand(codes, qparams, by.fmt, x.shape[-1])


def _operand(x: Tensor, fmt: str) -> Operand:
    return _encode(x, Quantizer(None, None, None, fmt))


def _finish(y: Tensor, by: Quantizer) -> Any:
    return y if not by.fmt else _encode(y, by)


# Measures the ways to run usual linear layers here and writes them to `measured.json`.
#
#     python -m blockscale.graph.lowering.products.timing
#
# What was measured on other kinds of processors stays.

_STATIC = ("uint8:tensor:fp32:asym", "int8:tensor:fp32")
_DYNAMIC = (("int8_token", "int8_channel"), ("mxfp8", "mxfp8"), ("bfp8", "bfp8"))
_SIZES = ((384, 384), (1536, 384), (384, 1536), (768, 768), (3072, 768), (768, 3072))
_ROWS = (1, 32, 512, OPEN)


def usual() -> list[Product]:
    """The products that the table has."""
    products = []
    for rows in _ROWS:
        for n, k in _SIZES:
            for x in _STATIC:
                for activation, y in (("", ""), ("gelu", ""), ("gelu", x)):
                    formats = spelling(x), spelling("int8_channel"), spelling(y)
                    products.append(Product(*formats, activation, True, rows, n, k))
            for x, weight in _DYNAMIC:
                products.append(Product(spelling(x), spelling(weight), "", "", False, rows, n, k))
    return products


def measure(products: Iterable[Product], path: Path = TABLE) -> Table:
    """Time each product and write the table with what it had before."""
    table: Table = json.loads(path.read_text()) if path.exists() else {}
    own = table.setdefault(processor(), {})
    for product in products:
        ways = ["kernel", "inside"]
        formats = product.x, product.weight, product.activation, product.y
        static = product.has_scale or not product.y
        if onednn.unavailable() is None and not onednn.refuses(*formats, static):
            ways.append("onednn")
        sizes = f"{product.rows},{product.n},{product.k}"
        own.setdefault(key_of(product), {})[sizes] = time_ways(product, ways)
    path.write_text(_json_text(table))
    return table


def _json_text(table: Table) -> str:
    """As JSON, a line a product."""
    kinds = []
    for kind, formats in sorted(table.items()):
        rows = []
        for formats_key, sizes in sorted(formats.items()):
            lines = [f'   "{size}": {json.dumps(times)}' for size, times in sizes.items()]
            rows.append(f'  "{formats_key}": {{\n' + ",\n".join(lines) + "\n  }")
        kinds.append(f' "{kind}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    measure(usual())
