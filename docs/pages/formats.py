# SPDX-License-Identifier: BSD-3-Clause
"""docs/formats.md: the catalogue, what scale rules change, what runs where."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch

import blockscale as bs
from blockscale.core.elements import FAMILIES
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import RULES
from docs.pages import DOCS

FLOWS = DOCS / "flows.json"  # python -m tests.graph.flows
EXPORTS = DOCS / "exports.json"  # python -m tests.export.table
SHAPE = (4096, 4096)


HEAD = """# The formats

Generated from `blockscale/core/parse.py` by `make docs`; do not edit. What every part means, exactly, is in
[numerics.md](numerics.md). A name is accepted wherever a spelling is, on the command line too
(`blockscale formats` prints this table, `blockscale formats mxfp4` one format in full).

* **max/smallest**: largest and smallest positive value of the element, before scaling; their ratio is what one block can hold.
* **bits**: stored bits per element of a 4096 × 4096 tensor, with scales and zero points.
* **SQNR**: signal to quantization noise on standard normal numbers [256, 4096] (seed 0), in decibels.

| name | spelling | max | smallest | bits | SQNR |
|---|---|--:|--:|--:|--:|
"""


TAIL = """
Any other combination is spelled out: `element:block:scale[:option…]`.

* elements: {elements}
* blocks: `tensor`, `channelA`, `token`, `groupN`, `groupN@A`, `tileRxC`
* scales: `fp32`, `fp16`, `bf16`, `pow2/RULE`, `e8m0/RULE` (`e8m0` is `e8m0/floor`), `e4m3`, `e5m2`, `ueXmY` (one level, as `ue5m3`), or a format in parentheses; behind `e4m3` the rule `/four_six`
* rules: {rules}
* options: `asym`, `full`, `half`, `recip`, and a rounding ({roundings})
* shorthand: `bfpM` and `bfpMxN` for M-bit mantissas in groups of N (64), `BFP[8|8]{{64}}(SN)` as hardware people write it (symmetric S, else N or _; rounding N, U, D, S), and `MXFP8[E4M3]{{32}}`, `MXINT8{{32}}`
"""


# What the scale rule alone changes (docs/numerics.md, 3.4).
RULE_HEAD = """
## What the rule of an e8m0 scale changes

SQNR on the same numbers. `floor` is OCP's conversion and lets the largest values saturate; `tosa` takes the smallest scale that
does not, and any decoder reads the result.

"""


NAN_HEAD = """
## What becomes of NaN and infinity

Most formats have no code for them. Where scales are powers of two in a byte (`e8m0`) or codes of a small float, a NaN or an infinity makes its
whole block NaN, as OCP MX asks; elsewhere **it comes out as a number and nothing downstream sees it**: an overflow in a model's activations
is hidden by `int8_token` and shown by `mxfp8`. So what was hidden is counted: `bs.compare` says for each layer how many NaN and infinite
elements of its weight and of its inputs its formats made finite, `bs.quantize_` warns of such weights and refuses them with `strict=True`, and
observers count them ([numerics.md](numerics.md), 3.7 and 4, has the exact rule).

| formats | a NaN becomes | an infinity becomes |
|---|---|---|
"""


FLOW_HEAD = """
## What runs where

Two linear layers in each format, through modules (`bs.calibrate`), `bs.graph.convert` and `bs.graph.fuse`, whose results are equal to the bit on the
reference, and lowered to each target. `kernel`: one of ours; `composed`: our kernels for decoding and for
floats, one after the other; `oneDNN`: torch's product of 8-bit integers; `torch's ops`: the reference traced for
Inductor, with its bits. Every cell was run, by `tests/graph/test_flows.py`, on an x86-64 processor with AVX-512 and VNNI, those of `cuda` by
`tests/gpu/test_graph.py` on an H200, where linear layers go through `linear`, which quantizes its input inside.
"""


EXPORT_HEAD = """
## What other runtimes read

A model of two linear layers in each format, written by `bs.export`, read by the target's own runtime and compared with the converted graph.
`integers`: at least one of the two products is computed in them; `decoded`: both in float, from packed codes, as `bs.export.audit` finds. compressed-tensors: its layout, whose decompressor gives the same
values. Every cell was run, by `tests/export/test_table.py`; see [export.md](export.md).
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{name}` | `{f}` | {number(f.element.max)} | {number(f.element.smallest)} "
        f"| {f.bits_per_element(SHAPE):.3g} | {sqnr(str(f)):.1f} |"
        for name, f in bs.formats().items()
    ]
    tail = TAIL.format(
        elements="; ".join(f.SPELLINGS for f in FAMILIES),
        rules=", ".join(f"`{rule}`" for rule in RULES),
        roundings=", ".join(f"`{r}`" for r in ROUNDINGS),
    )
    columns = list(RULES)
    lines = ["| element | " + " | ".join(columns) + " |", "|---" + "|--:" * len(columns) + "|"]
    for element in ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8"):
        cells = [f"{sqnr(f'{element}:group32:e8m0/{rule}'):.2f}" for rule in columns]
        lines.append(f"| `{element}:group32` | " + " | ".join(cells) + " |")
    rules = RULE_HEAD + "\n".join(lines) + "\n"
    rules += NAN_HEAD + "".join(odd_values())
    run = FLOW_HEAD + "\n".join(table(FLOWS)) + "\n"
    run += EXPORT_HEAD + "\n".join(table(EXPORTS)) + "\n"
    return HEAD + "\n".join(rows) + "\n" + tail + rules + run


def number(value: float) -> str:
    """A short exact-looking number: powers of two as such when small."""
    if value < 1e-4:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:g}"


def sqnr(spelling: str) -> float:
    """Signal to noise in decibels on normal numbers."""
    x = torch.randn(256, 4096, generator=torch.Generator().manual_seed(0))
    error = x - bs.fake_quantize(x, spelling)
    return 10 * math.log10(float(x.square().sum() / error.square().sum()))


def odd_values() -> Iterator[str]:
    """A line for all named formats that treat NaN and infinity alike."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in bs.formats():
        told = becomes(name, math.nan), becomes(name, math.inf)
        groups.setdefault(told, []).append(f"`{name}`")
    for (nan, infinity), names in groups.items():
        yield f"| {', '.join(names)} | {nan} | {infinity} |\n"


def becomes(name: str, value: float) -> str:
    """What is left of one such element among 1, 2, … 16."""
    x = torch.arange(256.0).remainder(16).add(1).reshape(1, -1)
    x[0, 3] = value
    left = bs.fake_quantize(x, name)[0]
    if left[3].isnan():
        return "NaN" if left.isnan().sum() == 1 else "NaN, with all of its block"
    if left[3] == 0:
        return "0"
    return "the largest value of its block" if left[3] == left.max() else f"{left[3]:g}"


def table(path: Path) -> Iterator[str]:
    """A table of formats and what they were run in, from JSON that a test run wrote."""
    recorded = json.loads(path.read_text())
    columns = list(next(iter(recorded.values()))["weight"])
    for part in ("weight", "weight and input"):
        yield f"\n| {part} | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|"
        for name, parts in recorded.items():
            yield (
                f"| `{name}` | "
                + " | ".join(parts[part].get(c, "not run yet") for c in columns)
                + " |"
            )
