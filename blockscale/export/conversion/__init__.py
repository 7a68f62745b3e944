# SPDX-License-Identifier: BSD-3-Clause
"""`bs.export.convert_checkpoint`: one producer's checkpoint becomes another's."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import quote
from blockscale.core.work import Progress
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.export.checkpoints.gguf.reading import GGUF
from blockscale.export.checkpoints.opening import checkpoint
from blockscale.export.conversion.directory import Directory
from blockscale.export.conversion.exact import InexactError
from blockscale.export.conversion.plan import (
    FLOATS,
    REQUANTIZED,
    NotLosslessError,
    Step,
    make_plan,
    total_bytes,
)
from blockscale.export.conversion.proof import Conversion, Converted, error_of, prove
from blockscale.export.conversion.source import AT_A_TIME, ConvertedSource, read, source_of
from blockscale.export.writers import Writer, writer_of
from blockscale.export.writers.gguf_files.file import GGUFFile, SplitGGUF
from blockscale.export.writers.gguf_files.model import Extra, metadata_for
from blockscale.files.directory import output
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.directory.output import absolute, check_names
from blockscale.files.directory.swap import restore, whole_folder
from blockscale.files.slabs.pool import Pool
from blockscale.files.whole import check_place, written_whole
from blockscale.ops.tensor import QTensor

Output = GGUFFile | SplitGGUF | Directory

_PROFILED = "requantizing needs a plain format instead of a profile"


def convert_checkpoint(  # noqa: PLR0913 - one argument an option
    source: str | Path,
    target: str | Path,
    to: str,
    *,
    requantize: Recipe | str | None = None,
    floats: Sequence[str] = (),
    names: str = "auto",
    config: str | Path | None = None,
    shard_size: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Write a checkpoint as another producer's, with the same values, and prove it.

    source: what bs.checkpoint reads; target: the file (GGUF) or directory to write
    to: "awq", "bnb", "blockscale", "compressed-tensors", "fp8", "gguf", "gpt-oss", "gptq" or "mlx"
    requantize: a recipe whose formats those tensors get that cannot be written with the same
        values; without it they are an error
    floats: patterns of layers that are written as float32 with the same values
    names: "auto": as the target's programs call them; "keep": as they are in the source
    config: a directory with the original's config.json and tokenizer, where the source has none
    shard_size: bytes of a file (by default: all of GGUF, 5 GB of others), but for a tensor that is
        larger; GGUF is then several files in the directory `target`
    force: replace what is at `target`, once the new one is complete
    dry_run: decide about every tensor, and write nothing
    progress: counts each tensor and its bytes (`blockscale.core.work.Progress`)

    Codes and scales are carried; every tensor is read back from what was written and compared with
    the source's, bit for bit, before the result takes its place. Raises NotLosslessError (a
    ValueError), before anything is written, that names every tensor which cannot be carried and
    why; FileError for damaged files, and ValueError for a place that is taken.
    """
    source, target, writer = Path(source), Path(target), writer_of(to)
    if names not in ("auto", "keep"):
        raise ValueError(f"names must be 'auto' or 'keep', got {names!r}")
    one_file = is_one_file(writer.one_file, shard_size)
    check_target(target, source, one_file, force)
    recipe, info = _requantize(requantize)
    progress = progress or Progress()
    with checkpoint(source) as reader:
        result = source_of(reader, writer.one_file, names, None if config is None else Path(config))
        steps = make_plan(result, writer, recipe, tuple(floats))
        conversion = _conversion(result, target, writer, steps, info)
        metadata, extra = _metadata(result, writer, steps, conversion)
        progress.start(total_bytes(steps))
        if dry_run:
            conversion.tensors = [_converted(step, "", 0) for step in steps]
            return conversion
        with output_place(target, one_file) as path:
            _write(path, result, writer, steps, conversion, metadata, extra, shard_size, progress)
        conversion.bytes_after = bytes_at(target)
    return conversion


def _requantize(inputs: Recipe | str | None) -> tuple[Recipe | None, tuple[str, ...]]:
    """The recipe for what cannot be written as it is, which is rounded; and notes on that."""
    if inputs is None:
        return None, ()
    return Recipe.read(inputs).refuse_profiles(_PROFILED).uncalibrated()


