# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel: which layers of a quantized model are cut, how, and that all processes agree."""

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn

from blockscale.core import rules
from blockscale.core.format import Format
from blockscale.layers.guards import check_model, check_unsharded
from blockscale.layers.kinds import QEmbedding, QLinear
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight, all_held
from blockscale.parallel.collectives import sharing, sharing_last, summed, summing
from blockscale.parallel.frozen import weights_of
from blockscale.parallel.parts import (
    STYLES,
    FloatParameter,
    check_pieces,
    cut_layer,
    cut_weight,
    pieces_of,
    put_float,
    refuses,
    refuses_float,
)

_CALLED = "bs.parallel.shard_"
# styles of parameters that are stacks [E, n, k]: the dimension, and of how many parts it consists
_OF_STACKS = {"colwise": (1, 1), "packed_colwise": (1, 2), "rowwise": (2, 1)}
_WHOLE = ("replicate", "replicated_with_grad_allreduce", "local_params")
# styles that a layer follows by itself, so that a float one may stay whole
_ALONE = ("colwise_gather_output", "rowwise_split_input", "embedding_rowwise", "embedding_colwise")
_SAME = {
    "colwise_rep": "colwise_gather_output",
    "rowwise_rep": "rowwise_split_input",
}  # older names
_EXPERTS = "moe_tp_experts"  # a module whose stacks are cut: what it gives is a sum
# a whole layer, some of whose outputs no column-wise layer takes: the keys that are turned by
# position (DeepSeek's latent attention), whose gradients are parts on each process
_TURNED = "mla_kv_a_proj"
KNOWN = (*STYLES, "packed_colwise", _EXPERTS, _TURNED, *_WHOLE)

Plan = Mapping[str, str] | str


class _CutStep(NamedTuple):
    """What becomes of one thing: its name, what it is, how it is cut."""

    name: str
    what: Any
    style: str


def shard_(model: nn.Module, mesh: Any, plan: Plan = "auto") -> dict[str, str]:
    """Let each process of a mesh keep and compute its part of a quantized model (docs/scale.md).

    In place, on every process of the mesh, of a model that is the same on all. Inputs and results
    stay plain tensors, the same on every process; between a column-wise and a row-wise layer each
    has its features. A layer sends one sum or its outputs, and row-wise ones whose inputs have
    scales over all features the ranges of these before.

    Float layers that the plan pairs with quantized ones are cut, too.

    mesh: a torch DeviceMesh of one dimension
    plan: {pattern of names: style}, the first that matches counts; or "auto", the plan that a model
        of transformers brings (`tp_plan`). Styles are transformers':
        "colwise": some outputs of a linear layer; "colwise_gather_output": and all get all of them;
        "rowwise": some inputs, of a layer that gets those; "rowwise_split_input": of one that gets
        all; "embedding_rowwise", "embedding_colwise": some rows or columns of a table; of stacks
        of experts "packed_colwise" (gate and up), "colwise", "rowwise", and "moe_tp_experts" for
        their module; "mla_kv_a_proj", "replicate", "replicated_with_grad_allreduce": whole on each

    Returns {name: style} of what was cut. Raises ValueError, with the model as it was, for a plan
    that names nothing, for layers and formats that cannot be cut so, and where processes disagree.
    """
    check_model(model, _CALLED)
    if getattr(mesh, "ndim", 0) != 1:
        raise ValueError(f"{_CALLED}: expected a DeviceMesh of one dimension, such as mesh['tp']")
    if isinstance(plan, str):
        return deal_layers(model, mesh.get_group(), _own_plan(model), auto=True)
    return deal_layers(model, mesh.get_group(), plan)


