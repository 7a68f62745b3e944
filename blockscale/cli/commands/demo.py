# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale demo`: a real model in many formats, measured against float."""

import json as to_json
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from blockscale.core.parse import display_name
from blockscale.demo import RECIPES, Demo, FormatRow
from blockscale.demo.exports import CASES, ExportFile, files
from blockscale.demo.graph import RECIPES as PROGRAMS
from blockscale.demo.graph import ROWS, TOKENS, FlowStep, steps
from blockscale.demo.minilm import SENTENCES
from blockscale.kernels.registry import unavailable

# Lines that are broken here leave 16 characters of 80 for the names, which need them.
COLUMNS = (
    "format", "MB", "bits\nper\nweight", "weight\nSQNR\ndB", "cosine\nmean", "cosine\nmin",
    "rank\ncorr.", "quantize\ns", "embed\ns",
)  # fmt: skip


# Each takes half of a minute and shows nothing of another kind than those that are shown.
WITH_ALL = {"programs": ("mxfp8",), "files": ("executorch",)}


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also mxfp8 as a program, and ExecuTorch.")
    ] = False,
) -> None:
    """Quantize a small real model in many formats, and compare.

    all-MiniLM-L6-v2 is quantized, saved and loaded again in each format; then it runs as a program
    and from the files of each export target, in other runtimes.
    """
    console = Console(stderr=json)
    start = time.perf_counter()
    rows, flow, exports = _measure(console, everything)
    if json:
        lists: dict[str, list[Any]] = {"rows": rows, "steps": flow, "files": exports}
        data = {name: [asdict(each) for each in steps] for name, steps in lists.items()}
        typer.echo(to_json.dumps(data, indent=2))
        return
    console.print(_table(rows))
    console.print(_flow_table(flow))
    console.print(_files_table(exports))
    for each in exports:
        if (reason := each.missing or each.note) is not None:
            console.print(f"{each.target}: {reason}", markup=False)
    console.print(
        f"{len(SENTENCES)} sentences; embeddings compared with float32's after saving and loading "
        f"each file; {time.perf_counter() - start:.0f} s in all. Every layer was quantized, the "
        f"word embeddings too, but by compressed-tensors; {_layers_ran_on()}."
    )
    if not everything:
        console.print(
            f"Not shown, for they take a minute more: {', '.join(WITH_ALL['programs'])} as a "
            f"program, a file for {', '.join(WITH_ALL['files'])}. blockscale demo --all shows them."
        )


def _measure(
    console: Console, everything: bool
) -> tuple[list[FormatRow], list[FlowStep], list[ExportFile]]:
    """Everything that is shown, with a line on the console about what is under way."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("loading all-MiniLM-L6-v2")
        demo = Demo()
        rows = [demo.float_row]
        for count, (name, recipe) in enumerate(RECIPES.items(), 1):
            progress.update(task, description=f"{count} of {len(RECIPES)}: {name}")
            rows.append(demo.measure(name, recipe))
        progress.update(task, description="the same model as a program")
        flow: list[FlowStep] = []
        programs, targets = (
            [name for name in names if everything or name not in WITH_ALL[kind]]
            for kind, names in (("programs", PROGRAMS), ("files", CASES))
        )
        graphs: dict[Any, Any] = {}  # a file holds what a program was converted to
        for step in steps(demo.model, demo.tokens, programs, graphs):
            flow.append(step)
            progress.update(task, description=f"program: {step.recipe} {step.name}")
        progress.update(task, description="files for others")
        exports: list[ExportFile] = []
        for file in files(demo.model, demo.tokens, targets, graphs):
            exports.append(file)
            progress.update(task, description=f"files for others: {file.target}")
    return rows, flow, exports


def _layers_ran_on() -> str:
    reason = unavailable("cpu")
    return (
        "layers ran on the native CPU kernels"
        if reason is None
        else f"layers ran on the reference, which is exact and not fast: {reason}"
    )


def _flow_table(flow: list[FlowStep]) -> Table:
    table = Table(
        title=f"the same model as a program (bs.graph); times of {ROWS} x {TOKENS} tokens",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for column in ("recipe", "step", "s", "program\nMB", "cosine\nmin", "time of\nmodules"):
        table.add_column(column, justify="left" if column in ("recipe", "step") else "right")
    for step in flow:
        size = "" if step.program_bytes is None else f"{step.program_bytes / 1e6:.1f}"
        cosine = "" if step.cosine is None else f"{step.cosine:.4f}"
        ratio = "" if step.to_modules is None else f"{step.to_modules:.2f}"
        table.add_row(step.recipe, step.name, f"{step.seconds:.1f}", size, cosine, ratio)
    return table


def _files_table(files: list[ExportFile]) -> Table:
    table = Table(
        title="files of each export target (bs.export), run by others",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    names = ("target,\nrun by", "recipe", "layers", "write\ns", "MB", "cosine\nmin", "embed\ns")
    for column in names:
        on_the_left = column in names[:2]
        table.add_column(column, justify="left" if on_the_left else "right", no_wrap=on_the_left)
    for file in files:
        if file.missing is None:
            size = f"{(file.file_bytes or 0) / 1e6:.1f}"
            table.add_row(
                f"{file.target},\n{file.run_by}", display_name(file.recipe).replace(" x ", " x\n"),
                f"{file.layers}", f"{file.write_seconds:.1f}", size,
                f"{file.cosine:.4f}", f"{file.embed_seconds:.2f}",
            )  # fmt: skip
    return table


def _table(rows: list[FormatRow]) -> Table:
    table = Table(
        title="all-MiniLM-L6-v2, weights (and inputs where named) in small number formats",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "format" else "right")
    for row in rows:
        table.add_row(
            row.name, f"{row.file_bytes / 1e6:.1f}", f"{row.bits_per_weight:.2f}",
            f"{row.sqnr:.1f}", f"{row.cosine_mean:.4f}", f"{row.cosine_min:.4f}",
            f"{row.rank_correlation:.4f}", f"{row.quantize_seconds:.1f}",
            f"{row.embed_seconds:.2f}",
        )  # fmt: skip
    return table
