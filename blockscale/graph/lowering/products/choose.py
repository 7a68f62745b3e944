# SPDX-License-Identifier: BSD-3-Clause
"""Which way to run a linear layer: the fastest of those that can, as measured.

`measured.json` holds milliseconds by kind of processor, formats and sizes, one thread, the
quantizing of x included: {processor: {"x|weight|y|activation": {"rows,n,k": {way: ms}}}}. This
writes it:

    python -m blockscale.graph.lowering.products.timing
"""

import json
import math
import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

from blockscale.core.torch_private import is_amx_tile_supported, is_vnni_supported
from blockscale.graph.lowering.products.product import Product

Times = dict[str, float]  # {way: milliseconds}
Table = dict[str, dict[str, dict[str, Times]]]
TABLE = Path(__file__).with_name("measured.json")
_NEAR = 3.0  # times of sizes that differ by more than e^3 in all say nothing
_CLEAR = 0.95  # a way takes the place of our kernel only where it is faster by more than noise


class ChosenWay(NamedTuple):
    """A way, and why it."""

    way: str
    why: str


def processor() -> str:
    """The kind of processor, as far as products of 8-bit integers go."""
    if is_amx_tile_supported():
        return "amx"
    if is_vnni_supported():
        return "vnni"
    return platform.machine().lower()


def choose(
    product: Product | None, reasons: dict[str, str | None], times: Times | None
) -> ChosenWay:
    """The way for a product.

    reasons: {way: why it cannot run it, or None}, in the order in which ways go unmeasured; one can
    times: measured here and now; None: those of the table
    """
    able = [way for way, reason in reasons.items() if reason is None]
    if len(able) == 1:
        return ChosenWay(able[0], f"the only one possible: {reasons.get('onednn')}")
    if product is None:
        return ChosenWay(able[0], "its sizes are not known, so no measurement applies")
    where = "measured here"
    if times is None:
        times, where = looked_up(product)
    timings = {way: times[way] for way in able if way in times}
    if not timings:
        return ChosenWay(able[0], where)
    best = min(timings, key=timings.__getitem__)
    if able[0] in timings and timings[best] > _CLEAR * timings[able[0]]:
        best = able[0]
    text = ", ".join(f"{way} {ms:.3g} ms" for way, ms in sorted(timings.items()))
    return ChosenWay(best, f"{where}: {text}")


def looked_up(product: Product) -> tuple[Times, str]:
    """What the table has for the nearest sizes, and where that was measured; {} and why not."""
    kinds = _table().get(processor(), {})
    sizes = kinds.get(key_of(product), {}) or kinds.get(key_of(product._replace(activation="")), {})
    if not sizes:
        return {}, f"not measured for these formats on a processor with {processor()}"
    nearest = min(sizes, key=lambda each: _distance(each, product))
    if _distance(nearest, product) > _NEAR:
        return {}, f"not measured near {product.rows} x {product.n} x {product.k}"
    return sizes[nearest], f"measured on {processor()} at {nearest.replace(',', ' x ')}"


def key_of(product: Product) -> str:
    """The formats of a product, as the table names them."""
    return "|".join((product.x, product.weight, product.y, product.activation))


def _distance(sizes: str, product: Product) -> float:
    """How far three sizes are from the product's: 0 is equal."""
    own = (max(product.rows, 1), product.n, product.k)
    return sum(abs(math.log(int(a) / b)) for a, b in zip(sizes.split(","), own, strict=True))


@cache
def _table() -> Table:
    table: Table = json.loads(TABLE.read_text())
    return table
