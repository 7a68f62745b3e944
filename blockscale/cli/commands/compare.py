# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale compare`: how far two files or directories are apart."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.progress import Bar
from blockscale.core.parse import display_name
from blockscale.core.untrusted import TEXT, shown
from blockscale.export.checkpoints.comparing import FileComparison, TensorDifference
from blockscale.export.checkpoints.comparing import compare as measure
from blockscale.reporting.table import aligned, shape


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The reference: a file or directory.")],
    b: Annotated[
        Path, typer.Argument(metavar="B", help="The file or directory to compare with it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Compare two files or directories, tensor by tensor.

    SQNR is 10 log10 (sum a² / sum (a - b)²) in dB; larger is closer. Quantized tensors are
    dequantized first, of blockscale or of another producer; tensors that cannot be read are listed
    as not compared.
    """
    with Bar(quiet) as bar:
        comparison = measure(a, b, progress=bar)
    print(json.dumps(comparison.to_dict(), indent=2) if as_json else _text(comparison))


def _text(comparison: FileComparison) -> str:
    lines = [
        aligned(
            ("tensor", "shape", "a", "b", "bits a", "bits b", "SQNR dB", "max error"),
            [_line(each) for each in comparison.differences if not each.equal],
            "    rrrr",
        )
    ]
    equal = [each for each in comparison.differences if each.equal]
    lines += ["", f"{len(equal)} of {len(comparison.differences)} tensors are equal"]
    infinite = [
        f"{shown(each.name)}: {each.odd} elements are NaN or infinite on one side"
        for each in comparison.differences
        if each.odd
    ]
    shapes = [
        f"{shown(n)}: a is {shape(x)}, b is {shape(y)}"
        for n, (x, y) in comparison.mismatched.items()
    ]
    only = [
        f"only in {side}: {shown(n)}"
        for side, names in (("a", comparison.only_a), ("b", comparison.only_b))
        for n in names
    ]
    unread = [
        f"not compared: {shown(name)}: {shown(why, TEXT)}"
        for name, why in sorted(comparison.unread.items())
    ]
    return "\n".join([*lines, *infinite, *unread, *shapes, *only])


def _line(each: TensorDifference) -> tuple[str, ...]:
    sqnr = f"{each.sqnr:.2f}" if math.isfinite(each.sqnr) else str(each.sqnr)
    bits = f"{each.bits_a:.2f}", f"{each.bits_b:.2f}"
    formats = display_name(each.a), display_name(each.b)
    return each.name, shape(each.shape), *formats, *bits, sqnr, f"{each.max_error:.3g}"
