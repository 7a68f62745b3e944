# SPDX-License-Identifier: BSD-3-Clause
"""A new output takes the place of an old one by renames; a kill between two of them loses nothing.

    OUT -> .OUT.blockscale-old-HASH     where something is in its place, and may be replaced
    new -> OUT
    .OUT.blockscale-old-HASH -> .OUT.blockscale-gone-HASH, which is then deleted

`old` is whole as long as it has that name. Whether the second rename was done, the work directory
of the same HASH tells: it holds `out` before and does not afterwards, and holds a journal in both.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blockscale.core.untrusted import FileError
from blockscale.files.directory.beside import (
    any_digest,
    free_name,
    gone_path,
    old_path,
    read_name,
    waiting,
    work_path,
)
from blockscale.files.directory.folder import (
    hold_lock,
    is_empty_folder,
    is_own,
    mounts_in,
    remove,
    sync_folder,
)

OUT, JOURNAL = "out", "journal"  # in a work directory


def put_in_place(target: Path, digest: str, force: bool) -> None:
    """Make `out` of a work directory, whose lock is held, the target; then delete the directory.

    force: replace what is there. Raises FileError if something is there else.
    """
    work, old = work_path(target, digest), None
    if force and os.path.lexists(target):
        old = free_name(old_path(target, digest))
        target.rename(old)
    try:
        (work / OUT).rename(target)
    except OSError as error:
        note = ""
        if old is not None:
            try:
                old.rename(target)
            except OSError:  # another process was faster
                note = f". What was there before is {old}"
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise FileError(
            f"{target} appeared while the model was quantized. The result is complete: "
            f"run the same command with --force, or move {work / OUT} yourself{note}"
        ) from None
    sync_folder(target.parent)
    if old is not None:
        discard(old)
    discard(work)


def check_movable(target: Path, work: Path) -> None:
    """Raise FileError if a directory that is to be replaced cannot be renamed.

    work: of this target, whose lock is held, so that it holds something. No folder takes the place
    of one that does: the attempt changes nothing, and its error says what would be in the way
    (rename(2): EXDEV on a lower layer of an overlay, or under a quota of another project).
    """
    if target.is_symlink() or not target.is_dir() or is_empty_folder(target):
        return
    try:
        os.rename(target, work)  # noqa: PTH104 - the system call, as it is
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return
        reason = error.strerror
    else:
        os.rename(work, target)  # noqa: PTH104 - a disk with rules of its own
        reason = "a folder that was not empty was replaced"
    raise FileError(
        f"{target} cannot be renamed, so it cannot be replaced ({reason}): choose another "
        "output, or move it away yourself"
    )


def discard(path: Path) -> None:
    """Delete something of ours: renamed first, so that half of it never has its name."""
    side_file = read_name(path)
    assert side_file is not None, path
    if side_file.kind != "gone":
        new = free_name(gone_path(path.with_name(side_file.out), side_file.digest))
        path.rename(new)
        path = new
    remove(path)


def is_done(old: Path) -> bool:
    """Whether an output that waits was replaced by a whole one, so that it may be deleted."""
    side_file = read_name(old)
    assert side_file is not None and side_file.kind == "old", old
    target = old.with_name(side_file.out)
    work = work_path(target, side_file.digest)
    there = os.path.lexists(target) and not is_empty_folder(target)
    return there and (work / JOURNAL).is_file() and not os.path.lexists(work / OUT)


def restore(target: Path) -> bool:
    """Undo a forced run that was killed between its two renames, whatever its recipe was.

    Returns whether there was one. Raises FileError where several outputs are aside: their user
    knows which was the last; and where the run that has put it aside is still at work.
    What another user has put there is none of ours.
    """
    aside = [path for path in waiting(target) if is_own(path)]
    if _is_taken(target) or not aside:
        return False
    if len(aside) > 1:
        raise FileError(
            f"{target} does not exist, and interrupted runs with --force left several "
            f"directories that may be it: {', '.join(map(str, aside))}; rename one to "
            f"{target.name}, or move them away"
        )
    side_file = read_name(aside[0])
    assert side_file is not None
    work = work_path(target, side_file.digest)
    had = os.path.lexists(work)
    with hold_lock(work):
        try:
            if _is_taken(target) or not is_own(aside[0]):
                return False  # it was finished or undone before this process had the lock
            with suppress(FileNotFoundError):
                target.rmdir()  # empty
            aside[0].rename(target)
            sync_folder(target.parent)
        finally:
            if not had:
                discard(work)
    return True


def _is_taken(target: Path) -> bool:
    return os.path.lexists(target) and bool(not is_empty_folder(target) or mounts_in(target))


@contextmanager
def whole_folder(target: Path, force: bool) -> Iterator[Path]:
    """A folder, not there yet, that takes the target's place when the context ends well.

    An error inside leaves the target as it was, and nothing beside it. One that comes when all is
    written, such as something else in the target's place, says where the result is.
    """
    digest = any_digest()
    work = work_path(target, digest)
    with hold_lock(work):
        try:
            check_movable(target, work)
            (work / JOURNAL).touch()
            yield work / OUT
        except BaseException:
            discard(work)
            raise
        put_in_place(target, digest, force)
