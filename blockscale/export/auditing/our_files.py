# SPDX-License-Identifier: BSD-3-Clause
"""safetensors files and directories: ours by their metadata, those of compressed-tensors and NVIDIA
ModelOpt by their config; and C files of ours: the constant arrays, by the names of the nodes that
read them."""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from blockscale.core.joined_weights import groups
from blockscale.core.ledger import Entry
from blockscale.core.untrusted import json_object, read_json
from blockscale.export.auditing.entries import DamagedError, FileTensor, ReadBudget, entry
from blockscale.files.inspect import inspect
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import open_file

_BESIDE = (
    "weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape", "input_scale",
    "input_zero_point", "input_global_scale", "weight_scale_2",
)  # fmt: skip
_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4")  # names of its methods
_METHODS = ("compressed-tensors", *_MODELOPT)


def entries(path: Path) -> list[Entry]:
    """The entries of a safetensors file or a directory of them. Raises FileError."""
    contents = inspect(path)
    config = _config(path)
    rows = {row.name: row for row in contents.rows}
    if config is None:
        return [_ours(row) for row in rows.values()]
    results, notes = [], disagreements(path)
    for name, row in rows.items():
        layer, _, last = name.rpartition(".")
        if last in _BESIDE and (f"{layer}.weight_scale" in rows):
            continue
        stored = FileTensor(name, row.format, row.shape, 8, row.nbytes)
        has_codes = last in ("weight_packed", "weight") and f"{layer}.weight_scale" in rows
        if has_codes:
            bits = _bits(config, row.format)
            packed = last == "weight_packed" or row.format == "uint8"
            stored.elements = row.nbytes * 8 // bits if packed else row.elements
            stored.name, stored.low, stored.bits = f"{layer}.weight", True, bits
            stored.format = f"{config.get('format') or config.get('quant_algo')} {bits} bits"
            stored.notes = tuple(filter(None, [notes.get(layer)]))
            stored.parts = sum(
                rows[f"{layer}.{p}"].nbytes for p in _BESIDE if f"{layer}.{p}" in rows
            )
            stored.reader = "decoded by transformers; vLLM has kernels"
        results.append(entry(stored))
    return results


def _ours(row: Any) -> Entry:
    if row.quantized:
        return Entry(
            row.name.removesuffix(".weight"), "weight", "quantized", weight=row.format,
            input=row.input, output=row.output, elements=row.elements,
            bytes_before=4 * row.elements, bytes_after=row.nbytes, details="read by blockscale",
        )  # fmt: skip
    return entry(FileTensor(row.name, row.format, row.shape, 8, row.nbytes))


def _config(path: Path) -> Any:
    """`quantization_config` of compressed-tensors or ModelOpt, or None."""
    file, modelopts = path / "config.json", path / "hf_quant_config.json"
    if not path.is_dir() or not (file.is_file() or modelopts.is_file()):
        return None
    result = _object(file).get("quantization_config") if file.is_file() else None
    if result is None and modelopts.is_file():  # ModelOpt wrote it alone before it wrote both
        value = _object(modelopts).get("quantization")
        return (value if isinstance(value, dict) else {}) | {"quant_method": _MODELOPT[0]}
    is_known = isinstance(result, dict) and result.get("quant_method") in _METHODS
    return result if is_known else None


def _object(file: Path) -> Any:
    return json_object(
        read_json(file, unique_keys=False, finite=False), file
    )  # as transformers takes it


def _bits(config: Any, stored: str) -> int:
    """Bits of a code: the config's, where groups agree; a byte where codes are stored plain."""
    if config["quant_method"] in _MODELOPT:
        return 4 if stored == "uint8" else 8
    try:
        groups = config["config_groups"].values()
        bits = {int(group["weights"]["num_bits"]) for group in groups}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"config.json: bad quantization arguments: {error!r}") from None
    if stored not in ("int32", "uint8"):
        return 8
    return min(max(bits, default=8), 32) or 8


