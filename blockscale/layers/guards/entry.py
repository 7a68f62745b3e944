# SPDX-License-Identifier: BSD-3-Clause
"""What may be given where a model is wanted, and under which modes of torch."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.parse import is_spelling

_STATE = "build the model, model.load_state_dict(state), and pass the model"


def check_model(model: object, called: str) -> None:
    """Raise TypeError, which says what to pass instead, unless `model` is a module of Python's.

    called: the function that it was given to, e.g. "bs.quantize_"
    """
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        return
    raise TypeError(
        f"{called}: expected a model (an nn.Module), found {_found(model)}: {_advice(model)}"
    )


def _found(given: object) -> str:
    """What it is, in words."""
    if given is None or isinstance(given, str):
        return repr(given)
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, torch.jit.ScriptModule):
        return f"a TorchScript program ({type(given).__name__})"
    if isinstance(given, Mapping):
        tensors = sum(isinstance(value, Tensor) for value in given.values())
        return f"a state_dict of {tensors} tensors" if tensors else f"a {type(given).__name__}"
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    name = getattr(given, "__name__", "")
    if callable(given) and name:
        return f"the function {name}"
    return f"a {type(given).__name__}"


def _advice(given: object) -> str:
    """What to do instead."""
    if given is None:
        return "did a function that makes the model forget to return it?"
    if isinstance(given, type):
        return f"make a model of it, such as {given.__name__}(...), and pass that"
    if isinstance(given, str | os.PathLike):
        return _of_text(os.fspath(given))
    if isinstance(given, Mapping) and any(isinstance(each, Tensor) for each in given.values()):
        return f"{_STATE}; single tensors go to bs.quantize(tensor, format)"
    owner = getattr(given, "__self__", None)
    if isinstance(owner, nn.Module):
        return f"pass the model whose method it is, a {type(owner).__name__}"
    known = (told for kind, told in _INSTEAD.items() if isinstance(given, kind))
    inside = (  # of a pipeline, a trainer, an engine
        f"pass its model: .{attribute}"
        for attribute in ("model", "module")
        if isinstance(getattr(given, attribute, None), nn.Module)
    )
    return next(iter([*known, *inside, "pass the nn.Module that holds the layers"]))


_INSTEAD: dict[Any, str] = {
    torch.jit.ScriptModule: (
        "its layers are compiled in and cannot be replaced: quantize the Python model that it was "
        "made from, then use torch.export or torch.compile"
    ),
    Mapping: "pass the models in it one at a time, or put them into an nn.ModuleDict",
    list | tuple: "pass the models in it one at a time, or put them into an nn.ModuleList",
    Tensor: "a single tensor goes to bs.quantize(tensor, format)",
    torch.export.ExportedProgram: "a program goes to bs.graph.prepare or bs.graph.convert",
}


def _of_text(text: str) -> str:
    if Path(text).is_dir():
        return f"a directory goes to bs.quantize_directory({text!r}, out, recipe), or load it first"
    if Path(text).is_file():
        return f"the model comes first: build it, then bs.load(model, {text!r})"
    if is_spelling(text):
        return f"that is a format, and the model comes first: bs.quantize_(model, {text!r})"
    return "build the model first, e.g. AutoModel.from_pretrained(name), and pass that"


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Tensors that are made inside are ordinary ones, on the CPU unless a device is named.

    Under torch.inference_mode they could not be used in training later, nor loaded into; and under
    a default device of "meta" they would hold no numbers.
    """
    inference = torch.is_inference_mode_enabled()
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False) if inference else torch.set_grad_enabled(grad):
        if inference:  # leaving that mode turns gradients on
            torch.set_grad_enabled(False)
        if torch.get_default_device().type == "meta":
            with torch.device("cpu"):
                yield
        else:
            yield
