"""`bs.checkpoint`: which reader a path is for, by what is in it."""

from importlib import import_module
from pathlib import Path
from typing import Any

from blockscale.core.discover import import_all
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
    path = Path(path)
    if not path.exists():
        raise FileError(f"{path} does not exist")
    readers = {m.__name__: m for m in _modules() if hasattr(m, "recognize")}
    for module in readers.values():
        if (evidence := module.recognize(path)) is not None:
            found: Checkpoint = module.reader(path, evidence)
            return found
    producers = [getattr(module.reader, "producer", "") for module in readers.values()]
    kinds = ", ".join(sorted(filter(None, producers)))
    raise FileError(f"{path} is of no kind that is known here; read are: {kinds}")


def _modules() -> list[Any]:
    return list(import_all(_HERE, import_module(_HERE).__path__))
