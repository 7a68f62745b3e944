# SPDX-License-Identifier: BSD-3-Clause
"""What can be known of an output before any work for it: its place, names, rights, room.

Everything here raises FileError with what to do; nothing is written.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from blockscale.core.untrusted import FileError, open_regular, quote
from blockscale.files.directory.beside import gone_path, old_path, work_path
from blockscale.files.directory.folder import disk_bytes, is_empty_folder, mounts_in
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.directory.plan import DirectoryPlan
from blockscale.files.directory.workspace import PARTIAL

_NAME, _PATH = 255, 4096  # bytes, where the system does not say


def absolute(path: str | Path) -> Path:
    """Without dots, but a link stays a link: what it leads to is not ours to replace."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def resolve(path: Path) -> Path:
    """With links followed as far as they lead somewhere: Path.resolve fails on one to itself."""
    return Path(os.path.realpath(path))


def check_apart(source: Path, target: Path) -> None:
    """Neither directory may lie in the other: one is read and one may be replaced."""
    source, target = resolve(source), resolve(target)
    if source == target or source in target.parents or target in source.parents:
        raise FileError(
            f"the output {target} and the model {source} are the same or one holds the other: "
            f"choose an output elsewhere"
        )


def check_output(target: str | Path, plan: DirectoryPlan, force: int) -> None:
    """Raise FileError if the plan's result cannot become `target`, or a file cannot be copied."""
    goal = absolute(target)
    check_names(goal, (*(shard.name for shard in plan.shards), *plan.files.others))
    check_target(goal, force)
    for name in plan.files.others:
        _check_readable(plan.files.root / name)
    _check_space(goal, plan)


def has_ledger(target: Path) -> bool:
    """Whether a directory is one that `quantize_directory` has written."""
    return (target / LEDGER).is_file()


def check_target(target: Path, force: int, ours: Callable[[Path], bool] = has_ledger) -> None:
    """Raise FileError if a directory cannot appear at a path.

    force: may replace what is there; 2: also what is not `ours`
    """
    _check_parent(target)
    if not os.path.lexists(target):
        return
    if target.is_symlink():
        if not force:
            raise FileError(
                f"{target} is a link, to {quote(str(target.readlink()))}: name the directory that "
                f"it leads to, or replace the link with --force (force=True)"
            )
    elif not target.is_dir():
        raise FileError(f"{target} is not a directory: choose another output")
    if mounts := mounts_in(target):
        raise FileError(
            f"{mounts[0]} is a mount point, which cannot be renamed or must not be deleted: "
            f"choose another output, such as a new folder inside it"
        )
    _check_sticky(target)
    if not is_empty_folder(target):
        _check_occupied(target, force, ours)


def _check_occupied(target: Path, force: int, ours: Callable[[Path], bool]) -> None:
    if not force:
        raise FileError(
            f"{target} exists: choose another output, or replace it with --force (force=True)"
        )
    for place in (Path.home(), Path.cwd()):
        if resolve(target) in (place, *place.parents):
            raise FileError(
                f"{target} holds {place}, which --force would delete: choose another output"
            )
    if force < 2 and not ours(target):
        raise FileError(
            f"{target} was not written by blockscale (it has no {LEDGER} or other mark of it), and "
            f"--force would delete it: choose another output, or say --force twice (force=2)"
        )


def _there(target: Path) -> Path:
    """The nearest folder above a target that is there."""
    return next(folder for folder in target.parents if os.path.exists(folder))  # noqa: PTH110 - too long a name is no error


def _check_parent(target: Path) -> None:
    there = _there(target)
    if not there.is_dir():
        raise FileError(f"{there} is not a directory: choose another output")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(f"nothing can be written in {there}: choose another output")


def _check_sticky(target: Path) -> None:
    """In a folder such as /tmp only a file's owner, or the folder's, may rename it."""
    parent, me = target.parent.stat(), os.geteuid()
    if parent.st_mode & stat.S_ISVTX and me not in (0, parent.st_uid, target.lstat().st_uid):
        raise FileError(
            f"{target} belongs to another user, and you may not rename it in {target.parent}: "
            "choose another output"
        )


def check_names(target: Path, files: Iterable[str]) -> None:
    """Raise FileError where a name that a run needs is longer than the disk takes.

    files: of the target, relative to it.
    """
    there = _there(target)
    most, whole = _limit(there, "PC_NAME_MAX", _NAME), _limit(there, "PC_PATH_MAX", _PATH)
    work = work_path(target, "0" * 8)
    beside = (old_path(target, "0" * 8), gone_path(target, "0" * 8))
    for path in (*beside, *(work / "out" / f"{name}{PARTIAL}" for name in files)):
        for part in path.relative_to(there).parts:
            if (size := len(os.fsencode(part))) > most:
                output = target.name if path in beside else part.removesuffix(PARTIAL)
                raise FileError(
                    f"the name {quote(output)} is too long: a run needs a file {quote(part)} "
                    f"of {size} bytes, and names on the disk of {there} have at most {most}; "
                    "choose a shorter one"
                )
        if (size := len(os.fsencode(path))) >= whole:
            raise FileError(
                f"the path {quote(str(path))} has {size} bytes, and paths have at most "
                f"{whole - 1} on this system: choose a shorter path"
            )


def _limit(folder: Path, name: str, usual: int) -> int:
    try:
        return os.pathconf(folder, name)
    except (OSError, ValueError):
        return usual


def _check_readable(path: Path) -> None:
    try:
        os.close(open_regular(path))
    except OSError as error:
        raise FileError(
            f"{path} cannot be read ({error.strerror}), and it has to be copied to the "
            "output: make it readable, or move it away"
        ) from None


def _check_space(target: Path, plan: DirectoryPlan) -> None:
    there = _there(target)
    size = plan.size - disk_bytes(work_path(target, plan.digest))
    free = shutil.disk_usage(there).free
    if size > free:
        raise FileError(
            f"the output needs {size / 1e9:.2f} GB, the disk of {there} has {free / 1e9:.2f} GB "
            f"free: make room for {(size - free) / 1e9:.2f} GB, or write to another disk"
        )
