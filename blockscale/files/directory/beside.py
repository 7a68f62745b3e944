# SPDX-License-Identifier: BSD-3-Clause
"""Names of what a run keeps beside its output OUT, and what each of them is.

.OUT.blockscale-HASH          where the run of a plan works (workspace.py); HASH names the plan
.OUT.blockscale-old-HASH      what OUT was, while the run puts the new one in its place (swap.py)
.OUT.blockscale-gone-HASH     what is being deleted
.OUT.blockscale-again-HASH    a directory that `verify --reproduce` makes again
.OUT.HASH.partial             a file, or another exporter's directory, that is being written
.OUT.HASH.new                 a directory that release 0.1.0 was exporting

Where a name is taken, dashes follow it.
"""

import os
import re
from glob import escape
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

_DIGITS = 8
_OURS = re.compile(r"\.(.+)\.blockscale-(?:(old|gone|again)-)?([0-9a-f]{8})-*", re.DOTALL)
_OTHER = re.compile(r"\.(.+)\.([0-9a-f]{8})\.(partial|new)", re.DOTALL)


class SideFile(NamedTuple):
    """kind: work, old, gone, again, partial or new; out: the name that it is for; digest: HASH."""

    kind: str
    out: str
    digest: str


def read_name(path: Path) -> SideFile | None:
    """What a name says; None for one that is none of ours."""
    if match := _OURS.fullmatch(path.name):
        return SideFile(match[2] or "work", match[1], match[3])
    if match := _OTHER.fullmatch(path.name):
        return SideFile(match[3], match[1], match[2])
    return None


def any_digest() -> str:
    """Of what no plan names."""
    return uuid4().hex[:_DIGITS]


def work_path(target: Path, digest: str) -> Path:
    """The work directory of the plan named `digest`."""
    return _path(target, "", digest)


def old_path(target: Path, digest: str) -> Path:
    """Where the target waits while a new one takes its place."""
    return _path(target, "old-", digest)


def gone_path(target: Path, digest: str) -> Path:
    """Where something is while it is deleted."""
    return _path(target, "gone-", digest)


def again_path(target: Path) -> Path:
    """Where the target is made again, to compare."""
    return _path(target, "again-", any_digest())


def _path(target: Path, kind: str, digest: str) -> Path:
    return target.with_name(f".{target.name}.blockscale-{kind}{digest[:_DIGITS]}")


def free_name(path: Path) -> Path:
    """The path, with as many dashes behind it as it takes for nothing to be there."""
    while os.path.lexists(path):
        path = path.with_name(f"{path.name}-")
    return path


def beside(target: Path) -> list[Path]:
    """What lies beside a target under a name of ours, and is for it."""
    paths = target.parent.glob(f".{escape(target.name)}.*")
    return sorted(path for path in paths if (k := read_name(path)) and k.out == target.name)


def waiting(target: Path) -> list[Path]:
    """What may be the target's only copy: what it was when a forced run began to replace it."""
    return [path for path in beside(target) if (k := read_name(path)) and k.kind == "old"]
