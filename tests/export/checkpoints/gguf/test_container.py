# SPDX-License-Identifier: BSD-3-Clause
"""GGUF's head: what gguf-py wrote is read; what is damaged or hostile is refused, by name."""

import random
import struct
from pathlib import Path

import pytest

import blockscale as bs
from blockscale.export.checkpoints.gguf import container
from blockscale.export.checkpoints.gguf.container import read_container

SMALL = Path(__file__).parents[3] / "recorded" / "small.gguf"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def head(
    keys: bytes = b"", key_count: int = 0, tensors: bytes = b"", count: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, count, key_count) + keys + tensors


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, start: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, start)


def test_what_gguf_wrote() -> None:
    found = read_container(SMALL)
    assert found.version == 3 and found.size == SMALL.stat().st_size
    assert found.values["general.architecture"] == "llama"
    assert found.values["tokenizer.ggml.tokens"] == ["<s>", "é", "x" * 40]
    assert found.values["tokenizer.ggml.scores"] == [0.5, -1.0, 2.25]
    assert found.values["flag"] is True
    assert found.entries["blk.0.Q4_0.weight"].shape == (2, 96)  # outermost first
    assert all(entry.start % 32 == 0 for entry in found.entries.values())


LONG = struct.pack("<Q", 2**63)
BAD = {
    "empty": (b"", "is truncated"),
    "other": (b"GGML" + bytes(40), "begins with b'GGML'"),
    "version 1": (head(version=1), "version 1; versions 2 and 3"),
    "version 4": (head(version=4), "version 4; versions 2"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "many tensors": (head(count=2**60), "declares 1152921504606846976 tensors"),
    "many keys": (head(key_count=2**60), "declares 1152921504606846976 keys"),
    "a long key": (head(LONG + bytes(30), 1), "a string of 9223372036854775808 bytes"),
    "a key twice": (head((text(b"k") + struct.pack("<IB", 0, 1)) * 2, 2), "key 'k' twice"),
    "an unknown type": (head(text(b"k") + struct.pack("<I", 13) + bytes(8), 1), "type 13"),
    "a long array": (
        head(text(b"k") + struct.pack("<IIQ", 9, 0, 2**40), 1), "1099511627776 values"
    ),
    "arrays in arrays": (
        head(text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9 + bytes(99), 1),
        "type 9 at depth 4",
    ),
    "an alignment of 0": (
        head(text(b"general.alignment") + struct.pack("<II", 4, 0), 1), "alignment is 0"
    ),
    "an alignment that is text": (
        head(text(b"general.alignment") + struct.pack("<I", 8) + text(b"x"), 1), "alignment is 'x'"
    ),
    "five dimensions": (head(tensors=tensor(b"t", (1,) * 5), count=1), "has 5 dimensions"),
    "huge": (head(tensors=tensor(b"t", (2**40, 2**40)), count=1), "elements"),
    "a tensor twice": (head(tensors=tensor(b"t", (1,)) * 2, count=2), "tensor 't' twice"),
    "beyond the end": (head(tensors=tensor(b"t", (1,), start=2**40), count=1), "begins 1099511"),
    "not aligned": (head(tensors=tensor(b"t", (1,), start=3), count=1) + bytes(99), "begins 3 "),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_heads(name: str, tmp_path: Path) -> None:
    data, reason = BAD[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(bs.FileError, match="this GGUF file cannot be read") as error:
        read_container(path)
    assert reason in str(error.value)


def test_cut_anywhere(tmp_path: Path) -> None:
    """Each file that ends within its head is refused."""
    data, path = SMALL.read_bytes(), tmp_path / "m.gguf"
    end = min(entry.start for entry in read_container(SMALL).entries.values())
    for length in [*range(200), *range(200, end - 32, 17)]:
        path.write_bytes(data[:length])
        with pytest.raises(bs.FileError):
            read_container(path)


def test_a_head_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "LARGEST", 700)
    with pytest.raises(bs.FileError, match="are left: the limit is 700 bytes"):
        read_container(SMALL)


@pytest.mark.slow
def test_flipped_bytes(tmp_path: Path) -> None:
    """A changed byte of the head gives another head or a FileError, and nothing else."""
    data, path = SMALL.read_bytes(), tmp_path / "m.gguf"
    end = min(entry.start for entry in read_container(SMALL).entries.values())
    numbers = random.Random(5)
    refused = 0
    for _ in range(4_000):
        changed = bytearray(data)
        for _ in range(numbers.choice((1, 1, 2, 8))):
            changed[numbers.randrange(end)] = numbers.choice(
                (0, 1, 127, 255, numbers.randrange(256))
            )
        path.write_bytes(changed)
        try:
            bs.checkpoint(path).close()
        except bs.FileError:
            refused += 1
    assert 400 < refused < 3_990