def _conversion(
    source: ConvertedSource, target: Path, writer: Writer, steps: list[Step], names: tuple[str, ...]
) -> Conversion:
    others = [] if writer.one_file else [file.name for file in source.other_files()]
    notes = list(names)
    if not writer.one_file and isinstance(source.checkpoint, GGUF) and not others:
        notes.append("no tokenizer is written: copy its files from the original model's directory")
    checkpoint = source.checkpoint
    metadata = checkpoint.own_metadata
    if inputs := [
        *(name for name in metadata.layers if metadata.formats(name)),
        *checkpoint.inputs,
    ]:
        more = f" and {len(inputs) - 1} more" * (len(inputs) > 1)
        notes.append(
            f"inputs of {inputs[0]}{more} stay in float: their quantization cannot be written"
        )
    notes += writer.notes([step.plan for step in steps])
    return Conversion(
        str(source.checkpoint.path), str(target), writer.name, left_out=source.left_out,
        copied=tuple(others), notes=tuple(notes), computes=writer.computes,
        bytes_before=total_bytes(steps),
    )  # fmt: skip


def _metadata(
    source: ConvertedSource, writer: Writer, steps: list[Step], conversion: Conversion
) -> tuple[dict[str, bytes], Extra]:
    if not writer.one_file:
        return {}, Extra()
    checkpoint = source.checkpoint
    if isinstance(checkpoint, GGUF):
        whole = {key: data for key, data in checkpoint.raw.items() if not key.startswith("split.")}
        return whole, Extra(step=checkpoint.metadata.get("general.alignment", 32))
    metadata, extra, notes = metadata_for(source.config, source.folder, [s.plan for s in steps])
    conversion.notes += notes
    return metadata, extra


def _write(  # noqa: PLR0913 - one step, whose pieces these are
    path: Path,
    source: ConvertedSource,
    writer: Writer,
    steps: list[Step],
    conversion: Conversion,
    metadata: dict[str, bytes],
    extra: Extra,
    shard_size: int | None,
    progress: Progress,
) -> None:
    plans = [step.plan for step in steps]
    output: Output
    if writer.one_file:
        same = isinstance(source.checkpoint, GGUF)
        kinds = {step.name: step.kind for step in steps if same}
        plans += [each for step in steps for each in step.beside]
        laid_out = [*plans, *extra.plan], metadata, extra.step, kinds
        name = Path(conversion.target).absolute().name
        if shard_size:
            output = SplitGGUF(path, name, *laid_out, shard_size)
        else:
            output = GGUFFile(path, *laid_out)
    else:
        others = source.other_files()
        output = Directory(path, writer, plans, source.config, others, shard_size)
    try:
        for name, tensor in extra.tensors.items():
            output.write(name, tensor)
        if not isinstance(output, Directory):  # heads are all that its reader needs
            with checkpoint(output.first) as again:
                _stream(source, writer, steps, output, again, conversion, progress)
        else:
            _stream(source, writer, steps, output, None, conversion, progress)
        output.close()
    finally:
        output.abandon()
    if not writer.one_file:
        _prove_all(path, source, steps, conversion)
        (path / LEDGER).write_text(json.dumps(conversion.to_dict(), indent=2) + "\n")


def _stream(  # noqa: PLR0913 - as `_write`
    source: ConvertedSource,
    writer: Writer,
    steps: list[Step],
    output: Output,
    again: Checkpoint | None,
    conversion: Conversion,
    progress: Progress,
) -> None:
    """Each tensor read, carried, written, read back and compared; a few at the same time."""

    def one(step: Step) -> tuple[Step, Converted | None]:
        value = source.read(step.name, bool(step.grid))
        result = _result(step, value)
        output.write(step.name, result)
        if step.beside and isinstance(result, QTensor):
            _write_beside(writer, step, result, output)
        error = error_of(value, result) if step.how == REQUANTIZED else None
        if again is None:
            step.more |= {} if error is None else {"error": error}
            return step, None
        proof = prove(
            step.name, result if error else value, read(again, step.name, bool(step.grid))
        )
        return step, _converted(step, proof.basis, proof.zeros, error)

    with Pool(AT_A_TIME) as pool:
        for step, converted in pool.map(one, steps):
            conversion.tensors += [] if converted is None else [converted]
            progress.advance(step.name, step.bytes_before)


