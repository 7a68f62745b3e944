# SPDX-License-Identifier: BSD-3-Clause
"""Files that are known and never read: pickles, which can run code, and what is no checkpoint."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from blockscale.core.untrusted import FileError
from blockscale.files.header import begins

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_WHY = (
    "a pickle, which can run any code when it is opened, so blockscale never opens one. "
    "Download or save the model as safetensors"
)
_ENGINE = (
    "a TensorRT engine, whose weights are rearranged for one GPU: use the checkpoint that it "
    "was built from"
)
# (where, bytes there, what it is)
_MAGICS = (
    (0, b"ptrt", _ENGINE), (0, b"ftrt", _ENGINE), (0, b"trtp", _ENGINE),
    (0, b"lmgg", "a ggml file, older than GGUF: convert it with a llama.cpp of 2023"),
    (0, b"fmgg", "a ggml file, older than GGUF: convert it with a llama.cpp of 2023"),
    (0, b"tjgg", "a ggml file, older than GGUF: convert it with a llama.cpp of 2023"),
    (4, b"TFL3", "a LiteRT (TFLite) model, which is not supported"),
    (4, b"ET1",
        "an ExecuTorch program, whose weights are in the order of a delegate: `blockscale "
        "audit` shows what it holds"),
    (0, b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, which is not supported: save the model as safetensors"),
)  # fmt: skip
_LONGEST = 16
_ENGINES = (".engine", ".plan", ".trt")


def recognize(path: Path) -> str | None:
    """What tells that it is one of them: its first bytes; of a directory, what alone is in it."""
    if path.is_dir():
        return _directory(path)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(_LONGEST)
    if begins(start, path.stat().st_size):  # the length of a header may read as a pickle's protocol
        return None
    for place, magic, what in _MAGICS:
        if start[place : place + len(magic)] == magic:
            return what
    if path.suffix in _ENGINES:
        return _ENGINE
    if start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return _WHY
    if start[:4] == b"PK\3\4" and path.suffix != ".pt2" and _holds_pickle(path):
        return _WHY
    return None


def _holds_pickle(path: Path) -> bool:
    """Whether a zip archive's list of names has a pickle, as torch.save's has."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return path.suffix in _PICKLES


def _directory(path: Path) -> str | None:
    names = [each.name for each in path.iterdir()]
    if any(name.endswith((".safetensors", ".gguf", ".onnx", ".xml")) for name in names):
        return None
    engines = sorted(name for name in names if name.endswith(_ENGINES))
    if engines:
        return f"{_ENGINE} ({engines[0]})"
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    return f"{_WHY} ({pickles[0]})" if pickles else None


def _refuse(path: Path, evidence: str) -> NoReturn:
    raise FileError(f"{path} is {evidence}")


reader: Callable[[Path, str], NoReturn] = _refuse
