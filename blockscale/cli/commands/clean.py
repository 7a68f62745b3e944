# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale clean`: what killed runs have left beside an output, and away with it."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from blockscale.core.untrusted import shown
from blockscale.files.directory.leftovers import Leftover, delete, find_leftovers
from blockscale.reporting.table import size


def clean(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="An output (it need not exist) or a folder of them."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what killed runs left behind, and delete it if you agree.

    What another process or user holds, and what may be the only copy of an output, is never
    deleted.
    """
    leftovers = find_leftovers(path)
    if not as_json:
        _show(path, leftovers)
    can = [each for each in leftovers if not each.keep]
    gone_paths: list[Path] = []
    if can and (yes or (not as_json and _confirm(can))):
        gone_paths = [each.path for each in can if delete(each)]
    if as_json:
        data = [each.to_dict() | {"deleted": each.path in gone_paths} for each in leftovers]
        print(json.dumps({"path": str(path), "leftovers": data}, indent=2))
        return
    for each in can if gone_paths else ():
        how = "deleted" if each.path in gone_paths else "in use by now, and not deleted:"
        print(f"{how} {shown(each.path, 4096)}")


def _confirm(can: list[Leftover]) -> bool:
    """Whether the one who asks agrees; nobody does where there is no terminal."""
    total = size(sum(each.nbytes for each in can))
    what = f"{len(can)} of these, {total}"
    if not _is_asked():
        print(f"{what}, can be deleted: say --yes")
        return False
    return typer.confirm(f"Delete {what}?")


def _is_asked() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def _show(path: Path, leftovers: list[Leftover]) -> None:
    if not leftovers:
        print(f"nothing is left beside {shown(path)}, nor in it")
    for each in leftovers:
        print(shown(each.path, 4096))
        about = (each.what, size(each.nbytes), f"changed {_ago(each.seconds)}", f"of {each.owner}")
        fate = f"stays: {each.keep}" if each.keep else "can be deleted"
        print(f"    {', '.join(about)}; {fate}")


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
