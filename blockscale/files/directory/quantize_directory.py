"""Quantize a model's directory, a slab of a tensor at a time, into another directory.

Nothing is written before everything is planned and checked, and the target appears whole or not at
all. Whatever ends a run early, the source and an old target stay as they were, and the next run
goes on from there.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockscale.core.format import Format
from blockscale.core.progress import Progress
from blockscale.core.recipe import Recipe
from blockscale.files.directory.model_files import CONFIG, LEDGER
from blockscale.files.directory.plan import DirectoryLedger, DirectoryPlan, make_plan, stamp
from blockscale.files.directory.shard import finished_bytes, write_shard
from blockscale.files.directory.workspace import (
    Workspace,
    allocated,
    leftovers,
    restore,
    sync_folder,
    work_path,
)
from blockscale.files.metadata import KEY, VERSION, FileError
from blockscale.files.slabs.pool import Pool
from blockscale.files.stored_model import INDEX


def quantize_directory(  # noqa: PLR0913 - the first three are the call, the rest are options
    source: str | Path,
    target: str | Path,
    recipe: Recipe | Format | Mapping[str, Any] | str | Path,
    *,
    force: bool = False,
    strict: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> DirectoryLedger:
    """Quantize the safetensors of directory `source` into directory `target` (docs/files.md).

    Memory does not grow with the model: a slab of a tensor is held at a time, a whole one where its
    layout or format asks for it. Run it again after it was stopped or killed, and it goes on.

    recipe: see bs.Recipe; its patterns are matched with the names of tensors and of their layers.
    force: replace `target` if it is there, once the new one is complete.
    strict: raise SkippedError, before anything is written, if something that the recipe covers
        cannot be quantized or a pattern matches nothing.
    seed: for stochastic rounding.

    Returns the ledger, which `target` also holds as blockscale_ledger.json. Raises FileError for
    directories and files that cannot be used, ValueError for a recipe that quantizes nothing.
    """
    progress = progress or Progress()
    goal = _absolute(target)
    plan = plan_directory(source, target, recipe, strict=strict, seed=seed)
    if restore(goal, plan.digest):
        progress.say(f"{goal} is back in its place: a forced run was killed while it replaced it")
    check_output(goal, plan, force)
    for other in leftovers(goal, plan.digest):
        progress.say(f"{other} is left from an earlier run: delete it if nothing in it is needed")
    with Workspace(goal, plan.digest) as work:
        try:
            ledger = _fill(plan, work, progress)
        except BaseException as error:
            if not isinstance(error, FileError):
                progress.say(
                    f"what is finished is kept in {work.path}: the same command goes on from there"
                )
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FileError(f"the disk of {goal.parent} is full: make room on it") from error
            raise
        work.publish(force)
    ledger.warn()
    return ledger


def plan_directory(
    source: str | Path,
    target: str | Path,
    recipe: Recipe | Format | Mapping[str, Any] | str | Path,
    *,
    strict: bool = False,
    seed: int = 0,
) -> DirectoryPlan:
    """What `quantize_directory` would do; reads headers, writes nothing, raises what it would."""
    source, goal = Path(source), _absolute(target)
    _check_apart(source.resolve(), goal.resolve())
    plan = make_plan(source, Recipe.read(recipe), seed)
    if strict:
        plan.ledger.raise_if_skipped()
    return plan


def _absolute(path: str | Path) -> Path:
    """Without dots, but a link stays a link: what it leads to is not ours to replace."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _check_apart(source: Path, target: Path) -> None:
    """Neither directory may lie in the other: one is read and one may be replaced."""
    if source == target or source in target.parents or target in source.parents:
        raise FileError(
            f"the output {target} and the model {source} are the same or one holds the other: "
            f"choose an output elsewhere"
        )


def check_output(target: str | Path, plan: DirectoryPlan, force: bool) -> None:
    """Raise FileError if the target is taken, or its disk has no room for what is still to come."""
    goal = _absolute(target)
    _check_target(goal, force)
    _check_space(goal, plan)


def _check_target(target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise FileError(f"{target} is not a directory: choose another output")
    if not any(target.iterdir()):
        return
    if not force:
        raise FileError(
            f"{target} exists: choose another output, or replace it with --force (force=True)"
        )
    for place in (Path.home(), Path.cwd()):
        if target.resolve() in (place, *place.parents):
            raise FileError(
                f"{target} holds {place}, which --force would delete: choose another output"
            )


def _check_space(target: Path, plan: DirectoryPlan) -> None:
    there = next(folder for folder in target.parents if folder.exists())
    needed = plan.size - allocated(work_path(target, plan.digest))
    free = shutil.disk_usage(there).free
    if needed > free:
        raise FileError(
            f"the output needs {needed / 1e9:.2f} GB, the disk of {there} has {free / 1e9:.2f} GB "
            f"free: make room for {(needed - free) / 1e9:.2f} GB, or write to another disk"
        )


def _fill(plan: DirectoryPlan, work: Workspace, progress: Progress) -> DirectoryLedger:
    """Write everything into the work directory."""
    total = sum(tensor.source.nbytes for shard in plan.shards for tensor in shard.tensors)
    progress.start(total, sum(finished_bytes(shard, work) for shard in plan.shards))
    notes: dict[str, tuple[str, ...]] = {}
    with Pool() as pool:
        for shard in plan.shards:
            write_shard(plan, shard, work, pool.map, progress)
            notes |= work.journal.done(shard.name)
    for name in plan.files.others:
        _copy(plan.files.root / name, work.out / name)
    entries = [replace(entry, notes=notes[entry.name]) for entry in plan.ledger]
    ledger = replace(plan.ledger, entries=entries)
    for name, data in _texts(plan, ledger).items():
        _write(work.out / name, (json.dumps(data, indent=2) + "\n").encode())
    for folder in (work.out, *(path for path in work.out.rglob("*") if path.is_dir())):
        sync_folder(folder)
    return ledger


def _texts(plan: DirectoryPlan, ledger: DirectoryLedger) -> dict[str, dict[str, Any]]:
    """{file: its JSON} of what is written anew."""
    texts: dict[str, dict[str, Any]] = {}
    recipe, files = plan.recipe.to_dict(), plan.files
    if files.config is not None:
        # No "quant_method": transformers refuses a model without it, but fills the weights of one
        # whose method it does not know with random numbers, after a warning (measured with 5.23).
        method = {"method": KEY, "version": VERSION, "recipe": recipe}
        texts[CONFIG] = files.config | {"quantization_config": method}
    if files.index is not None:
        where = {name: shard.name for shard in plan.shards for name in shard.placed}
        size = sum(tensor.nbytes for shard in plan.shards for tensor in shard.placed.values())
        metadata = (files.index.get("metadata") or {}) | {"total_size": size}
        texts[INDEX] = files.index | {
            "metadata": metadata,
            "weight_map": dict(sorted(where.items())),
        }
    about = {"version": VERSION, "source": str(files.root), "recipe": recipe, "seed": plan.seed}
    texts[LEDGER] = about | ledger.to_dict()
    return texts


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: Path, target: Path) -> None:
    """Copy a file, links followed, unless an earlier run did and it has not changed since."""
    if target.exists() and stamp(target) == stamp(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    shutil.copy2(source, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(target)
