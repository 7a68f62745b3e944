# SPDX-License-Identifier: BSD-3-Clause
"""The audit: what in a file is really low-bit, read from its bytes; nothing of it is executed."""

import zipfile
from dataclasses import replace
from pathlib import Path

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.parse import parse
from blockscale.export.auditing import onnx_file, our_files, pt2_file, pte_file
from blockscale.export.auditing.entries import DamagedError, FileTensor, file_bytes, join_parts
from blockscale.export.auditing.entries import entry as entry_of
from blockscale.files.metadata import FileError

# audit: a ledger of a file, made from the file alone.

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
        result = _entries(path)
    except (DamagedError, MemoryError, OverflowError) as error:
        raise FileError(f"{path} cannot be audited: {error}") from None
    output = Ledger(result)
    return output if ledger is None else comparison(output, ledger)


def _entries(path: Path) -> list[Entry]:
    if path.is_dir() or path.suffix == ".safetensors":
        return our_files.entries(path)
    return [entry_of(each) for each in join_parts(_tensors(path))]


def _tensors(path: Path) -> list[FileTensor]:
    with file_bytes(path) as data:
        start = bytes(data[:8])
        if start[4:8] == pte_file.IDENTIFIER:
            return pte_file.tensors(data)
        if start[:2] == b"PK" or zipfile.is_zipfile(path):
            return pt2_file.tensors(path)
        if data[: len(our_files.C_HEAD)] == our_files.C_HEAD:
            return our_files.c_tensors(data)
        if path.suffix in (".pt2", ".pte"):
            raise DamagedError(f"it does not begin as {path.suffix} files do")
        if path.suffix == ".onnx":
            return onnx_file.tensors(data, path)
    raise FileError(f"{path}: unrecognised file format; an audit reads {KINDS}")


# A ledger's words beside what a file holds.


def comparison(file_ledger: Ledger, expected: Ledger) -> Ledger:
    """The ledger of a file, where weights that are not as `told` says are "skipped".

    Files without names (.pte) are compared by how many weights of a size are in codes.
    """
    entries = {entry.name: entry for entry in file_ledger}
    targets = [entry for entry in expected.quantized if entry.weight]
    if not any(_name(entry, entries) for entry in targets):
        return _by_size(file_ledger, targets)
    by_name = {entry.name: entry for entry in file_ledger}
    for entry in targets:
        name = _name(entry, by_name)
        if name is None:
            by_name[entry.name] = _skip(entry, "the file has no weight of this name")
        elif reason := _reason(entry, by_name[name]):
            by_name[name] = replace(
                by_name[name], status="skipped", reason=f"its ledger says {entry.weight}: {reason}"
            )
    return Ledger(list(by_name.values()), expected.unmatched)


def _name(entry: Entry, entries: dict[str, Entry]) -> str | None:
    """What a file calls the weight of a layer: as its codes, or as the tensor that it is."""
    names = (entry.name, f"{entry.name}.weight", f"{entry.name}.weight.codes")
    return next((name for name in names if name in entries), None)


def _reason(expected: Entry, entry: Entry) -> str:
    """Why a weight of a file is not what is said of it, or nothing."""
    if entry.status != "quantized":
        return entry.reason
    bits = parse(expected.weight).bits
    stored = 8 * entry.bytes_after / max(expected.elements or entry.elements, 1)
    if stored >= 32 or stored > max(2 * bits, 10) + 16:
        return f"the file takes {stored:.1f} bits of an element"
    return ""


def _by_size(ledger: Ledger, expected: list[Entry]) -> Ledger:
    """Each weight that was promised takes one in codes of its size, as stored."""
    results = sorted(entry.elements for entry in ledger.quantized)
    missing = []
    for entry in sorted(expected, key=lambda entry: entry.elements):
        bits = parse(entry.weight).bits
        sizes = [entry.elements, entry.elements * bits // 8]  # one a code, or packed in bytes
        size = next((each for each in results if any(_fits(each, size) for size in sizes)), None)
        if size is not None:
            results.remove(size)
        elif entry.elements:
            why = f"the file has no quantized weight of {entry.elements:,} elements"
            missing.append(_skip(entry, f"its ledger says {entry.weight}: {why}"))
    return Ledger([*ledger.entries, *missing])


def _fits(stored: int, number: int) -> bool:
    """Whether it may be the size of a weight: ledgers of layers count the bias, too."""
    return 0 <= number - stored <= stored // 8


def _skip(entry: Entry, reason: str) -> Entry:
    return replace(entry, status="skipped", reason=reason, bytes_after=0)
