# SPDX-License-Identifier: BSD-3-Clause
"""What a stranger can do to a model's directory: each trick changes one that is whole.

A trick is given random numbers and the folder, and may meet what an earlier one left there.
"""

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

_INDEX, _SHARD = "model.safetensors.index.json", "model-00001-of-00002.safetensors"
_NAMES = ("\x1b[2Jname", "[/red]", "[bold", "a\nb", "a\rb", "../../victim", "/etc/x", "x" * 5000, "\u202egnp", "",
          ".", "..", "a/b", "a\\b", "con", "%s", "\ud800", "blockscale_ledger.json", "config.json")  # fmt: skip
_MOST = 50_000_000  # bytes of a file that a trick changes
_VALUES = (None, True, -1, 1.5, 10**30, "x", [], {}, [[[]]], float("nan"))


def _header(folder: Path, change: Callable[[dict], object]) -> None:
    """Write a shard again with another header."""
    path = folder / _SHARD
    data = _read(path)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def _json(folder: Path, name: str, change: Callable[[dict], object]) -> None:
    path = folder / name
    data = json.loads(_read(path))
    change(data)
    path.write_text(json.dumps(data))


def _read(path: Path) -> bytes:
    """A file of usual size: what an earlier trick left may have no end."""
    if path.stat().st_size > _MOST:
        raise ValueError(path)
    return path.read_bytes()


def _replaced(folder: Path, name: str, make: Callable[[Path], object]) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)


def _named(rng: random.Random, folder: Path) -> None:
    def change(header: dict) -> None:
        first = next(name for name in header if name != "__metadata__")
        header[rng.choice(_NAMES)] = header.pop(first)

    _header(folder, change)


def _offsets(rng: random.Random, folder: Path) -> None:
    def change(header: dict) -> None:
        spec = header[rng.choice([name for name in header if name != "__metadata__"])]
        spec[rng.choice(["data_offsets", "shape"])] = rng.choice(
            [
                [0, 1],
                [-1, 4],
                [4, 0],
                [0, 1 << 62],
                [1.5, 8],
                ["0", "8"],
                [True, 1],
                [0],
                [],
                [1 << 40, 0],
                {},
                None,
            ]
        )

    _header(folder, change)


def _dtype(rng: random.Random, folder: Path) -> None:
    def change(header: dict) -> None:
        spec = header[rng.choice([name for name in header if name != "__metadata__"])]
        spec["dtype"] = rng.choice(
            ["F99", "f32", "", None, 3, "F4", "C64", [], "BOOL", "U64", "E8M0"]
        )

    _header(folder, change)


def _weight_map(rng: random.Random, folder: Path) -> None:
    def change(index: dict) -> None:
        where = index["weight_map"]
        name = rng.choice(list(where))
        kind = rng.randrange(6)
        if kind == 0:
            del where[name]
        elif kind == 1:
            where["not.there"] = _SHARD
        elif kind == 2:
            where[name] = rng.choice(
                (*_NAMES, "../victim/model.safetensors", "/dev/zero", "other.safetensors")
            )
        elif kind == 3:
            where[name] = rng.choice(_VALUES)
        elif kind == 4:
            index["weight_map"] = rng.choice(_VALUES)
        else:
            index["metadata"] = rng.choice(_VALUES)

    _json(folder, _INDEX, change)


def _value(rng: random.Random, folder: Path) -> None:
    name = rng.choice(["config.json", _INDEX])
    text = rng.choice(["[" * 100_000, "{", "[]", "3", "null", "", "\xff", '{"a":' * 5000, "NaN", '{"a": 1e999}',
                       '{"torch_dtype": 3}', '{"quantization_config": []}', '"' + "x" * 10**6 + '"'])  # fmt: skip
    (folder / name).write_bytes(text.encode("latin-1"))


def _config(rng: random.Random, folder: Path) -> None:
    keys = (
        "torch_dtype",
        "model_type",
        "quantization_config",
        "architectures",
        "tie_word_embeddings",
        "dtype",
    )
    _json(
        folder, "config.json", lambda config: config.update({rng.choice(keys): rng.choice(_VALUES)})
    )


def _special(rng: random.Random, folder: Path) -> None:
    name = rng.choice(["config.json", _INDEX, _SHARD, "tokenizer.json", "more.safetensors"])
    victim = folder.parent / "victim"
    kind = rng.choice([
        os.mkfifo, Path.mkdir, lambda p: p.symlink_to("/dev/zero"), lambda p: p.symlink_to(victim / "file"),
        lambda p: p.symlink_to(p), lambda p: p.symlink_to("/proc/self/mem"), lambda p: p.symlink_to(victim),
        lambda p: p.symlink_to("missing"), lambda p: p.symlink_to("/dev/stdin"), lambda p: p.touch(),
    ])  # fmt: skip
    _replaced(folder, name, kind)


def _sparse(rng: random.Random, folder: Path) -> None:
    name = rng.choice(["config.json", _INDEX, _SHARD, "giant.safetensors", "giant.bin"])
    with (folder / name).open("ab") as file:
        file.truncate(rng.choice([1 << 31, 1 << 36, 1 << 40]))


def _length(rng: random.Random, folder: Path) -> None:
    data = _read(folder / _SHARD)
    size = rng.choice([0, 1, 7, 1 << 20, 1 << 33, (1 << 64) - 1, len(data)])
    (folder / _SHARD).write_bytes(struct.pack("<Q", size) + data[8:])


def _cut(rng: random.Random, folder: Path) -> None:
    path = folder / rng.choice([_SHARD, "config.json", _INDEX])
    data = _read(path)
    path.write_bytes(data[: rng.randrange(len(data))])


def _file_names(rng: random.Random, folder: Path) -> None:
    name = rng.choice(["a\x1b[31mb.txt", "[red]x.json", "new\nline", "x" * 255, "model.safetensors.partial", "-rf",
                       "blockscale_ledger.json", "journal", "lock", "é.json", "\udcff.txt"])  # fmt: skip
    (folder / name).write_bytes(b"{}")


def _planted(rng: random.Random, folder: Path) -> None:
    """Something stands where the output or its work directory would."""
    user, victim = folder.parent, folder.parent / "victim"
    kind = rng.randrange(10)
    if kind == 0:
        (user / "out").symlink_to(victim)
    elif kind == 1:
        (user / "out").write_text("a file")
    elif kind == 2:
        (user / "out").mkdir()
        (user / "out" / "mine.txt").write_text("mine")
    elif kind == 3:
        (user / ".out.blockscale-00000000").symlink_to(victim)
    elif kind < 8:
        mark = rng.choice(["blockscale-old-", "blockscale-gone-", "blockscale-again-", ""])
        left = user / f".out.{mark}0123abcd{'' if mark else rng.choice(['.partial', '.new'])}"
        if kind == 4:
            left.symlink_to(victim)
        elif kind == 5:
            left.symlink_to(user / "missing")
        elif kind == 6:
            os.mkfifo(left)
        else:
            left.mkdir()
            (left / "out").symlink_to(victim)
            (left / "lock").symlink_to(victim / "file")
    elif kind == 8:
        (user / "out").symlink_to(rng.choice([user / "missing", user / "model", Path("out")]))
    else:
        os.mkfifo(user / "out")


TRICKS = (_named, _offsets, _dtype, _weight_map, _value, _config, _special, _sparse, _length, _cut, _file_names,
          _planted, _special, _weight_map)  # fmt: skip
