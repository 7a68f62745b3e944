# SPDX-License-Identifier: BSD-3-Clause
"""torch.export's files (.pt2): a zip of JSON and raw bytes; what is pickled in it is not opened."""

import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from blockscale.core.parse import parse
from blockscale.core.untrusted import parse_json
from blockscale.export.auditing.entries import (
    RATIO,
    TEXT,
    DamagedError,
    FileTensor,
    ReadBudget,
    owner,
)

# torch._export.serde.schema.ScalarType of torch 2.13: number -> name, bits
TYPES = {
    1: ("uint8", 8), 2: ("int8", 8), 3: ("int16", 16), 4: ("int32", 32), 5: ("int64", 64),
    6: ("float16", 16), 7: ("float32", 32), 8: ("float64", 64), 9: ("complex32", 32),
    10: ("complex64", 64), 11: ("complex128", 128), 12: ("bool", 8), 13: ("bfloat16", 16),
    28: ("uint16", 16), 29: ("float8_e4m3fn", 8), 30: ("float8_e5m2", 8),
}  # fmt: skip


def tensors(path: Path) -> list[FileTensor]:
    """The weights and constants of a program. Raises DamagedError."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = {part.filename.partition("/")[2]: part for part in archive.infolist()}
            return _tensors(archive, parts)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise DamagedError(f"it is not a complete zip archive: {error}") from None


def _tensors(archive: zipfile.ZipFile, parts: dict[str, zipfile.ZipInfo]) -> list[FileTensor]:
    budget = ReadBudget()
    graph = _json(archive, parts, "models/")
    formats = dict(_formats(graph, budget))
    tensors: list[FileTensor] = []
    for folder, config in (("data/weights/", "weights"), ("data/constants/", "constants")):
        table = _json(archive, parts, folder, f"_{config}_config.json", missing={})
        for name, note in (table.get("config") or {}).items():
            budget.take()
            tensors += _stored(name, note, folder, parts, formats)
    return tensors


def _json(
    archive: zipfile.ZipFile,
    parts: dict[str, zipfile.ZipInfo],
    folder: str,
    ending: str = ".json",
    missing: Any = None,
) -> Any:
    names = [name for name in parts if name.startswith(folder) and name.endswith(ending)]
    if not names:
        if missing is not None:
            return missing
        raise DamagedError(f"it has no {folder}*{ending}: torch.export did not write it")
    part = parts[names[0]]
    if part.file_size > TEXT or part.file_size > RATIO * max(part.compress_size, 1):
        raise DamagedError(f"{part.filename} would be {part.file_size:,} bytes of text")
    try:
        return parse_json(archive.read(part), "it", most=TEXT, finite=False)
    except (ValueError, zipfile.BadZipFile) as error:
        raise DamagedError(f"{part.filename} is not JSON: {error}") from None


def _stored(
    name: str,
    value: Any,
    folder: str,
    parts: dict[str, zipfile.ZipInfo],
    formats: dict[str, tuple[str, str]],
) -> Iterator[FileTensor]:
    try:
        meta, file, is_pickle = value["tensor_meta"], value["path_name"], value["use_pickle"]
        label, bits = TYPES.get(int(meta["dtype"]), (f"type {meta['dtype']}", 8))
        shape = tuple(int(size["as_int"]) for size in meta["sizes"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # a constant that is no tensor
    part = parts.get(f"{folder}{file}")
    if part is None:
        raise DamagedError(f"{name} lies in {folder}{file}, which is not there")
    expected = prod(shape) * bits // 8
    if not is_pickle and part.file_size < expected:
        raise DamagedError(
            f"{name} has {part.file_size:,} bytes, expected {expected:,} for {list(shape)} {label}"
        )
    tensor = FileTensor(name, label, shape, bits, expected)
    if name in formats:
        tensor.format, tensor.reader = formats[name]
        tensor.low = True
        tensor.bits = parse(tensor.format).bits
        tensor.elements = tensor.nbytes * 8 // tensor.bits
    yield tensor


def _formats(graph: Any, budget: ReadBudget) -> Iterator[tuple[str, tuple[str, str]]]:
    """(the name of codes, (their format, what reads them)) by the nodes that read them."""
    try:
        module = graph["graph_module"]
        places = _places(module["signature"])
        for node in module["graph"]["nodes"]:
            budget.take()
            target = str(node["target"])
            if "blockscale." not in target:
                continue
            yield from _of_node(target.split(".")[-2], node["inputs"], places)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise DamagedError(f"its graph is not one of torch.export: {error!r}") from None


def _places(signature: Any) -> dict[str, str]:
    """{name of a graph's input: name of the tensor that it is}."""
    by_name: dict[str, str] = {}
    for each in signature["input_specs"]:
        for kind, name in (
            ("parameter", "parameter_name"), ("buffer", "buffer_name"),
            ("tensor_constant", "tensor_constant_name"),
        ):  # fmt: skip
            if kind in each:
                by_name[each[kind]["arg"]["name"]] = each[kind][name]
    return by_name


def _of_node(op: str, inputs: Any, places: dict[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    arguments = {each["name"]: each["arg"] for each in inputs}
    texts = {k: str(v["as_string"]) for k, v in arguments.items() if "as_string" in v}
    for key, spelling in texts.items():
        if not key.endswith("fmt") or not spelling:
            continue
        prefix = key.removesuffix("fmt").removesuffix("_")
        codes = (prefix,) if prefix else ("weight", "packed", "codes")
        for argument in codes:
            value = arguments.get(argument) or {}
            name = places.get((value.get("as_tensor") or {}).get("name", ""))
            if name is not None:
                try:
                    parse(spelling)
                except ValueError as error:
                    raise DamagedError(f"{owner(name)}: {error}") from None
                yield name, (spelling, f"{op} of blockscale")
