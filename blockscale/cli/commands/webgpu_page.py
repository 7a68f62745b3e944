# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale webgpu-page`: a page that quantizes on the visitor's GPU."""

import json
from pathlib import Path
from typing import Annotated

import typer

import blockscale
from blockscale.core.parse import formats as catalogue
from blockscale.core.parse import parse
from blockscale.files.whole import check_place, written_whole
from blockscale.reporting.browser import page, refusal


def webgpu_page(
    out: Annotated[Path, typer.Argument(metavar="OUT.html", help="The file to write.")],
    formats: Annotated[
        str,
        typer.Option(metavar="A,B", help="Only these formats, by name or spelling."),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.html.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write an HTML page that quantizes tensors on your own GPU.

    It runs in the browser, shows numbers, values, errors and codes side by side, and checks the
    GPU's results bit for bit against what the reference computes now. It needs no server and sends
    nothing anywhere.
    """
    path = check_place(out, "blockscale.html")
    if path.exists() and not force:
        raise ValueError(f"{path} exists: choose another name, or pass --force")
    names = [each.strip() for each in formats.split(",") if each.strip()]
    by_name = {name: parse(name) for name in names} if names else dict(catalogue())
    left_out: dict[str, str] = {}
    if not names:  # all that a page can show
        left_out = {name: why for name, fmt in by_name.items() if (why := refusal(fmt)) is not None}
        by_name = {name: fmt for name, fmt in by_name.items() if name not in left_out}
    text = page(by_name, blockscale.__version__)
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    if as_json:
        data = {"path": str(path), "formats": list(by_name), "bytes": path.stat().st_size}
        print(json.dumps(data | {"left_out": left_out}))
        return
    for name, why in left_out.items():
        print(f"left out {name}: {why}")
    print(f"wrote {path}: {len(by_name)} formats, {len(text) / 1e6:.1f} MB; open it in a browser")
