# SPDX-License-Identifier: BSD-3-Clause
"""torch.export's own file (.pt2): a graph of torch's and blockscale's ops, and the weights.

`torch.export.load` reads it wherever blockscale is imported, without the code of the model.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from blockscale.core.torch_private import pytree
from blockscale.core.untrusted import kind_of
from blockscale.files.whole import check_new, check_place, written_whole
from blockscale.graph.adoption.program import as_ours, is_graph_of_ops, quantized_elsewhere
from blockscale.graph.adoption.quantize_fx import from_quantize_fx, is_quantize_fx
from blockscale.graph.pickled import State
from blockscale.graph.program import check_evaluation, exported, import_graph
from blockscale.qat.layers.layer import QATLayer

Example = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


def program(
    graph: nn.Module | ExportedProgram,
    path: str | Path,
    example: Example | None = None,
    *,
    dynamic_batch: bool = False,
    overwrite: bool = False,
) -> None:
    """Write torch.export's file (.pt2) of a quantized model, graph or exported program.

    graph: a model in evaluation mode, a graph of bs.graph (converted or later), an
        ExportedProgram, or a graph module of torchao's convert_pt2e or torch.ao's prepare_fx; what
        others quantized is adopted (bs.graph.adopt)
    example: what the model is called with: a tensor, a tuple of arguments, or a dict of named ones.
        A program or graph has its own; where one is given it must fit. The file holds the example.
    dynamic_batch: let the first size of every tensor of the example be any number; otherwise all
        sizes are those of the example.
    overwrite: replace a file that is there

    Outputs that are mappings of a class of their own, as those of transformers, become dicts, so
    that nothing but torch and blockscale is needed to load the file. It appears whole or not at
    all. Raises ValueError, before anything is written, if the path is a directory or lies in none,
    if the model is in training mode, holds layers for training or is on the meta device, or if the
    example does not fit; FileExistsError if a file is there; torch's own errors where torch.export
    cannot follow the model.
    """
    path = check_place(path, "model.pt2")
    check_new(path, overwrite)
    result = program_of(graph, example, dynamic_batch)
    with written_whole(path) as temporary, temporary.open("wb") as file:
        torch.export.save(result, file)


def program_of(
    graph: nn.Module | ExportedProgram, example: Example | None, dynamic_batch: bool
) -> ExportedProgram:
    """torch.export's program of a model, graph or program; what others quantized is adopted.

    Raises as `program`, and for a graph that was exported in training mode.
    """
    if isinstance(graph, fx.GraphModule) and isinstance(graph.meta.get("blockscale"), State):
        return _existing(exported(graph), example, dynamic_batch)
    if is_graph_of_ops(graph) or isinstance(graph, ExportedProgram):
        return _existing(_adopt(graph), example, dynamic_batch)
    if is_quantize_fx(graph):
        return _existing(_of_quantize_fx(graph, example), None, dynamic_batch)
    return exported_model(graph, example, dynamic_batch)


def _adopt(graph: Any) -> ExportedProgram:
    """A program or graph from elsewhere, whose quantizing nodes are ours; a program that has
    nothing to adopt is given back as it is."""
    check_evaluation(graph)
    if isinstance(graph, ExportedProgram) and not quantized_elsewhere(import_graph(graph)):
        return graph
    return exported(as_ours(graph, warn=True))


def _of_quantize_fx(graph: Any, example: Example | None) -> ExportedProgram:
    if example is None:
        raise ValueError(
            "a graph module of quantize_fx needs an example of its inputs: pass a tensor or "
            "a tuple of arguments"
        )
    args, kwargs = arguments(example)
    if kwargs:
        raise TypeError(
            "a graph module of quantize_fx needs a tuple of arguments as example, found a dict"
        )
    return _adopt(from_quantize_fx(graph, args))


def _existing(
    program: ExportedProgram, example: Example | None, dynamic_batch: bool
) -> ExportedProgram:
    """A program that exists: its sizes are what they are."""
    if dynamic_batch:
        raise ValueError(
            "dynamic_batch needs a model: the sizes of an exported program are fixed already "
            "(use dynamic_shapes of torch.export.export)"
        )
    if example is not None:
        run_example(program.module(), *arguments(example))
    return program


def exported_model(
    model: nn.Module, example: Example | None, dynamic_batch: bool
) -> ExportedProgram:
    """A model as torch.export's program. Raises ValueError as `program` does."""
    if example is None:
        raise ValueError(
            "no example of the model's inputs: pass a tensor, a tuple of arguments or a dict "
            "of keyword arguments"
        )
    check_model(model)
    args, kwargs = arguments(example)
    run_example(model, args, kwargs)
    sizes = _free_first_sizes(args, kwargs) if dynamic_batch else None
    if sizes is not None and args and _takes_any(model):
        sizes = (sizes,)  # torch.export names `*inputs` as one argument, a tuple
    with torch.no_grad(), _plain_outputs(model):
        return torch.export.export(model, args, dict(kwargs), dynamic_shapes=sizes)