def deal_layers(
    model: nn.Module, group: Any, plan: Mapping[str, str], auto: bool = False
) -> dict[str, str]:
    """`shard_` over a group; auto: the plan may name what the model lacks."""
    check_unsharded(model, _CALLED)
    if any(weight.frozen for weight in weights_of(model)):
        raise ValueError(f"{_CALLED}: call it before bs.parallel.as_parameters_, on whole weights")
    steps = _steps(model, plan, auto)
    cuts = _cuts(steps, group)
    _agree(steps, group)
    for step in steps:
        _take(step, cuts, group)
        if step.style == _TURNED:
            step.what.register_forward_hook(sharing_last(_rotary_outputs(model), group))
    return {step.name: step.style for step in steps if step.style not in _WHOLE}


def _own_plan(model: nn.Module) -> Mapping[str, str]:
    """The plan of a model of transformers. Raises ValueError for one that has none."""
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not plan:
        raise ValueError(
            f"{_CALLED}: {type(model).__name__} has no plan of its own (tp_plan): pass one, such "
            "as {'*.fc1': 'colwise', '*.fc2': 'rowwise'}"
        )
    return dict(plan)


def _steps(model: nn.Module, plan: Mapping[str, str], auto: bool) -> list[_CutStep]:
    """What the plan says of each module and quantized parameter. Raises ValueError."""
    plan = _current_plan(plan)
    parameters = dict(all_held(model))
    things = (
        dict(model.named_modules(remove_duplicate=False)) | parameters | _float_parameters(model)
    )
    steps, patterns = [], set()
    for name, what in things.items():
        pattern = next((p for p in plan if _names(p, name)), None)
        if pattern is None:
            continue
        patterns.add(pattern)
        style = plan[pattern]
        if isinstance(what, nn.Linear | nn.Embedding) and style in _ALONE:
            continue
        why = _why_not(what, style, name in parameters)
        if style == _TURNED and not _rotary_outputs(model):
            why = "the model's config has no qk_rope_head_dim, the outputs that it is about"
        if why:
            raise ValueError(f"{_CALLED}: {name!r} cannot be {style!r}: {why}")
        steps.append(_CutStep(name, what, style))
    if missing := [] if auto else sorted(set(plan) - patterns):
        raise ValueError(f"{_CALLED}: the plan's {missing[0]!r} matches no layer of the model")
    if not any(_weight(step) for step in steps):
        raise ValueError(
            f"{_CALLED}: the plan cuts no quantized layer of the model: quantize it before, or use "
            "torch.distributed.tensor.parallel for a float one"
        )
    return [*steps, *_partners(model, steps)]


Stored = tuple[Format, tuple[int, ...]]  # a quantized parameter's format, and shape as stored


def check_plan(plan: Mapping[str, str], parameters: Mapping[str, Stored], parts: int) -> None:
    """Raise ValueError, before there are weights, for a plan that `shard_` would refuse because of
    its styles, or of the formats of weights.

    parameters: {name: what will be there} of all that are to be quantized
    parts: how many processes
    """
    plan = _current_plan(plan)
    for name, (fmt, shape) in parameters.items():
        owner, _, last = name.rpartition(".")
        names = (name, owner) if last == "weight" else (name,)
        style = next((plan[p] for each in names for p in plan if _names(p, each)), None)
        if style is None or style in (*_WHOLE, _EXPERTS, _TURNED):
            continue
        try:
            dim, several = _cut_of(style, stack=last != "weight")
            check_pieces(fmt, shape, dim, several, parts)
        except ValueError as error:
            raise ValueError(f"{name!r} cannot be {style!r}: {error}") from None


def _cut_of(style: str, stack: bool) -> tuple[int, int]:
    """The dimension that a style cuts, and of how many parts that is. Raises ValueError for a style
    of the other kind."""
    if stack and style not in _OF_STACKS:
        raise ValueError("it is a quantized parameter, no layer")
    if not stack and style not in STYLES:
        raise ValueError("it is no stack of experts")
    return _OF_STACKS[style] if stack else (STYLES[style][1], 1)


