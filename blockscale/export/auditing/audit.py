"""audit: a ledger of a file, made from the file alone."""

import zipfile
from pathlib import Path

from blockscale.core.ledger import Entry, Ledger
from blockscale.export.auditing import c_file, onnx_file, our_files, pt2_file, pte_file
from blockscale.export.auditing.entries import Stored, entry, gathered
from blockscale.export.auditing.limits import DamagedError, opened
from blockscale.export.auditing.promises import compared
from blockscale.files.metadata import FileError

KINDS = ".onnx, .pt2, .pte, .safetensors, C of ours, or a directory with *.safetensors"


def audit(path: str | Path, ledger: Ledger | None = None) -> Ledger:
    """What is really low-bit in a file, from its bytes: no code of it runs, no pickle is opened.

    path: an ONNX file, one of torch.export or ExecuTorch, a safetensors or C file of ours, or
        a directory of such or in the layout of compressed-tensors or NVIDIA ModelOpt
    ledger: what somebody says of the model (bs.graph.ledger, bs.quantize_); weights that are not
        stored as it says become entries "skipped", with the reason

    Entries: "quantized" for each weight in codes, with its stored type, real bytes and what
    computes with it, and "kept" for every other tensor. `bytes_after` is what the file stores.
    Raises FileError for a file of another kind, or one that is damaged, cut short or too large to
    look at; OSError if it cannot be read.
    """
    path = Path(path)
    try:
        found = _entries(path)
    except (DamagedError, MemoryError, OverflowError) as error:
        raise FileError(f"{path} cannot be audited: {error}") from None
    made = Ledger(found)
    return made if ledger is None else compared(made, ledger)


def _entries(path: Path) -> list[Entry]:
    if path.is_dir() or path.suffix == ".safetensors":
        return our_files.entries(path)
    return [entry(each) for each in gathered(_tensors(path))]


def _tensors(path: Path) -> list[Stored]:
    with opened(path) as data:
        start = bytes(data[:8])
        if start[4:8] == pte_file.IDENTIFIER:
            return pte_file.tensors(data)
        if start[:2] == b"PK" or zipfile.is_zipfile(path):
            return pt2_file.tensors(path)
        if data[: len(c_file.HEAD)] == c_file.HEAD:
            return c_file.tensors(data)
        if path.suffix in (".pt2", ".pte"):
            raise DamagedError(f"it does not begin as {path.suffix} files do")
        if path.suffix == ".onnx":
            return onnx_file.tensors(data, path)
    raise FileError(f"{path} is of no kind that is known here: an audit reads {KINDS}")
