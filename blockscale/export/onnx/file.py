"""A model on disk: one file, or beside it one with the tensors where it would be too large.

A protobuf message, which an ONNX file is, holds less than 2 GB. Larger models keep their tensors in
`<name>.data`, as ONNX defines (external data); both files have to be moved together.
"""

from pathlib import Path
from typing import Any

from blockscale.files.whole import written_whole

LARGEST = 2**31 - 2**24  # bytes of one file: what protobuf takes, less some for names and nodes
_OUTSIDE = 1024  # bytes: smaller tensors stay in the model
_PAGE = 4096  # tensors begin at pages, so that runtimes can map them


def beside(path: Path) -> Path:
    """Where the tensors of a large model lie."""
    return path.with_name(f"{path.name}.data")


def is_large(model: Any) -> bool:
    """Whether a model does not fit into one file."""
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    return size > LARGEST


def save(model: Any, path: Path) -> None:
    """Write a model (ModelProto), whole or not at all. Raises OSError if it cannot be written."""
    if not is_large(model):
        with written_whole(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
        return
    # the data has its name before the model does
    with written_whole(path) as temporary, written_whole(beside(path)) as data:
        with data.open("wb") as file:
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) >= _OUTSIDE:
                    _move_out(tensor, file, beside(path).name)
        temporary.write_bytes(model.SerializeToString())


def _move_out(tensor: Any, file: Any, name: str) -> None:
    """A tensor's bytes into a file of tensors, and into the tensor where they are."""
    from onnx import TensorProto

    file.write(bytes(-file.tell() % _PAGE))
    told = {"location": name, "offset": file.tell(), "length": len(tensor.raw_data)}
    file.write(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in told.items():
        tensor.external_data.add(key=key, value=str(value))
