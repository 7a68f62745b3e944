# SPDX-License-Identifier: BSD-3-Clause
"""The drawing of the house in docs/design.md, from the folders of the package and what each says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import blockscale as bs
from docs.pages import DOCS
from tests.support.layer_order import BESIDE, LAYERS

PACKAGE = Path(bs.__file__).parent


HOUSE = re.compile(
    r"(?<=<!-- the house: made by `make docs` -->\n\n```text\n).*?(?=```\n)", re.DOTALL
)


SOURCES = {  # folders of C++, which say nothing of themselves
    "src": "C++, compiled to one library: what Python calls, and the choice of the instruction set.",
    "isa": "The kernels, compiled once for each instruction set, in a namespace of its own.",
    "simd": "Vectors: one way to write them for every instruction set.",
    "tuning": "Choices of which only speed depends: their bounds, what holds unmeasured, and setting them.",
    "primitives": "quantize, dequantize and fake_quantize: statistics, scales, encoding, packing.",
    "linear": "Products with a quantized weight.",
    "amx": "Those of many rows by a processor's matrix unit: its tiles, blocks that are scaled, parts of floats.",
    "fused": "Ops between products: tables, sums, norms, attention, on floats and codes.",
    "integer": "Products, tables and row functions on integers alone, which end in rounding shifts.",
}


def design() -> str:
    """docs/design.md with the drawing of today."""
    return HOUSE.sub(lambda _: house(), (DOCS / "design.md").read_text())


def house(package: Path = PACKAGE) -> str:
    """A drawing of the package's folders: one line a room, in the order in which they may import."""
    lines = ["blockscale/"]
    rooms = [name for name in LAYERS if (package / name).is_dir()]
    for name in rooms:
        lines += ["  ↑"] if name != rooms[0] else []
        lines += rows(package / name, 1)
    lines += [
        "",
        *(row for name in BESIDE if (package / name).is_dir() for row in rows(package / name, 1)),
    ]
    return "\n".join(lines) + "\n"


def rows(folder: Path, depth: int) -> Iterator[str]:
    """A room and those inside it."""
    name = "  " * depth + folder.name + "/"
    yield f"{name:22} {about(folder)}"
    for inside in sorted(each for each in folder.iterdir() if each.is_dir()):
        if any(each.suffix in (".py", ".cpp", ".h") for each in inside.rglob("*")):
            yield from rows(inside, depth + 1)


def about(folder: Path) -> str:
    """The first sentence of what a package says of itself."""
    start = folder / "__init__.py"
    if not start.exists():
        return SOURCES.get(folder.name, "C++.")
    said = " ".join(
        (ast.get_docstring(ast.parse(start.read_text())) or "").partition("\n\n")[0].split()
    )
    sentence = re.match(r".*?\.(?= [A-Z]|$)|.*", said)
    return sentence[0] if sentence else ""
