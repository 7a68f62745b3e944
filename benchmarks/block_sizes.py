# SPDX-License-Identifier: BSD-3-Clause
"""The sweep over format block sizes, 32 to 2048: bits, error and time of each, with plots.

    python -m benchmarks.block_sizes --output build/block_sizes.json --plot build/block_sizes

Weights are normal numbers, and normal numbers of which one in a thousand is 30 times as large:
there the error depends on the block's size. Times are medians, contestants of one element in turns.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.bench.groups.ceilings import copies
from blockscale.bench.machine import commit, every_core, hardware, start_again, versions
from blockscale.bench.requests import Contestant
from blockscale.bench.timing import Racer, clock, race
from blockscale.files.whole import check_place, written_whole
from blockscale.reporting.model.measure import measure

SIZES = (32, 64, 128, 256, 512, 1024, 2048)
ELEMENTS = ("int8", "int4", "e4m3", "e2m1")
ROUNDING = {"float scale": "{}:group{}:fp16", "power of two": "{}:group{}:e8m0/floor"}
OPS = ("quantize", "dequantize", "linear of one row")


def weights(side: int) -> dict[str, Tensor]:
    """{what they are: [side, side] float32}, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(side, side, generator=generator)
    few = torch.rand(side, side, generator=generator) < 1e-3
    return {"normal": plain, "outliers": torch.where(few, 30 * plain, plain)}


def calls(fmt: str, x: Tensor) -> dict[str, Any]:
    """{op: what is timed}."""
    q, layer = bs.quantize(x, fmt), nn.Sequential(nn.Linear(*x.shape[::-1], bias=False))
    layer[0].weight.data = x.clone()
    bs.quantize_(layer, bs.Recipe(fmt), strict=True)
    row = torch.randn(1, x.shape[1])
    return dict(
        zip(OPS, (partial(bs.quantize, x, fmt), q.dequantize, partial(layer, row)), strict=True)
    )


def sweep(side: int, seconds: float, elements: tuple[str, ...] = ELEMENTS) -> dict[str, Any]:
    """Every element, scale and size as plain data. seconds: for the calls of one op and element."""
    given = weights(side)
    rows: list[dict[str, Any]] = []
    for element in elements:
        formats = {
            template.format(element, size): (kind, size)
            for kind, template in ROUNDING.items() for size in SIZES if size <= side
        }  # fmt: skip
        made = {fmt: calls(fmt, given["normal"]) for fmt in formats}
        times = {op: _timed(op, made, seconds, given["normal"].nbytes) for op in OPS}
        for fmt, (kind, size) in formats.items():
            sqnr = {name: measure(bs.quantize(x, fmt), x).sqnr for name, x in given.items()}
            rows.append({
                "element": element, "scale": kind, "size": size, "format": fmt,
                "bits": bs.parse(fmt).bits_per_element((side, side)), "sqnr": sqnr,
                "over_copy": {op: times[op][fmt] for op in OPS},
            })  # fmt: skip
        print(f"measured {element}", flush=True)
    about = {"commit": commit(), "hardware": hardware(), "versions": versions(), "side": side}
    return json.loads(json.dumps(about | {"rows": rows}))


def _timed(op: str, made: dict[str, Any], seconds: float, nbytes: int) -> dict[str, float]:
    """{format: its time over that of a copy of the float weight in the same rounds}."""
    entries = [Contestant(fmt, "ours", each[op]) for fmt, each in made.items()]
    entries += copies(2 * nbytes, "cpu")
    share = seconds / len(entries)
    found = race([Racer(each, share, clock("cpu")) for each in entries])
    copy = min(found[each.name].median for each in entries if each.kind == "ceiling")
    return {fmt: found[fmt].median / copy for fmt in made}


def plot(data: dict[str, Any], folder: Path) -> list[Path]:
    """Error by bits, and the time of each op by block size, as figures (the extra `report`)."""
    from blockscale.reporting.model.figures import COLORS, check_folder, save

    check_folder(folder).mkdir(exist_ok=True)
    kinds = dict.fromkeys((row["element"], row["scale"]) for row in data["rows"])

    def drawn(axes: Any, pick: Any, beside: str) -> None:
        for i, (element, scale) in enumerate(kinds):
            own = (element, scale)
            rows = [row for row in data["rows"] if (row["element"], row["scale"]) == own]
            style = "o-" if scale == "float scale" else "s--"
            points = [(row["size"], pick(row)) for row in rows]
            axes.plot(*zip(*points, strict=True), style, color=COLORS[i // 2], markersize=2.5,
                      linewidth=0.8, label=f"{element}, {scale}")  # fmt: skip
        axes.set(xlabel="elements of a block", ylabel=beside)
        axes.set_xscale("log", base=2)
        axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))

    wanted = {
        f"sqnr-{name}": (lambda row, n=name: row["sqnr"][n], f"SQNR (dB), {name} weights")
        for name in ("normal", "outliers")
    } | {
        op.split()[0]: (lambda row, o=op: row["over_copy"][o], f"{op}: time over a copy's")
        for op in OPS
    }
    paths = []
    for name, (pick, beside) in wanted.items():
        each = partial(drawn, pick=pick, beside=beside)
        paths += save(each, folder, name)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("block_sizes.json"))
    parser.add_argument("--plot", type=Path, metavar="DIR", help="a folder for figures")
    parser.add_argument("--side", type=int, default=4096, help="of the square weight")
    parser.add_argument("--seconds", type=float, default=5.0, help="for one op of an element")
    given = parser.parse_args()
    start_again()
    path = check_place(given.output, "block_sizes.json")
    with every_core():
        data = sweep(given.side, given.seconds)
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1) + "\n")
    if given.plot is not None:
        plot(data, given.plot)


if __name__ == "__main__":
    main()
