# SPDX-License-Identifier: BSD-3-Clause
"""Quantize a model's directory, a slab of a tensor at a time, into another directory.

Nothing is written before everything is planned and checked, and the target appears whole or not at
all. Whatever ends a run early, the source and an old target stay as they were, and the next run
goes on from there.
"""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.recipe import Recipe
from blockscale.core.work import Progress
from blockscale.files.directory.beside import beside, read_name, work_path
from blockscale.files.directory.folder import is_own, sync_folder
from blockscale.files.directory.journal import Digests, file_digest
from blockscale.files.directory.model_files import CONFIG, LEDGER
from blockscale.files.directory.output import absolute, check_apart, check_names, check_output
from blockscale.files.directory.plan import DirectoryLedger, DirectoryPlan, make_plan
from blockscale.files.directory.shard import (
    Quantize,
    check_source,
    finished_bytes,
    write_shard,
)
from blockscale.files.directory.swap import is_done, restore
from blockscale.files.directory.tops import Tops, joined_in
from blockscale.files.directory.workspace import PARTIAL, Workspace
from blockscale.files.metadata import KEY, VERSION, FileError
from blockscale.files.slabs.pool import Pool
from blockscale.files.stored_model import INDEX
from blockscale.layers.apply import without_data


def quantize_directory(  # noqa: PLR0913 - the first three are the call, the rest are options
    source: str | Path,
    target: str | Path,
    recipe: Recipe | Format | Mapping[str, Any] | str | Path,
    *,
    force: int = 0,
    strict: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> DirectoryLedger:
    """Quantize the safetensors of directory `source` into directory `target` (docs/files.md).

    Memory does not grow with the model: a slab of a tensor is held at a time, a whole one where its
    layout or format asks for it. Run it again after it was stopped or killed, and it goes on.

    recipe: see bs.Recipe; its patterns are matched with the names of tensors and of their layers.
    force: replace `target` if it is there, once the new one is complete; 2 to replace a directory
        that blockscale has not written.
    strict: raise SkippedError, before anything is written, if something that the recipe covers
        cannot be quantized or a pattern matches nothing.
    seed: for stochastic rounding.
    progress: is told of each tensor and its bytes (`blockscale.core.work.Progress`).

    Returns the ledger, which `target` also holds as blockscale_ledger.json. Raises FileError for
    directories and files that cannot be used, ValueError for a recipe that quantizes nothing.
    """
    progress = progress or Progress()
    plan = plan_directory(source, target, recipe, strict=strict, seed=seed)
    return run_plan(plan, absolute(target), force, progress, write_shards)


Write = Callable[[DirectoryPlan, Workspace, Progress], None]  # all shards, into a work directory


def run_plan(
    plan: DirectoryPlan, goal: Path, force: int, progress: Progress, write: Write
) -> DirectoryLedger:
    """Carry a plan out and publish its result; what is finished is kept where that fails."""
    if restore(goal):
        progress.say(f"{goal} is back in its place: a forced run was killed while it replaced it")
    check_output(goal, plan, force)
    _tell_leftovers(goal, plan, progress)
    with Workspace(goal, plan.digest) as work:
        with explain_full_disk(goal):
            try:
                ledger = _fill(plan, work, progress, write)
            except BaseException as error:
                if not isinstance(error, FileError):
                    progress.say(
                        f"finished parts are kept in {work.path}: run the same command again to "
                        "continue"
                    )
                raise
        work.publish(force)
    ledger.warn()
    return ledger


@contextmanager
def explain_full_disk(goal: Path) -> Iterator[None]:
    """Raise FileError where there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FileError(f"the disk of {goal.parent} is full: make room on it") from error
        raise


def _tell_leftovers(goal: Path, plan: DirectoryPlan, progress: Progress) -> None:
    """Say what lies beside the output that no run has put away, this plan's own work excepted."""
    for other in beside(goal):
        side_file = read_name(other)
        if side_file is None or other == work_path(goal, plan.digest):
            continue
        what = "left from an earlier run"
        if not is_own(other):
            what = "another user's, and was not touched"
        elif side_file.kind == "old" and not is_done(other):
            what = f"what {goal} was before a forced run that was killed, maybe the only copy"
        progress.say(f"{other} is {what} (blockscale clean {goal} lists what can be deleted)")


def plan_directory(
    source: str | Path,
    target: str | Path,
    recipe: Recipe | Format | Mapping[str, Any] | str | Path,
    *,
    strict: bool = False,
    seed: int = 0,
) -> DirectoryPlan:
    """What `quantize_directory` would do; reads headers, writes nothing, raises what it would."""
    source, goal = Path(source), absolute(target)
    check_apart(source, goal)
    check_names(goal, ())
    recipe, notes = without_data(Recipe.read(recipe), strict=strict)
    plan = make_plan(source, recipe, seed, notes)
    if strict:
        plan.ledger.raise_if_skipped()
    return plan


def start_progress(plan: DirectoryPlan, work: Workspace, progress: Progress) -> None:
    """Tell how much there is to do, and how much of it is done."""
    total = sum(tensor.source.nbytes for shard in plan.shards for tensor in shard.tensors)
    progress.start(total, sum(finished_bytes(shard, work) for shard in plan.shards))


def write_shards(plan: DirectoryPlan, work: Workspace, progress: Progress) -> None:
    """Write every shard by this process alone."""
    start_progress(plan, work, progress)
    with Pool() as pool, Digests() as digests, subnormals_kept():
        tops = Tops(plan.files.root, joined_in(plan.shards), pool.map)
        quantize = Quantize(plan.seed, pool.map, tops)
        for shard in plan.shards:
            write_shard(plan, shard, work, quantize, digests, progress)
        digests.settle(wait=True)


def _fill(
    plan: DirectoryPlan, work: Workspace, progress: Progress, write: Write
) -> DirectoryLedger:
    """Write everything into the work directory."""
    write(plan, work, progress)
    notes: dict[str, tuple[str, ...]] = {}
    for shard in plan.shards:
        notes |= work.journal.finished_tensors(shard.name)
    texts = texts_of(plan)
    work.drop_all_but({shard.name for shard in plan.shards})
    for name in plan.files.others:
        _copy(plan.files.root / name, work.out / name)
    for name, data in texts.items():
        _write(work.out / name, data)
    entries = [replace(entry, notes=notes[entry.name]) for entry in plan.ledger]
    ledger = replace(plan.ledger, entries=entries)
    text = as_json(about(plan, work, [*texts]) | ledger.to_dict())
    for shard in plan.shards:  # also those that were finished while another was read
        check_source(plan, shard)
    _write(work.out / LEDGER, text)  # the last one: with it, the result is complete
    for folder in (work.out, *(path for path in work.out.rglob("*") if path.is_dir())):
        sync_folder(folder)
    return ledger


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: Path, target: Path) -> None:
    """Copy a file, links followed; what an earlier run has copied may have changed since."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}{PARTIAL}")
    shutil.copy2(source, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(target)


# What a run writes besides weights: config, index, and what the ledger says of the run itself.


def texts_of(plan: DirectoryPlan) -> dict[str, bytes]:
    """{file: its text} of what is written anew, but for the ledger."""
    texts: dict[str, bytes] = {}
    files = plan.files
    if files.config is not None:
        # No "quant_method": transformers refuses a model without it, but fills the weights of one
        # whose method it does not know with random numbers, after a warning (measured with 5.23).
        method = {"method": KEY, "version": VERSION, "recipe": plan.recipe.to_dict()}
        texts[CONFIG] = as_json(files.config | {"quantization_config": method})
    if files.index is not None:
        where = {name: shard.name for shard in plan.shards for name in shard.layout}
        size = sum(tensor.nbytes for shard in plan.shards for tensor in shard.layout.values())
        metadata = (files.index.get("metadata") or {}) | {"total_size": size}
        weight_map = dict(sorted(where.items()))
        texts[INDEX] = as_json(files.index | {"metadata": metadata, "weight_map": weight_map})
    return texts


def about(plan: DirectoryPlan, work: Workspace, texts: list[str]) -> dict[str, Any]:
    """What the ledger says besides: what is needed to quantize again, and to prove the files."""
    files = {
        name: {"bytes": (work.out / name).stat().st_size, "sha256": digest}
        for name, digest in sorted(_digests(plan, work, texts).items())
    }
    sources = {
        shard.name: {"bytes": shard.stamp[0], "mtime_ns": shard.stamp[1]} for shard in plan.shards
    }
    return {
        "version": VERSION, "source": str(plan.files.root), "recipe": plan.recipe.to_dict(),
        "seed": plan.seed, "blockscale": sys.modules["blockscale"].__version__,
        "torch": torch.__version__,
        "sources": sources, "files": files,
    }  # fmt: skip


def _digests(plan: DirectoryPlan, work: Workspace, texts: list[str]) -> dict[str, str]:
    """{file: SHA-256} of all but the ledger: of shards as they were finished, of others now."""
    shards = {shard.name: work.journal.digest(shard.name) for shard in plan.shards}
    assert all(shards.values())
    return {name: str(digest) for name, digest in shards.items()} | {
        name: file_digest(work.out / name) for name in (*plan.files.others, *texts)
    }


def as_json(data: Mapping[str, Any]) -> bytes:
    """JSON as people read it, of a whole file."""
    return (json.dumps(data, indent=2) + "\n").encode()
