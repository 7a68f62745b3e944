# SPDX-License-Identifier: BSD-3-Clause
"""Files with flipped bits, cut short, with pieces of others: every kind of file that we read.

A reader may succeed, or raise ValueError or OSError with words. Whatever else happens is a failure.
"""

import json
import random
import shutil
from pathlib import Path

import torch

import blockscale as bs
from attack import models
from attack.part import Case, Counts, Found, Part, is_told
from blockscale.core.recipe import Recipe
from blockscale.export.auditing import audit
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.header import parse_header
from blockscale.files.inspect import inspect

_NUMBERS = (b"-1", b"1e309", b"99999999999999999999", b"0.5", b"true", b"null", b'"x"', b"[]", b"{}", b"NaN",
            b"[" * 3000, b'"\\ud800"', b"0", b"\x00", b"\xff")  # fmt: skip
_kept: dict[str, bytes] = {}
_MOST = 100_000  # characters of an error


def prepare(folder: Path) -> None:
    """One good file of each kind."""
    model = models.net()
    bs.quantize_(model, "int8:group16:fp32")
    bs.save(model, folder / "net.safetensors")
    _kept["net.safetensors"] = (folder / "net.safetensors").read_bytes()
    models.write_directory(folder / "source")
    quantize_directory(folder / "source", folder / "done", "nvfp4")
    for name in ("model-00001-of-00002.safetensors", "config.json", "model.safetensors.index.json"):
        _kept[f"source/{name}"] = (folder / "source" / name).read_bytes()
    for path in sorted((folder / "done").iterdir()):
        _kept[f"done/{path.name}"] = path.read_bytes()
    recipe = Recipe("int8", rules={"a*": "int4:group32:fp32"}, skip=["lm_head", "re:b.*c"])
    _kept["recipe.json"] = json.dumps(recipe.to_dict()).encode()
    bs.export.program(model, folder / "net.pt2", torch.ones(1, 32))
    _kept["net.pt2"] = (folder / "net.pt2").read_bytes()
    if next(each.unavailable for each in bs.export.targets() if each.name == "onnx") is None:
        bs.export.onnx(model, folder / "net.onnx", torch.ones(1, 32))
        _kept["net.onnx"] = (folder / "net.onnx").read_bytes()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Something that is not far from these bytes; headers are hit more often than numbers."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        head = min(len(data), 2500) if rng.random() < 0.8 else len(data)
        at = rng.randrange(max(head, 1))
        kind = rng.randrange(9)
        if kind == 0 and data:
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            other = rng.choice(list(_kept.values()))
            start = rng.randrange(len(other))
            data = (
                data[:at]
                + other[start : start + rng.randrange(64)]
                + data[at + rng.randrange(64) :]
            )
        elif kind == 3:
            data = data[:at] + data[at + rng.randrange(1, 40) :]
        elif kind == 4:
            data = (
                rng.choice((0, 1, 1 << 20, 1 << 40, 1 << 63, len(data))).to_bytes(8, "little")
                + data[8:]
            )
        elif kind == 5:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(4)) + data[at + 4 :]
        elif kind == 6:
            data = data[:at] + data[max(at - 40, 0) :]
        else:
            data = _value_changed(data, rng)
    return data


def _value_changed(data: bytes, rng: random.Random) -> bytes:
    """Another value in the place of one of JSON's."""
    places = [i for i in range(min(len(data), 6000)) if data[i : i + 1] in b":[,"]
    if not places:
        return data
    at = rng.choice(places) + 1
    end = at
    while end < len(data) and data[end : end + 1] not in b",]}" and end - at < 60:
        end += 1
    return data[:at] + rng.choice(_NUMBERS) + data[end:]


def read(name: str, data: bytes, folder: Path) -> None:
    """Read it the way that its kind is read."""
    if name == "recipe.json":
        (folder / "recipe.json").write_bytes(data)
        return _recipe(folder / "recipe.json")
    if name.startswith("source/"):
        place = folder / "source" / name.removeprefix("source/")
        place.write_bytes(data)
        try:
            plan_directory(folder / "source", folder / "out", "int8:group16:fp32")
        finally:
            place.write_bytes(_kept[name])
        return None
    if name.startswith("done/"):
        place = folder / "done" / name.removeprefix("done/")
        place.write_bytes(data)
        try:
            inspect(folder / "done")
            audit(folder / "done")
        finally:
            place.write_bytes(_kept[name])
        return None
    place = folder / f"it{Path(name).suffix}"
    place.write_bytes(data)
    if name.endswith(".safetensors"):
        inspect(place)
        bs.load(models.net(), place)
        return None
    audit(place)
    return None


def _recipe(path: Path) -> None:
    recipe = Recipe.read(path)
    recipe.decide("layers.0.proj")


def case(case: Case) -> Counts:
    rng = case.random()
    name = rng.choice(list(_kept))
    data = mutated(_kept[name], rng)
    try:
        read(name, data, case.folder)
    except (ValueError, OSError) as error:
        said = str(error)
        if not said.strip():
            raise Found(f"{name}: an error without words", repr(error)) from None
        if len(said) > _MOST:
            raise Found(f"{name}: an error of {_MOST} characters and more", said[:200]) from None
        if "\x1b" in said:
            raise Found(f"{name}: an escape sequence in an error", repr(said[:300])) from None
    except Exception as error:
        if isinstance(error, TypeError) and is_told(error):
            return {"mutated files": 1}
        error.add_note(f"{name}, {len(data)} bytes")
        raise
    return {"mutated files": 1}


def headers(case: Case) -> None:
    """The parser of headers alone: many more than files."""
    rng = case.random()
    data = _kept["source/model-00001-of-00002.safetensors"]
    text = mutated(data[8 : 8 + int.from_bytes(data[:8], "little")], rng)
    try:
        tensors, metadata = parse_header(text)
    except ValueError:
        return
    for name, tensor in tensors.items():
        sizes = all(type(n) is int and n >= 0 for n in tensor.shape)
        if type(name) is not str or not sizes or tensor.start < 0 or tensor.nbytes < 0:
            raise Found("a header gives what no file can hold", f"{name!r}: {tensor}")
    if any(type(value) is not str for value in metadata.values()):
        raise Found("metadata that is no text", f"{metadata}")


def prepare_headers(folder: Path) -> None:
    shutil.rmtree(folder / "source", ignore_errors=True)
    name = "model-00001-of-00002.safetensors"
    models.write_directory(folder / "source")
    _kept[f"source/{name}"] = (folder / "source" / name).read_bytes()


PARTS = (
    Part("mutated", "mutated files", 1_000_000, case, share=1.5, prepare=prepare, memory=3 << 30),
    Part("headers", "headers", 1_000_000, headers, prepare=prepare_headers, memory=2 << 30),
)
