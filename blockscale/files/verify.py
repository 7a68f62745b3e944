# SPDX-License-Identifier: BSD-3-Clause
"""Whether a quantized directory is what its ledger says, file by file, and can be made again."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import (
    LARGEST,
    FileError,
    json_object,
    open_regular,
    quote,
    read_json,
    shown,
)
from blockscale.core.work import Progress
from blockscale.files.directory.beside import again_path
from blockscale.files.directory.folder import hold_lock
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.directory.swap import discard

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Verification:
    """What was found: {file: its bytes} of those that are as the ledger says, and {file: what is
    wrong with it} of the others."""

    path: Path
    proved: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"path": str(self.path), "proved": self.proved, "wrong": self.wrong}


def verify(path: str | Path, progress: Progress | None = None) -> Verification:
    """Compare every file of a directory that `quantize_directory` wrote with its ledger.

    The ledger has the size and SHA-256 of each file, shards as they were when they were finished.
    Missing and changed files are wrong, and so is a file that the ledger does not list. It proves
    that nothing changed since; who changes the ledger as well can make it say anything, so keep its
    own digest where that matters.

    Raises FileError for a directory without a ledger, and one of a release before there were
    digests (0.1.0), of which nothing can be proved.
    """
    path, progress = Path(path), progress or Progress()
    entries = _entries(path)
    progress.start(sum(size for size, _ in entries.values()), 0)
    result = Verification(path)
    for name, (size, digest) in entries.items():
        if reason := _wrong(path / name, size, digest, progress):
            result.wrong[name] = reason
        else:
            result.proved[name] = size
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if not (file.is_dir() and not file.is_symlink()) and name not in entries and name != LEDGER:
            result.wrong[name] = "is not in the ledger"
    return result


def reproduce(
    path: str | Path, source: str | Path, progress: Progress | None = None
) -> Verification:
    """Quantize the float model in `source` again as the ledger of `path` says, and compare.

    The same source, recipe, seed and release give the same bytes, on any number of threads and any
    processor. The files of `path` are verified first: where something is wrong, nothing is made.
    What is made lies beside `path` meanwhile, and takes as much space.

    Raises as `verify` and `quantize_directory`: also for a directory of release 0.1.0, whose ledger
    has no digests to compare with.
    """
    path, progress = Path(path), progress or Progress()
    result = verify(path, progress)
    if result.wrong:
        return result
    ledger = _ledger(path)
    try:
        recipe, seed = Recipe.from_dict(ledger["recipe"]), ledger["seed"]
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path / LEDGER} has no recipe and seed ({error!r})") from None
    if recipe.calibration is not None:
        raise FileError(
            f"{path} was calibrated ({recipe.calibration}), which its recipe and the float model "
            "do not repeat by themselves: run the same `blockscale quantize --calibrate` again, "
            "and compare with `blockscale compare`"
        )
    if type(seed) is not int:
        raise FileError(f"{path / LEDGER} has the seed {quote(seed)}, which is not an integer")
    folder = again_path(path.absolute())
    with hold_lock(folder):
        try:
            quantize_directory(source, folder / "out", recipe, seed=seed, progress=progress)
            again, now = _entries(folder / "out"), _releases(_ledger(folder / "out"))
        finally:
            discard(folder)
    then = _releases(ledger)
    how = "" if then == now else f" (by {now}; the ledger is of {then})"
    return _compare(path, _entries(path), again, how)


def _compare(
    path: Path, entries: dict[str, tuple[int, str]], again: dict[str, tuple[int, str]], how: str
) -> Verification:
    result = Verification(path)
    for name in sorted(entries.keys() | again.keys()):
        if name not in again or name not in entries:
            there = (
                "was not reproduced"
                if name in entries
                else ("was reproduced, but is not in the ledger")
            )
            result.wrong[name] = there + how
        elif entries[name] != again[name]:
            result.wrong[name] = "was reproduced with different bytes" + how
        else:
            result.proved[name] = entries[name][0]
    return result


def _releases(ledger: dict[str, Any]) -> str:
    """What a ledger says that it was written by."""
    return f"blockscale {shown(ledger.get('blockscale'))}, torch {shown(ledger.get('torch'))}"


def _ledger(path: Path) -> dict[str, Any]:
    if not (path / LEDGER).is_file():
        raise FileError(f"{path} has no {LEDGER}: blockscale did not quantize this directory")
    return json_object(read_json(path / LEDGER, most=LARGEST), path / LEDGER)


def _entries(path: Path) -> dict[str, tuple[int, str]]:
    """{file: (bytes, SHA-256)} of a ledger. Raises FileError where it lists none."""
    ledger = _ledger(path)
    if "files" not in ledger:
        raise FileError(
            f"{path / LEDGER} has no digests: release 0.1.0 wrote it, which stored none. "
            f"Nothing in {path} can be verified or reproduced: quantize the float model again"
        )
    entries = {}
    for name, entry in json_object(ledger["files"], "its files").items():
        about = json_object(entry, f"the entry of {quote(name)}")
        size, digest = about.get("bytes"), about.get("sha256")
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or name.startswith("/") or "\\" in name or "\0" in name:
            raise FileError(f"{path / LEDGER} lists {quote(name)}, which is not in the directory")
        if type(size) is not int or not isinstance(digest, str) or len(digest) != 64:
            raise FileError(f"{path / LEDGER}: {quote(name)} has no size and SHA-256")
        entries[name] = size, digest
    if not any(name.endswith(".safetensors") for name in entries):
        raise FileError(f"{path / LEDGER} lists no file of weights, so there is nothing to verify")
    return entries


def _wrong(file: Path, size: int, digest: str, progress: Progress) -> str:
    """What is wrong with a file; empty where nothing is."""
    if not os.path.lexists(file):
        return "is missing"
    if file.is_symlink():
        return "is a link, expected a file"
    try:
        descriptor = open_regular(file)
    except (FileError, OSError):
        return "is not a readable regular file"
    with os.fdopen(descriptor, "rb") as data:
        there = os.fstat(data.fileno()).st_size
        if there != size:
            return f"has {there:,} bytes, of {size:,}"
        sum_of = hashlib.sha256()
        while chunk := data.read(_CHUNK):
            sum_of.update(chunk)
            progress.advance(file.name, len(chunk))
    return "" if sum_of.hexdigest() == digest else "has different bytes"