def check_model(model: nn.Module) -> None:
    """Raise TypeError for what is no model, ValueError for one that cannot be exported as it is."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model or an exported program, found {type(model).__name__}")
    training = [name or "the model" for name, part in model.named_modules() if part.training]
    if training:
        raise ValueError(f"{training[0]} is in training mode: call model.eval() first")
    in_training = [name for name, part in model.named_modules() if isinstance(part, QATLayer)]
    if in_training:  # it has float weights, which a graph would hold in place of the codes
        raise ValueError(
            f"{in_training[0] or 'the model'} is a layer for training (bs.prepare_qat): call "
            f"bs.convert(model) first"
        )
    state = [*model.named_parameters(), *model.named_buffers()]
    if empty := [name for name, tensor in state if tensor.device.type == "meta"]:
        raise ValueError(
            f"{empty[0]} holds no data (meta device): load the weights before exporting"
        )


def arguments(example: Example) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The positional and the named arguments of a call."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), example
    if isinstance(example, tuple | list):
        return tuple(example), {}
    raise TypeError(
        "the example must be a tensor, a tuple of arguments or a dict of keyword arguments, "
        f"found {kind_of(example)}"
    )


def run_example(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the model gives. Raises ValueError if it cannot be called with the example."""
    try:
        with torch.no_grad():
            return model(*args, **kwargs)
    except Exception as error:
        members = [*map(_describe, args), *(f"{k}: {_describe(v)}" for k, v in kwargs.items())]
        raise ValueError(
            f"the model cannot be called with the example ({', '.join(members)}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _describe(argument: object) -> str:
    if isinstance(argument, Tensor):
        return f"{str(argument.dtype).removeprefix('torch.')} {list(argument.shape)}"
    return type(argument).__name__


def _free_first_sizes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What torch.export calls dynamic shapes: one name for the first size of every tensor."""
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    batches = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}
    if len(batches) != 1:
        raise ValueError(
            "dynamic_batch needs tensors whose first sizes are equal, found "
            f"{sorted(batches)}: export with torch.export.export and its dynamic_shapes, and "
            "pass that program"
        )
    if min(batches) < 2:
        raise ValueError(
            f"dynamic_batch needs an example of 2 or more rows, found {min(batches)}: "
            "torch.export treats sizes 0 and 1 as constants"
        )
    batch = Dim("batch")

    def sizes(leaf: object) -> dict[int, Any] | None:
        return {0: batch} if isinstance(leaf, Tensor) and leaf.ndim else None

    return pytree.tree_map(sizes, dict(kwargs) if kwargs else args)


def _takes_any(model: nn.Module) -> bool:
    """Whether a model takes any number of arguments, `*inputs`, and names none before them."""
    first = next(iter(inspect.signature(model.forward).parameters.values()), None)
    return first is not None and first.kind is inspect.Parameter.VAR_POSITIONAL


@contextmanager
def _plain_outputs(model: nn.Module) -> Iterator[None]:
    """The model returns tuples, lists and dicts of tensors in here."""

    def plain(model: nn.Module, args: object, output: object) -> object:
        del model, args
        return _plain(output)

    hook = model.register_forward_hook(plain)
    try:
        yield
    finally:
        hook.remove()


def _plain(output: object) -> object:
    if output is None or isinstance(output, Tensor | bool | int | float | str):
        return output
    if isinstance(output, Mapping):
        return {name: _plain(value) for name, value in output.items()}
    if type(output) is tuple:
        return tuple(_plain(value) for value in output)
    if type(output) is list:
        return [_plain(value) for value in output]
    raise ValueError(
        f"the model returns a {type(output).__module__}.{type(output).__qualname__}, which "
        "only its library can read: let it return tensors, in tuples, lists or dicts (models "
        "of transformers return a cache unless their config says use_cache=False; "
        "bs.export.onnx(…, cache=True) writes it)"
    )
