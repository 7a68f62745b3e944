# SPDX-License-Identifier: BSD-3-Clause
"""Text that installed packages ship, as tokens: sources and documentation, the same on each run.

Files are chosen and ordered by their path below the folder that holds the packages, each content
once. The first byte of a file's hash says what it is for, so no file is in two parts.
"""

import hashlib
import os
import pathlib
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

SUFFIXES = (".py", ".md", ".rst", ".txt")
LARGEST = 200_000  # bytes of a file: larger ones are mostly tables
LONGEST = 400  # bytes of a line on average: longer ones are data
PARTS = {"calibration": 4, "held": 4, "held2": 4}  # of 256; the rest is trained on
END = "<|end|>"  # between two files


@dataclass(frozen=True)
class Corpus:
    """Texts of each part, and a digest of all, to tell two machines' packages apart."""

    texts: dict[str, list[str]]
    digest: str

    @property
    def megabytes(self) -> float:
        return sum(len(text) for texts in self.texts.values() for text in texts) / 1e6


def folders() -> list[pathlib.Path]:
    """Where packages lie: the environment's, then the standard library."""
    found = [*site.getsitepackages(), *(p for p in sys.path if p.endswith("-packages"))]
    found.append(sysconfig.get_paths()["stdlib"])
    return [p for p in map(pathlib.Path, dict.fromkeys(found)) if p.is_dir()]


def paths(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """The text files below a folder, in the order of their paths; packages inside it are not."""
    for here, inside, files in os.walk(folder):
        inside[:] = sorted(i for i in inside if i != "__pycache__" and not i.endswith("-packages"))
        for name in sorted(files):
            if name.endswith(SUFFIXES):
                yield pathlib.Path(here, name)


def part(content: bytes) -> str:
    """What a file is for, by its hash."""
    first, upto = hashlib.sha256(content).digest()[0], 0
    for name, share in PARTS.items():
        upto += share
        if first < upto:
            return name
    return "train"


def read(where: Iterable[pathlib.Path], megabytes: float) -> Corpus:
    """The text of the folders; if it is more than `megabytes`, every n-th file."""
    files = [path for folder in where for path in paths(folder)]
    total = sum(min(path.stat().st_size, LARGEST) for path in files)
    step = max(1, -(-total // int(megabytes * 1e6)))
    texts: dict[str, list[str]] = {name: [] for name in ("train", *PARTS)}
    seen: set[bytes] = set()
    digest = hashlib.sha256()
    for path in files[::step]:
        content = path.read_bytes()
        if not 200 <= len(content) <= LARGEST or len(content) > LONGEST * content.count(b"\n"):
            continue
        key = hashlib.sha256(content).digest()
        if key in seen:
            continue
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        seen.add(key)
        digest.update(key)
        texts[part(content)].append(text)
    return Corpus(texts, digest.hexdigest()[:16])


def train_tokenizer(texts: list[str], vocabulary: int, megabytes: float) -> Tokenizer:
    """Byte-level byte pairs, learned from every n-th text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    step = max(1, int(sum(map(len, texts)) / (megabytes * 1e6)))
    tokenizer.train_from_iterator(texts[::step], trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All texts after each other [tokens], int16, each with END before it."""
    end = tokenizer.token_to_id(END)
    pieces: list[np.ndarray] = []
    for start in range(0, len(texts), 256):
        some = tokenizer.encode_batch_fast(texts[start : start + 256])
        pieces += [np.array([end, *each.ids], dtype=np.int16) for each in some]
    return torch.from_numpy(np.concatenate(pieces))


def windows(tokens: Tensor, count: int, length: int, seed: int) -> Tensor:
    """`count` stretches of a stream [count, length], int64, drawn without overlap."""
    whole = tokens[: len(tokens) // length * length].reshape(-1, length)
    if len(whole) < count:
        raise ValueError(f"expected {count * length} tokens or more, found {len(tokens)}")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    return whole[order[:count]].to(torch.int64)
