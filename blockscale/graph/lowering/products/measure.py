# SPDX-License-Identifier: BSD-3-Clause
"""Measures the ways to run usual linear layers here and writes them to `measured.json`.

    python -m blockscale.graph.lowering.products.measure

What was measured on other kinds of processors stays.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from blockscale.graph.lowering import onednn
from blockscale.graph.lowering.products.choose import TABLE, Table, key_of, processor
from blockscale.graph.lowering.products.product import OPEN, Product, spelled
from blockscale.graph.lowering.products.timing import timed

_STATIC = ("uint8:tensor:fp32:asym", "int8:tensor:fp32")
_DYNAMIC = (("int8_token", "int8_channel"), ("mxfp8", "mxfp8"), ("bfp8", "bfp8"))
_SIZES = ((384, 384), (1536, 384), (384, 1536), (768, 768), (3072, 768), (768, 3072))
_ROWS = (1, 32, 512, OPEN)


def usual() -> list[Product]:
    """The products that the table has."""
    found = []
    for rows in _ROWS:
        for n, k in _SIZES:
            for x in _STATIC:
                for activation, y in (("", ""), ("gelu", ""), ("gelu", x)):
                    formats = spelled(x), spelled("int8_channel"), spelled(y)
                    found.append(Product(*formats, activation, True, rows, n, k))
            for x, weight in _DYNAMIC:
                found.append(Product(spelled(x), spelled(weight), "", "", False, rows, n, k))
    return found


def measure(products: Iterable[Product], path: Path = TABLE) -> Table:
    """Time each product and write the table with what it had before."""
    table: Table = json.loads(path.read_text()) if path.exists() else {}
    own = table.setdefault(processor(), {})
    for product in products:
        ways = ["kernel", "inside"]
        formats = product.x, product.weight, product.activation, product.y
        given = product.given or not product.y
        if onednn.unavailable() is None and not onednn.refuses(*formats, given):
            ways.append("onednn")
        sizes = f"{product.rows},{product.n},{product.k}"
        own.setdefault(key_of(product), {})[sizes] = timed(product, ways)
    path.write_text(_written(table))
    return table


def _written(table: Table) -> str:
    """As JSON, a line a product."""
    kinds = []
    for kind, formats in sorted(table.items()):
        rows = []
        for formatted, sizes in sorted(formats.items()):
            lines = [f'   "{size}": {json.dumps(times)}' for size, times in sizes.items()]
            rows.append(f'  "{formatted}": {{\n' + ",\n".join(lines) + "\n  }")
        kinds.append(f' "{kind}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    measure(usual())