def _current_plan(plan: Mapping[str, str]) -> dict[str, str]:
    """A plan in today's names of styles. Raises ValueError for styles that are none."""
    plan = {pattern: _SAME.get(style, style) for pattern, style in plan.items()}
    if unknown := sorted({style for style in plan.values() if style not in KNOWN}):
        raise ValueError(f"{_CALLED}: unknown style {unknown[0]!r}; choose from {', '.join(KNOWN)}")
    return plan


def _float_parameters(model: nn.Module) -> dict[str, FloatParameter]:
    """Float parameters that a plan may name by themselves, such as stacks of experts."""
    return {
        f"{prefix}.{name}".lstrip("."): FloatParameter(module, name)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.ndim > 0 and not isinstance(module, QWeight)
    }


def _partners(model: nn.Module, steps: list[_CutStep]) -> list[_CutStep]:
    """Layers that share a weight with one that is cut, as a table and the logits' layer do: cut
    alike, so that they take and give what they did. Raises ValueError for one that cannot be."""
    names, partners = {step.name for step in steps}, []
    dims = {id(w): STYLES[s.style][1] for s in steps if s.what is not (w := _weight(s)) and w}
    for name, layer in model.named_modules():
        if not isinstance(layer, QLayer) or name in names or id(layer.qweight) not in dims:
            continue
        dim, table = dims[id(layer.qweight)], isinstance(layer, QEmbedding)
        styles = _ALONE[2:] if table else _ALONE[:2]
        if why := refuses(layer, styles[dim]):
            raise ValueError(f"{_CALLED}: {name!r}, whose weight is cut, cannot be: {why}")
        partners.append(_CutStep(name, layer, styles[dim]))
    return partners


def _names(pattern: str, name: str) -> bool:
    """Whether a pattern names this itself, and not what it is in."""
    return rules.matches(pattern, name) and not rules.matches(pattern, name.rpartition(".")[0])


def _why_not(what: Any, style: str, is_parameter: bool) -> str:
    """Why a thing cannot be had so; empty if it can."""
    if style == _TURNED:
        return "" if isinstance(what, nn.Linear | QLinear) else "it is no linear layer"
    if style in _WHOLE or style == _EXPERTS:
        return ""
    if is_parameter:
        stack = len(what.tensor.shape) == 3 and style in _OF_STACKS
        return "" if stack else "it is a quantized parameter, and no stack [experts, n, k] of them"
    if isinstance(what, nn.Linear | nn.Embedding | FloatParameter):
        return refuses_float(what, style)
    if style not in STYLES:
        return "it is no stack of experts"
    return refuses(what, style)


Cuts = dict[int, tuple[int, int]]  # of a weight, by id: the dimension, and of how many parts it is


def _cuts(steps: list[_CutStep], group: Any) -> Cuts:
    """How each weight is cut. Raises ValueError where its format, or another layer that has the
    same weight, does not allow it."""
    cuts: Cuts = {}
    for step in steps:
        weight = _weight(step)
        if weight is None:
            continue
        dim, parts = _cut_of(step.style, stack=weight is step.what)
        if cuts.setdefault(id(weight), (dim, parts)) != (dim, parts):
            raise ValueError(
                f"{_CALLED}: {step.name!r} shares its weight with another layer, which the plan "
                "cuts along the other dimension: cut both alike"
            )
        try:
            pieces_of(weight, dim, parts, group)
        except ValueError as error:
            raise ValueError(
                f"{_CALLED}: {step.name!r} cannot be {step.style!r}: {error}"
            ) from None
    return cuts


def _weight(step: _CutStep) -> QWeight | None:
    if isinstance(step.what, QWeight):
        return step.what
    if isinstance(step.what, QLayer) and step.style in STYLES:
        return step.what.qweight
    return None


