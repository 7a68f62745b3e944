"""`bs.load`: files and directories of ours, and of every producer that `bs.checkpoint` reads."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from blockscale.export.checkpoints.as_stored import as_stored
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.export.checkpoints.gguf import reading as gguf
from blockscale.export.checkpoints.gguf_names import as_in_model
from blockscale.export.checkpoints.safetensors import Safetensors
from blockscale.files.load import load_opened
from blockscale.files.stored_model import StoredModel, open_stored_model
from blockscale.layers.guards.processes import check_whole


def load(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a quantized model's file or directory into `model`, its float model; returns it.

    path: a file of `bs.save`, a directory of `blockscale quantize`, or what another producer wrote
        (docs/checkpoints.md): a directory or file of safetensors, or a GGUF file of a llama-like
        model, for the model that transformers has of it

    `model` is the float model as it was before quantization, on any device, also on "meta"; it may
    be compiled or parallel (layers.model.wrapped). Layers whose weights are quantized in the file
    are replaced by quantized layers with the file's own codes and scales, and batch norms that
    training folded into them by nn.Identity; everything else is copied. A weight whose owner cannot
    hold codes is dequantized, with a warning that names it.

    Raises FileError, and changes nothing, if the file is missing, truncated, of a newer version, of
    an unknown format, or of another model, and where it holds weights that cannot be read.
    """
    path = Path(path)
    check_whole(model, "bs.load")
    with _opened(path) as found:

        def opened(plain: nn.Module) -> StoredModel:
            if isinstance(found, StoredModel):
                return found
            return as_stored(plain, as_in_model(plain, found) if _of_ggml(found) else found)

        return load_opened(model, opened)


@contextmanager
def _opened(path: Path) -> Iterator[StoredModel | Checkpoint]:
    """A stored model, of ours or in float, or a checkpoint of another producer."""
    if (evidence := gguf.recognize(path)) is not None:
        with gguf.GGUF(path, evidence) as checkpoint:
            _warn(checkpoint)
            yield checkpoint
        return
    stored = open_stored_model(path)
    if stored.metadata.tensors:
        yield stored
        return
    foreign = Safetensors(path, "")
    _warn(foreign)
    quantized = any(each.format or each.unread for each in foreign.stored.values())
    yield foreign if quantized else stored


def _warn(checkpoint: Checkpoint) -> None:
    for warning in checkpoint.warnings:
        warnings.warn(f"blockscale: {checkpoint.path}: {warning}", stacklevel=5)


def _of_ggml(checkpoint: Checkpoint) -> bool:
    return isinstance(checkpoint, gguf.GGUF)