def _write_beside(writer: Writer, step: Step, q: QTensor, output: Output) -> None:
    values = writer.beside(step.name, q)
    for each in step.beside:
        output.write(each.name, values.get(each.name, torch.ones(each.shape)))


def _prove_all(
    path: Path, source: ConvertedSource, steps: list[Step], conversion: Conversion
) -> None:
    """The same for a directory, whose reader wants it complete."""

    def one(step: Step) -> Converted:
        if step.name not in again or again.stored[step.name].unread:
            why = again.stored[step.name].unread if step.name in again else "it is not found"
            raise NotLosslessError(
                f"{quote(step.name)} cannot be read back, so the conversion cannot be "
                f"checked: {why}. The output was deleted",
                {step.name: why},
            )
        value, error = source.read(step.name, bool(step.grid)), step.more.get("error")
        proof = prove(step.name, _result(step, value) if error else value, again[step.name])
        return _converted(step, proof.basis, proof.zeros, error)

    with checkpoint(path) as again, Pool(AT_A_TIME) as pool:
        conversion.tensors += pool.map(one, steps)


def _result(step: Step, value: QTensor | Tensor) -> QTensor | Tensor:
    try:
        return step.become(value)
    except InexactError as error:
        raise NotLosslessError(
            f"{quote(step.name)} cannot be written with the same values: {error}. The output "
            "was deleted",
            {step.name: str(error)},
        ) from None


def _converted(step: Step, basis: str, zeros: int, error: Any = None) -> Converted:
    notes = []
    if zeros:
        notes.append(f"{zeros} zeros changed their sign")
    if step.how == FLOATS:
        notes.append("float32 now")
    notes += [step.more[key] for key in ("reason", "note") if key in step.more]
    return Converted(
        step.name, step.source, step.shape, step.how, step.kind,
        str(step.stored_format or step.kind),
        str(step.target_format or str(step.dtype).removeprefix("torch.")),
        basis, prod(step.shape), step.bytes_before,
        error.relative if error else 0.0, error.sqnr if error else None, tuple(notes),
    )  # fmt: skip


# Where a result goes: written beside it and renamed; what is there stays until then.


def check_target(target: Path, source: Path, one_file: bool, force: bool) -> None:
    """Raise ValueError before any work for a place that cannot be taken.

    A directory that a killed run has put aside is put back first.
    """
    if not one_file and target.absolute().parent.is_dir():
        restore(absolute(target))
    if target.exists() and target.resolve() == source.resolve():
        raise ValueError(f"{target} is the source itself: choose another place for the result")
    if target.is_dir() and target.resolve() in source.resolve().parents:
        raise ValueError(
            f"the source {source} is inside {target}: choose another place for the result"
        )
    if one_file:
        check_place(target, "model.gguf")
    elif target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: name a directory to write, e.g. {target}-converted")
    elif not target.absolute().parent.is_dir():
        raise ValueError(f"{target.parent} is not a directory: create it first")
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not empty and not force:
        raise ValueError(f"{target} exists: choose another place, or replace it with --force")
    if not one_file:
        check_names(absolute(target), ())
        output.check_target(absolute(target), 2 * force)


@contextmanager
def output_place(target: Path, one_file: bool) -> Iterator[Path]:
    """The name under which to write what becomes `target` when the context ends well."""
    if one_file:
        with written_whole(target) as path:
            yield path
        return
    with whole_folder(absolute(target), True) as folder:
        folder.mkdir()
        yield folder


def is_one_file(whole: bool, shard_size: int | None) -> bool:
    """Whether the result is a file. whole: whether it is one where no size of files is set.

    Raises ValueError for a size below one byte.
    """
    if shard_size is not None and shard_size < 1:
        raise ValueError(f"shard_size (bytes of a file) must be >= 1, got {shard_size}")
    return whole and shard_size is None


def bytes_at(target: Path) -> int:
    """Bytes of a file, or of all files of a directory."""
    files = [target] if target.is_file() else target.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
