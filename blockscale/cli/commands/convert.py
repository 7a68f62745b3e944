# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale convert`: one producer's checkpoint becomes another's, with the same values."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.progress import Bar
from blockscale.core.parse import display_name
from blockscale.core.untrusted import TEXT, shown
from blockscale.export.conversion import convert_checkpoint
from blockscale.export.conversion.proof import Conversion, Converted
from blockscale.reporting.table import aligned, family, size
from blockscale.selection.allocation import Budget


def convert(  # noqa: PLR0913 - one argument an option
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A GGUF file, or a model's directory.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="The file (gguf) or directory to write.")
    ],
    to: Annotated[
        str,
        typer.Option(help="The layout to write, listed above."),
    ],
    requantize: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Quantize what DST cannot hold again.",
        ),
    ] = None,
    floats: Annotated[
        list[str] | None,
        typer.Option(
            "--float", metavar="PATTERN", help="Write these layers as float32. Repeatable."
        ),
    ] = None,
    names: Annotated[str, typer.Option(help="auto (as DST needs) or keep.")] = "auto",
    config: Annotated[
        Path | None,
        typer.Option(help="The original model's directory."),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Largest file, such as 5GB.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace DST once the new one is complete.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what each tensor would become.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Convert a quantized checkpoint without changing a value.

    The layouts of --to are gguf, compressed-tensors, gptq, awq, mlx, gpt-oss, fp8, bnb and
    blockscale. Codes and scales are copied, and every tensor is read back and compared. Where DST
    cannot hold a tensor, the reason is shown and nothing is written, unless --requantize gives it
    another format (a format, a recipe's JSON, or a .json file). With --shard-size, a gguf DST is a
    directory of several files. --config is for its config.json and tokenizer.
    """
    began = time.monotonic()
    with Bar(quiet or as_json) as bar:
        conversion = convert_checkpoint(
            source, target, to, requantize=requantize, floats=floats or (), names=names,
            config=config, shard_size=_bytes(shard_size), force=force, dry_run=dry_run,
            progress=bar,
        )  # fmt: skip
    seconds = time.monotonic() - began
    if as_json:
        data = conversion.to_dict() | {"seconds": seconds, "written": not dry_run}
        print(json.dumps(data, indent=2))
    elif not quiet:
        print(conversion_table(conversion, with_proof=not dry_run))
        if dry_run:
            print("nothing is written")
        else:
            print(f"wrote {target} in {seconds:.1f} s: {size(conversion.bytes_after)}")


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(Budget.read(f"size={text}").value)
    except ValueError:
        raise ValueError(f"--shard-size {text!r} is not a size: write one such as 5GB") from None


# A conversion for people: what became of each tensor, what it cost, and what was proved.


def conversion_table(conversion: Conversion, with_proof: bool = True) -> str:
    """One line for all tensors that differ only in numbers of their names, errors one a tensor.

    with_proof: whether it was written and read back
    """
    groups: dict[tuple[str, ...], list[Converted]] = {}
    for each in conversion.tensors:
        key = (each.how, family(each.name), each.kind, each.found, each.written)
        groups.setdefault(key, []).append(each)
    rows = []
    for (how, name, kind, before, after), tensors in groups.items():
        shared = tensors[0].name if len(tensors) == 1 else name
        what = after if how == "copied" or before == after else f"{before} -> {after}"
        rows.append((how, shared, str(len(tensors)), kind, display_name(what)))
    lines = [aligned(("", "tensor", "count", "was", "format"), rows, "  r  "), ""]
    lines += _errors(conversion.of("requantized")) if with_proof else []
    lines += [
        f"left out: {shown(name)}: {shown(why, TEXT)}" for name, why in conversion.left_out.items()
    ]
    lines += [f"note: {shown(note, TEXT)}" for note in conversion.notes]
    lines += [
        f"note: {shown(each.name)}: {shown(note, TEXT)}"
        for each in conversion.tensors
        if each.how != "requantized"
        for note in each.notes
        if note != "float32 now"
    ][:20]
    if conversion.copied:
        lines.append(f"copied: {', '.join(map(shown, conversion.copied))}")
    return "\n".join([*lines, *_proof(conversion, with_proof)])


def _errors(tensors: list[Converted]) -> list[str]:
    """The error that quantizing again added, for each tensor."""
    if not tensors:
        return []
    rows = []
    for each in tensors:
        sqnr = "none" if each.sqnr is None else f"{each.sqnr:.2f} dB"
        reason = "; ".join(each.notes)
        rows.append((each.name, each.written, f"{each.relative:.3%}", sqnr, reason))
    head = ("quantized again", "as", "relative error", "SQNR", "because")
    return [aligned(head, rows, "  rr "), ""]


def _proof(conversion: Conversion, with_proof: bool) -> list[str]:
    counts = {
        how: len(conversion.of(how)) for how in ("exact", "dequantized", "copied", "requantized")
    }
    summary = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    sizes = size(conversion.bytes_before)
    if not with_proof:
        return [f"{summary}; {sizes}"]
    codes = sum(each.compared == "codes" for each in conversion.tensors)
    rest = len(conversion.tensors) - codes
    elements = sum(each.elements for each in conversion.tensors)
    proof = (
        f"{'lossless' if conversion.lossless else 'not lossless'}: {summary}; read back and "
        f"compared bit for bit: codes and scales of {codes} tensors, values of {rest}; "
        f"{elements:,} values, 0 differ"
        f"{'' if conversion.lossless else ' but for those quantized again'}"
    )
    lines = [proof, f"{sizes} -> {size(conversion.bytes_after)}"]
    return lines + ([f"note: {conversion.computes}"] if conversion.computes else [])