def _agree(steps: list[_CutStep], group: Any) -> None:
    """Raise ValueError, on every process, where not all are about to cut the same."""
    lines = [
        (s.name, s.style, w and w.fmt, w and tuple(w.shape)) for s in steps for w in [_weight(s)]
    ]
    every: list[Any] = [None] * dist.get_world_size(group)
    own = hashlib.sha256(repr(lines).encode()).hexdigest()
    dist.all_gather_object(every, own, group=group)
    if len(set(every)) > 1:
        other = next(i for i, each in enumerate(every) if each != every[0])
        raise ValueError(
            f"{_CALLED}: processes 0 and {other} of the mesh have other models, formats or plans: "
            "quantize or load the same model on all"
        )


def _take(step: _CutStep, cuts: Cuts, group: Any) -> None:
    """Let this process have its part."""
    if step.style == "replicated_with_grad_allreduce":
        own = isinstance(step.what, FloatParameter)
        for parameter in [step.what.tensor] if own else step.what.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: summed(gradient.clone(), group))
    elif step.style == _EXPERTS:
        step.what.register_forward_pre_hook(sharing(group))
        step.what.register_forward_hook(summing(group))
    elif isinstance(step.what, nn.Linear | FloatParameter) and step.style not in (*_WHOLE, _TURNED):
        put_float(step.what, step.style, group)
    weight = _weight(step)
    if weight is None:
        return
    if not weight.part:
        dim, parts = cuts[id(weight)]
        cut_weight(weight, dim, parts, group)
    if step.what is not weight:
        cut_layer(step.what, step.style, group)


def _rotary_outputs(model: Any) -> int:
    """How many outputs of latent attention's first layer are keys that are turned; 0 if unknown."""
    config = getattr(model, "config", None)
    config = getattr(config, "get_text_config", lambda: config)()
    return int(getattr(config, "qk_rope_head_dim", None) or 0)


# Styles for torch's `parallelize_module`, whose own know float layers alone.

_STYLE = "bs.parallel.style"


def style(name: str) -> Any:
    """A ParallelStyle that cuts a quantized layer as `shard_` does: `parallelize_module(model,
    mesh, {"up": bs.parallel.style("colwise"), "down": bs.parallel.style("rowwise")})`.

    name: "colwise", "rowwise", "colwise_gather_output", "rowwise_split_input",
        "embedding_rowwise" or "embedding_colwise" (bs.parallel.shard_). Inputs and outputs are
        plain tensors. A layer gets codes of its own: one that had the same weight keeps all of it

    Raises ValueError for another name; the style, when it is applied, for a layer that is not
    quantized, and as `shard_`.
    """
    if name not in STYLES:
        raise ValueError(f"{_STYLE}: unknown style {name!r}; choose from {', '.join(STYLES)}")
    return _kind()(name)


@cache
def _kind() -> Any:
    """The class of these styles; torch's package of them takes a second to import."""
    from torch.distributed.tensor.parallel import ParallelStyle

    class QuantizedStyle(ParallelStyle):
        """Cuts one layer."""

        def __init__(self, name: str):
            super().__init__()
            self.name = name

        def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
            if not isinstance(module, QLayer):
                raise ValueError(
                    f"{_STYLE}({self.name!r}): a {type(module).__name__} is no quantized layer: "
                    "call bs.quantize_ or bs.load before parallelize_module, and use torch's own "
                    "styles (torch.distributed.tensor.parallel) for float layers"
                )
            holder = nn.ModuleDict({"layer": module})
            shared = module.qweight
            module._modules["weight"] = _copy(shared)
            try:
                deal_layers(holder, device_mesh.get_group(), {"layer": self.name})
            except ValueError as error:
                module._modules["weight"] = shared
                name = shared.name.removesuffix(".weight") or type(module).__name__
                why = str(error).replace("bs.parallel.shard_", _STYLE)
                raise ValueError(why.replace("'layer'", repr(name))) from None
            return module

        def __repr__(self) -> str:
            return f"{_STYLE}({self.name!r})"

    return QuantizedStyle


def _copy(weight: QWeight) -> QWeight:
    """The same codes, held by another module."""
    copy = QWeight(weight.tensor, tuple(weight.shape), weight.dtype, weight.layout)
    copy.name, copy.part = weight.name, weight.part
    return copy
