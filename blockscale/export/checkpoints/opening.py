# SPDX-License-Identifier: BSD-3-Clause
"""Which reader a path is for, by what is in it: `bs.checkpoint`, and all that reads checkpoints.

A reader is one file or folder beside this one, found by its name; `bs.checkpoint`, `bs.load`,
`convert`, `inspect` and the others have it then. It has

    recognize(path): what tells that the path is of its kind, or None
    reader(path, evidence): the Checkpoint (blockscale/export/checkpoints/checkpoint.py)
    saved(path): a file that our own code wrote, as `bs.load` takes it, or None; may be left out
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from blockscale.core import import_all
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.files.metadata import FileError

_HERE = __name__.rpartition(".")[0]


def checkpoint(path: str | Path) -> Checkpoint:
    """A model's file or directory as a lazy mapping {name: QTensor or Tensor}.

    path: a GGUF file (one of a split model stands for all), a safetensors file, an ONNX file, an
        OpenVINO IR's .xml, or a directory of those; ours or another producer's
        (docs/checkpoints.md)

    Nothing but heads is read until a tensor is asked for, and what is read has the file's own codes
    and scales. Use it in a `with`, or close it. Raises FileError for a path of no known kind, and
    for files that are damaged, cut short or incomplete.
    """
    module, evidence = reader_of(path)
    result: Checkpoint = module.reader(Path(path), evidence)
    return result


def reader_of(path: str | Path) -> tuple[Any, str]:
    """(the module that reads a path, what in it tells so). Raises FileError if there is none."""
    path = Path(path)
    if not path.exists():
        raise FileError(f"{path} does not exist")
    for module in readers():
        if (evidence := module.recognize(path)) is not None:
            return module, evidence
    producers = [getattr(module.reader, "producer", "") for module in readers()]
    kinds = ", ".join(sorted(filter(None, producers)))
    raise FileError(f"{path}: unrecognised checkpoint format; supported: {kinds}")


def readers() -> list[Any]:
    """The modules that read checkpoints, in the order in which they are asked."""
    modules = import_all(_HERE, import_module(_HERE).__path__)
    return [module for module in modules if hasattr(module, "recognize")]