# Files for servers whose joined layers disagree: query, key and value under several outer scales.
#
# compressed-tensors has `weight_global_scale` and `input_global_scale` (or `input_scale`) for
# each layer, NVIDIA ModelOpt `weight_scale_2` and `input_scale`. A server that joins such layers
# keeps one of them (blockscale.core.joined_weights), so that the codes of the others mean other
# numbers there.


WEIGHTS = ("weight_global_scale", "weight_scale_2")
INPUTS = ("input_global_scale", "input_scale")


def disagreements(path: Path) -> dict[str, str]:
    """{layer: what is to be noted of it} of a directory's layers."""
    numbers: dict[str, dict[str, float]] = {}
    for name, number in _scalars(path):
        layer, _, part = name.rpartition(".")
        numbers.setdefault(part, {})[layer] = number
    table: dict[str, list[str]] = {}
    for part, of_layers in numbers.items():
        for group in groups(of_layers):
            some = {layer: of_layers[layer] for layer in group}
            if len({*some.values()}) > 1:
                for layer in group:
                    table.setdefault(layer, []).append(_note(layer, part, some))
    return {layer: "; ".join(notes) for layer, notes in table.items()}


def _note(layer: str, part: str, numbers: dict[str, float]) -> str:
    others = ", ".join(
        f"{other.rpartition('.')[2]} {number:.4g}"
        for other, number in numbers.items()
        if other != layer
    )
    what = "codes get" if part in WEIGHTS else "inputs are rounded to"
    return (
        f"its {part} is {numbers[layer]:.4g}, beside {others}: servers that join these layers "
        f"(vLLM, SGLang) keep only one, with which its {what} wrong values"
    )


def _scalars(path: Path) -> Iterator[tuple[str, float]]:
    for file in sorted(path.glob("*.safetensors")):
        with open_file(file) as reader:
            for name in reader.keys():  # noqa: SIM118 - it is no mapping
                if name.endswith((*WEIGHTS, *INPUTS)) and _is_one(
                    reader.get_slice(name).get_shape()
                ):
                    yield name, float(reader.get_tensor(name).float().reshape(()))


def _is_one(shape: list[int]) -> bool:
    return prod(shape) == 1


C_HEAD = b"/* An integer model in C99, written by blockscale."
_ARRAY = re.compile(rb"^static const (u?int(8|16|32|64))_t (c\d+_\w+)\[(\d+)\] = \{$", re.M)
_FLOATS = re.compile(rb"\b(?:float|double)\b|\b\d+\.\d*|\b\d+[eE]-?\d+\b")
_WEIGHT = re.compile(r"^c\d+_(?:integers_)?(\w+)_weight(?:_(\d+))?$")


def c_tensors(data: memoryview) -> list[FileTensor]:
    """The constants of a file. Raises DamagedError for one that is cut short, whose arrays do not
    have the elements that they state, or that computes with floats."""
    text = bytes(data)
    if not text.endswith(b"}\n"):
        raise DamagedError("it has no end mark of blockscale's C files: it was cut short")
    if match := _FLOATS.search(text, text.find(b"#include")):
        line = text.count(b"\n", 0, match.start()) + 1
        raise DamagedError(f"its line {line} has the float {match[0].decode()!r}")
    budget, results = ReadBudget(), []
    for each in _ARRAY.finditer(text):
        budget.take()
        results.append(_c_array(text, each))
    return results


def _c_array(text: bytes, match: re.Match[bytes]) -> FileTensor:
    ctype, name = match[1].decode(), match[3].decode()
    bits, size = int(match[2]), int(match[4])
    end = text.find(b"};", match.end())
    count = text.count(b",", match.end(), end if end >= 0 else len(text))
    if count != size:
        raise DamagedError(f"{name} has {count} elements, its header says {size}")
    weight = _WEIGHT.match(name)
    low = weight is not None and not weight[1].rpartition("_default")[0].endswith("_norm")
    stored = FileTensor(
        name, ctype, (size,), bits, size * bits // 8, low=low,
        reader="in integers" if low else "",
    )  # fmt: skip
    if low and weight is not None:
        stored.name = ".".join(filter(None, weight.groups()))
    return stored
