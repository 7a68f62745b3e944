# SPDX-License-Identifier: BSD-3-Clause
"""Small IRs, written by hand: one weight in codes, of any bytes."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

BITS = {"u1": 1, "u2": 2, "u3": 3, "u4": 4, "i4": 4, "u6": 6, "u8": 8, "i8": 8, "nf4": 4,
        "f4e2m1": 4, "f8e4m3": 8, "f8e5m2": 8}  # fmt: skip
KINDS = tuple(BITS)
HEAD = '<?xml version="1.0"?>\n<net name="m" version="11">\n'


Shape = tuple[int, ...]


def port(number: int, shape: Shape) -> str:
    dims = "".join(f"<dim>{n}</dim>" for n in shape)
    return f'<port id="{number}" precision="FP32">{dims}</port>'


def layer(number: int, kind: str, name: str, data: str, shape: Shape, *inputs: Shape) -> str:
    given = "".join(port(i, each) for i, each in enumerate(inputs))
    given = f"<input>{given}</input>" if inputs else ""
    made = "" if kind == "Result" else f"<output>{port(9, shape)}</output>"
    told = f"<data {data}/>" if data else ""
    begin = f'<layer id="{number}" name="{name}" type="{kind}" version="opset1">'
    return f"{begin}{told}{given}{made}</layer>\n"


def const(number: int, name: str, kind: str, shape: Shape, start: int, size: int) -> str:
    told = f'element_type="{kind}" shape="{", ".join(map(str, shape))}" '
    return layer(number, "Const", name, f'{told}offset="{start}" size="{size}"', shape)


def edge(source: int, target: int, port: int) -> str:
    return f'<edge from-layer="{source}" from-port="9" to-layer="{target}" to-port="{port}"/>\n'


def scales(shape: Shape, seed: int = 1) -> np.ndarray:
    """f16 of both signs, wide, one 0 and one -0."""
    generator = np.random.default_rng(seed)
    found = generator.standard_normal(shape) * 2.0 ** generator.integers(-14, 8, shape)
    found.reshape(-1)[:2] = 0.0, -0.0
    return found.astype(np.float16)


def write(
    path: Path, kind: str, shape: tuple[int, int, int] = (4, 3, 16), zero: str = "", seed: int = 0
) -> Path:
    """An IR whose `w` is [rows, groups, g] of any bytes, times f16 scales, as [rows, groups * g].

    zero: the type of zero points, "" without
    """
    rows, groups, g = shape
    size = math.ceil(math.prod(shape) * BITS[kind] / 8)
    codes = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    if kind == "f8e4m3":
        codes[(codes & 127) == 127] = 0  # NaN has many bits
    if kind == "f8e5m2":
        codes[(codes & 127) > 123] = 0
    few = (rows, groups, 1)
    parts = [codes.tobytes(), scales(few).tobytes(), np.array([rows, groups * g]).tobytes()]
    count = rows * groups
    if zero:
        nbytes = math.ceil(count * BITS[zero] / 8)
        parts.append(np.random.default_rng(5).integers(0, 256, nbytes, dtype=np.uint8).tobytes())
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    whole = (rows, groups * g)
    convert = 'destination_type="f16"'
    text = HEAD + "<layers>\n" + const(1, "w", kind, shape, 0, size)
    text += layer(2, "Convert", "c", convert, shape, shape)
    text += const(3, "s", "f16", few, starts[1], len(parts[1]))
    text += layer(4, "Multiply", "m", 'auto_broadcast="numpy"', shape, shape, few)
    text += const(5, "shape", "i64", (2,), starts[2], 16)
    text += layer(6, "Reshape", "r", 'special_zero="false"', whole, shape, (2,))
    text += layer(7, "Convert", "f", 'destination_type="f32"', whole, whole)
    text += layer(8, "Result", "y", "", (), whole)
    last = 2
    edges = edge(1, 2, 0)
    if zero:
        text += const(10, "z", zero, few, starts[3], len(parts[3]))
        text += layer(11, "Convert", "cz", convert, few, few)
        text += layer(12, "Subtract", "sub", 'auto_broadcast="numpy"', shape, shape, few)
        edges += edge(10, 11, 0) + edge(2, 12, 0) + edge(11, 12, 1)
        last = 12
    edges += edge(last, 4, 0) + edge(3, 4, 1) + edge(4, 6, 0) + edge(5, 6, 1)
    edges += edge(6, 7, 0) + edge(7, 8, 0)
    path.write_text(text + "</layers>\n<edges>\n" + edges + "</edges>\n</net>\n")
    path.with_suffix(".bin").write_bytes(b"".join(parts))
    return path


def every(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of IRs of each type, without and with zero points."""
    for kind in KINDS:
        for zero in ("", "u8", "i8", "u4") if kind[0] in "ui" else ("",):
            if zero != "u4" or BITS[kind] <= 4:
                name = f"{kind}_{zero}" if zero else kind
                yield name, write(folder / f"{name}.xml", kind, zero=zero)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal in every bit."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return torch.equal(found.contiguous().view(torch.int32), expected.view(torch.int32))
