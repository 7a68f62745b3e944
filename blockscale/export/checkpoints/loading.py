# SPDX-License-Identifier: BSD-3-Clause
"""`bs.load`: files and directories of ours, and of every producer that `bs.checkpoint` reads."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from blockscale.export.checkpoints.as_stored import as_stored
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.export.checkpoints.opening import reader_of
from blockscale.files.load import load_opened
from blockscale.files.stored_model import StoredModel
from blockscale.layers.processes import check_whole


def load(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a quantized model's file or directory into `model`, its float model; returns it.

    path: a file of `bs.save`, a directory of `blockscale quantize`, or what another producer wrote
        (docs/checkpoints.md), whatever `bs.checkpoint` reads, under the model's own names: a
        directory or file of safetensors, an ONNX file, an OpenVINO IR's .xml; or a GGUF file of a
        llama-like model, for the model that transformers has of it

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
            return as_stored(plain, found.in_model(plain))

        return load_opened(model, opened)


@contextmanager
def _opened(path: Path) -> Iterator[StoredModel | Checkpoint]:
    """A stored model, of ours or in float, or a checkpoint of another producer."""
    module, evidence = reader_of(path)
    ours = module.saved(path) if hasattr(module, "saved") else None
    if ours is not None:
        yield ours
        return
    with module.reader(path, evidence) as checkpoint:
        for warning in checkpoint.warnings:
            warnings.warn(f"blockscale: {checkpoint.path}: {warning}", stacklevel=4)
        yield checkpoint.unquantized or checkpoint
