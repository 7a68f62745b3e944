"""Where a result goes: written beside it and renamed; what is there stays until then."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockscale.files.directory import output
from blockscale.files.directory.output import absolute, check_names
from blockscale.files.directory.swap import restore, whole_folder
from blockscale.files.whole import check_place, written_whole


def check_target(target: Path, source: Path, one_file: bool, force: bool) -> None:
    """Raise ValueError before any work for a place that cannot be taken.

    A directory that a killed run has put aside is put back first.
    """
    if not one_file and target.absolute().parent.is_dir():
        restore(absolute(target))
    if target.exists() and target.resolve() == source.resolve():
        raise ValueError(f"{target} is what is converted: name another place for the result")
    if target.is_dir() and target.resolve() in source.resolve().parents:
        raise ValueError(f"{source} lies in {target}: name another place for the result")
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
def written(target: Path, one_file: bool) -> Iterator[Path]:
    """The name under which to write what becomes `target` when the context ends well."""
    if one_file:
        with written_whole(target) as path:
            yield path
        return
    with whole_folder(absolute(target), True) as folder:
        folder.mkdir()
        yield folder


def is_one_file(whole: bool, shard_size: int | None) -> bool:
    """Whether the result is a file. whole: whether it is where nobody asks for files of a size.

    Raises ValueError for a size below one byte.
    """
    if shard_size is not None and shard_size < 1:
        raise ValueError(f"files have at least one byte, not {shard_size}")
    return whole and shard_size is None


def bytes_at(target: Path) -> int:
    """Bytes of a file, or of all files of a directory."""
    files = [target] if target.is_file() else target.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
