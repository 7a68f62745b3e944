# SPDX-License-Identifier: BSD-3-Clause
"""Graph modules of torch.ao's quantize_fx, as programs that the graph flow takes.

prepare_fx observes, and calls float modules; convert_to_reference_fx calls `quantize_per_tensor` of
torch and reference modules, which quantize their weight at each call. Neither has codes that
torch.export knows. torch.ao has a form of both in ops of `quantized_decomposed`, which it does.
"""

import copy
import warnings
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from blockscale.core.torch_private import convert_decomposed, register_decomposed
from blockscale.graph.adoption.observed import observed_layers, quantize_weights

_CODES = {torch.quint8: (0, 255, torch.uint8), torch.qint8: (-128, 127, torch.int8)}


def from_quantize_fx(
    model: fx.GraphModule, example: Any, *, dynamic_shapes: Any = None, backend_config: Any = None
) -> ExportedProgram:
    """A graph module of torch.ao's quantize_fx -> the program that `bs.graph.fuse` takes.

    model: what prepare_fx or prepare_qat_fx gave, after it has seen data, in evaluation mode; or
        what convert_to_reference_fx gave. It stays as it is.
    example, dynamic_shapes: of torch.export.export: the arguments as a tuple, and free sizes
    backend_config: what prepare_fx was given; None: that of torch.ao's own (native, onednn) which
        has the model's fused layers, such as onednn's ConvAdd2d

    The program computes what torch.ao's decomposed reference does, to the bit; `bs.graph.adopt`,
    which fuse calls, then makes its nodes ours. Raises TypeError for what is no graph module,
    ValueError for what convert_fx gave, whose modules hold weights packed for a backend, for
    dynamic quantization after convert_to_reference_fx, for a model in training mode, and for
    observed layers of a backend that is not torch.ao's own.
    """
    if not isinstance(model, fx.GraphModule):
        raise TypeError(
            "expected a graph module of torch.ao's quantize_fx, found a "
            f"{type(model).__name__}: export a float model with torch.export.export and call "
            "bs.graph.prepare"
        )
    if model.training:
        raise ValueError("the model is in training mode: call model.eval() first")
    _check(model)
    with warnings.catch_warnings():
        # torch says of its own functions, which this is about, that they will go
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message="Please use quant_min and quant_max")
        result = _decompose(copy.deepcopy(model), backend_config)
        args = example if isinstance(example, tuple) else (example,)
        with torch.no_grad():
            return torch.export.export(result.eval(), args, dynamic_shapes=dynamic_shapes)


def is_quantize_fx(model: object) -> bool:
    """Whether torch.ao's quantize_fx made the graph module: it observes, or has reference modules
    or torch.quantize_per_tensor in it."""
    if not isinstance(model, fx.GraphModule):
        return False
    kinds = [type(module).__module__ for module in model.modules()]
    observes = "_observed_graph_module_attrs" in model.meta
    quantizes = any(node.target is torch.quantize_per_tensor for node in model.graph.nodes)
    return observes or quantizes or any(_is_quantized(kind) for kind in kinds)


def _is_quantized(module: str) -> bool:
    return module.startswith("torch.ao.nn") and ".quantized" in module


def _check(model: fx.GraphModule) -> None:
    for name, module in model.named_modules():
        kind = type(module)
        if _is_quantized(kind.__module__) and ".reference" not in kind.__module__:
            raise ValueError(
                f"{name} is a {kind.__module__}.{kind.__name__}, whose weight is packed for a "
                "backend: pass the result of prepare_fx or convert_to_reference_fx, not of "
                "convert_fx"
            )


def _decompose(model: fx.GraphModule, backend_config: Any = None) -> fx.GraphModule:
    """The model in ops of quantized_decomposed."""
    if "_observed_graph_module_attrs" in model.meta:  # what prepare_fx leaves
        quantize_weights(model)
        backend_config = backend_config or _backend_config(model)
        return convert_decomposed(model, backend_config)
    _reference(model)
    return model


def _backend_config(model: fx.GraphModule) -> Any:
    """The one of torch.ao's own that has the observed layers: its converter leaves others in float.

    Raises ValueError that names the layers that none has."""
    from torch.ao.quantization import backend_config as theirs

    layers = observed_layers(model)
    left_out: dict[str, str] = {}
    for result in (theirs.get_native_backend_config(), theirs.get_onednn_backend_config()):
        kinds = _layer_kinds(result)
        left_out = {name: kind.__name__ for name, kind in layers.items() if kind not in kinds}
        if not left_out:
            return result
    text = ", ".join(f"{name} ({kind})" for name, kind in left_out.items())
    raise ValueError(
        f"none of torch.ao's backends has {text}, so its weight would stay in float: pass the "
        "backend_config that prepare_fx was called with"
    )


def _layer_kinds(backend_config: Any) -> set[Any]:
    """The classes of layers whose weights torch.ao quantizes for a backend."""
    from torch.ao.quantization.backend_config import utils

    return {
        *utils.get_root_module_to_quantized_reference_module(backend_config),
        *utils.get_qat_module_classes(backend_config),
        *utils.get_fused_module_classes(backend_config),
    }


def _reference(model: fx.GraphModule) -> None:
    """Nodes and modules of convert_to_reference_fx, in place."""
    register_decomposed()
    ops = torch.ops.quantized_decomposed
    for module in model.modules():
        if isinstance(getattr(module, "is_decomposed", None), bool):
            module.is_decomposed = True  # type: ignore[assignment]
            _whole_range(module)
    values: dict[fx.Node, tuple[Any, ...]] = {}
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.target is torch.quantize_per_tensor:
            x, scale, zero, dtype = _quantize_args(node)
            of = (float(_read(model, scale)), int(_read(model, zero)), *_range(node, dtype))
            with model.graph.inserting_before(node):
                result = model.graph.call_function(ops.quantize_per_tensor.default, (x, *of))
            values[result] = of
            node.replace_all_uses_with(result)
            model.graph.erase_node(node)
        elif node.op == "call_method" and node.target == "dequantize":
            codes: Any = node.args[0]
            if codes not in values:
                raise ValueError(
                    f"{node.format_node()}: expected codes of torch.quantize_per_tensor"
                )
            of = values[codes]
            with model.graph.inserting_before(node):
                result = model.graph.call_function(ops.dequantize_per_tensor.default, (codes, *of))
            node.replace_all_uses_with(result)
            model.graph.erase_node(node)
        elif node.op == "call_function" and "quantize" in str(node.target):
            raise ValueError(
                f"{node.format_node()}: its scale is chosen at run time: pass the result of "
                "prepare_fx"
            )
    model.graph.lint()
    model.recompile()


def _quantize_args(node: fx.Node) -> tuple[Any, ...]:
    names = ("input", "scale", "zero_point", "dtype")
    arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return tuple(arguments[name] for name in names)


def _read(model: fx.GraphModule, part: Any) -> Any:
    """A number that is written in the graph, or held by the model."""
    if not isinstance(part, fx.Node):
        return part
    value: Any = model
    for step in str(part.target).split("."):
        value = getattr(value, step)
    return value.item()


def _range(node: fx.Node, dtype: Any) -> tuple[int, int, torch.dtype]:
    if dtype not in _CODES:
        raise ValueError(f"{node.format_node()}: no format has codes of {dtype}")
    return _CODES[dtype]


def _whole_range(module: nn.Module) -> None:
    """All codes that a reference module's weight has in torch's quantized tensors."""
    own: Any = module
    if own.weight_dtype in _CODES:
        own.weight_quant_min, own.weight_quant_max, _ = _CODES[own.weight_dtype]
