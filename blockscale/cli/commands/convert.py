"""`blockscale convert`: one producer's checkpoint becomes another's, with the same values."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.progress import Bar
from blockscale.export.conversion.convert_checkpoint import convert_checkpoint
from blockscale.report.conversion import conversion_table
from blockscale.report.wording import size
from blockscale.search.budget import Budget


def convert(  # noqa: PLR0913 - one argument an option
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A GGUF file, or a model's directory.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="The file (gguf) or directory to write.")
    ],
    to: Annotated[
        str,
        typer.Option(
            help="gguf, compressed-tensors, gptq, awq, mlx, gpt-oss, fp8, bnb or blockscale."
        ),
    ],
    requantize: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Formats for what cannot be written with the same values: a format, a recipe's "
            "JSON, or a .json file with one.",
        ),
    ] = None,
    floats: Annotated[
        list[str] | None,
        typer.Option(
            "--float", metavar="PATTERN", help="Write these layers as float32. May be repeated."
        ),
    ] = None,
    names: Annotated[
        str, typer.Option(help="auto: as DST's programs call tensors; keep: as SRC does.")
    ] = "auto",
    config: Annotated[
        Path | None,
        typer.Option(help="The original model's directory, for its config.json and tokenizer."),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bytes of a file, such as 5GB; DST of gguf is then a directory of several files.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace DST, once the new one is complete.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would become of each tensor.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Convert a quantized checkpoint without changing a value.

    Codes and scales are carried and every tensor is read back and compared. What DST cannot hold
    is named, with the reason, and nothing is written, unless --requantize says what it becomes.
    """
    began = time.monotonic()
    with Bar(quiet or as_json) as bar:
        done = convert_checkpoint(
            source, target, to, requantize=requantize, floats=floats or (), names=names,
            config=config, shard_size=_bytes(shard_size), force=force, dry_run=dry_run,
            progress=bar,
        )  # fmt: skip
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps(done.to_dict() | {"seconds": seconds, "written": not dry_run}, indent=2))
    elif not quiet:
        print(conversion_table(done, compared=not dry_run))
        if dry_run:
            print("nothing is written")
        else:
            print(f"wrote {target} in {seconds:.1f} s: {size(done.bytes_after)}")


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(Budget.read(f"size={text}").value)
    except ValueError:
        raise ValueError(f"--shard-size {text!r} is no size: give one such as 5GB") from None
