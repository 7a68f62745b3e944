# SPDX-License-Identifier: BSD-3-Clause
"""What is to know of a whole model: what is around it, and what training took out of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.format import Format
from blockscale.core.joined_weights import standing_rows
from blockscale.core.ledger import Entry
from blockscale.core.pack import to_stored
from blockscale.layers.bias import notes_on_bias, quantize_bias
from blockscale.layers.layer import QLayer
from blockscale.layers.parameters import coded
from blockscale.layers.plan import Plan
from blockscale.layers.saturation import lost_signs, told_of_odd
from blockscale.layers.store import QWeight, all_held
from blockscale.layers.supplied import Supplied
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

# One quantized layer from its plan, and what the ledger says of it.


def build(
    plan: Plan, weights: dict[int, QWeight], place: Supplied, seed: int | None
) -> tuple[QLayer, Entry]:
    """The quantized layer and what the ledger says of it.

    weights: {id of a float weight: its codes}, of the layers so far; this one's are added
    """
    notes: list[str] = []
    if plan.owns_weight:
        own = None if seed is None else named_seed(seed, f"{plan.name}.weight")
        weights[id(plan.parameter)], notes = weight_in_codes(plan, place, own)
    weight = weights[id(plan.parameter)]
    layer = plan.kind.from_float(plan.module, weight, plan.scheme)
    for part in ("input", "output"):
        if (quantizer := getattr(place, part)) is not None:
            setattr(layer, part, quantizer.to(plan.parameter.device))
    if place.before is not None:
        layer.set_before(place.before)
    if plan.quantizes_bias and plan.scheme.bias is not None:
        notes += notes_on_bias(layer, plan.scheme.bias)
        own = None if seed is None else named_seed(seed, f"{plan.name}.bias")
        quantize_bias(layer, plan.scheme.bias, own)
    layer.take_place_of(plan.module)
    unused = plan.scheme.input is not None and layer.input is None
    reasons = ["shares the codes of a tied layer"] * (not plan.owns_weight)
    reasons += ["its input is indices, which have no format"] * unused
    entry = replace(
        plan.entry,
        weight=weight.fmt,
        input="" if layer.input is None else layer.input.fmt,
        output="" if layer.output is None else layer.output.fmt,
        reason="; ".join(reasons),
        details=", ".join(filter(None, [*plan.told, place.told])),
        here=layer.slow(),
        bias="" if layer.quantized_bias is None else layer.quantized_bias.fmt,
        notes=(*plan.entry.notes, *notes),
        bytes_after=plan.bytes_beside + _nbytes(layer, plan.owns_weight),
    )
    return layer, entry


def _nbytes(layer: QLayer, owns_weight: bool) -> int:
    """Bytes of a layer's codes, unless they are another's, and of what is before it."""
    beside = 0 if layer.before is None else layer.before.nbytes
    beside += 0 if layer.quantized_bias is None else layer.quantized_bias.nbytes
    return beside + (layer.qweight.nbytes if owns_weight else 0)


def beside_rows(
    stored: Tensor, fmt: Format, top: Tensor | None, choose: Callable[[Tensor], QTensor]
) -> QTensor:
    """A weight [n, k] as it is stored -> the codes that `choose` gives for it.

    top: the largest numerator of all layers that share its outer scale, which rows stand for that
        are put below it; None where it shares none
    """
    if top is None:
        return choose(stored)
    rows = standing_rows(top, fmt, stored.shape[-1])
    q = choose(torch.cat([stored, rows.to(stored.dtype)]))
    count = q.format.block.scale_shape(tuple(stored.shape))[0]
    of_blocks = (name for name in ("scale", "zero_point", "offset") if name in q.format.parts)
    cut = {name: getattr(q.qparams, name)[:count] for name in of_blocks}
    return replace(q, packed=q.packed[: len(stored)], qparams=q.qparams._replace(**cut))


def weight_in_codes(plan: Plan, place: Supplied, seed: int | None) -> tuple[QWeight, list[str]]:
    """A layer's weight in codes, and what a user should know about it in this format."""
    parameter, fmt = plan.parameter, plan.format
    layout, shape = plan.layout, tuple(parameter.shape)
    stored = to_stored(parameter.detach(), layout)
    notes = [odd] if (odd := told_of_odd(stored)) else []
    if place.weight is not None:
        notes += lost_signs("weight", stored, fmt)
        return QWeight(place.weight.to(parameter.device), shape, parameter.dtype, layout), notes
    if (profile := plan.scheme.profile) is not None:
        if place.before is not None:
            raise ValueError(
                f"{plan.name}: {place.before.fmt} changes its weight first, and profile "
                f"{profile} needs the original weight: use a plain format"
            )
        notes += lost_signs("weight", stored, fmt)
        try:
            q = beside_rows(stored, fmt, place.top, lambda x: quantize(x, profile))
        except ValueError as error:
            raise ValueError(f"{plan.name}: {error}") from None
        return QWeight(q, shape, parameter.dtype, layout), notes
    if place.before is not None:
        stored = place.before.to(parameter.device).to_weight(stored.to(torch.float32))
    q, more = coded(stored, fmt, seed, place.top)
    return QWeight(q, shape, parameter.dtype, layout), notes + more


# Modules of a model are exchanged by name, all or none.


def swap(model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Put layers in by name, all or none; what was there, to be put back by another call."""
    old = {name: model.get_submodule(name) for name in layers}
    try:
        _put_in(model, layers)
    except BaseException:
        _put_in(model, old)
        raise
    return old


def _put_in(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    for name, layer in layers.items():
        above, _, child = name.rpartition(".")
        parent = model.get_submodule(above)
        setattr(parent, child, layer)
        for tell in PLACED:
            tell(parent)


# Called with a module in which a layer was put in another's place: adapters, which stand around
# one layer (blockscale.integrations.peft), have to know what it is now.
PLACED: list[Callable[[nn.Module], None]] = []


# Quantized weights know what they are called, so that errors can say which one they are about.


def tell_names(model: nn.Module) -> None:
    """Tell each quantized weight and bias of a model its first name, unless it has one."""
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            for part, held in (("weight", layer.qweight), ("bias", layer.quantized_bias)):
                if held is not None:
                    held.name = held.name or f"{name}.{part}"
    for name, weight in all_held(model):
        weight.name = weight.name or name


# Models inside of others that only run them: compiled, parallel, averaged. What quantizes, saves
# and loads works on the plain model, by the names that it has without them.

# By name, as most of these are slow to import or not there at all: {class: where it has the model}
_WRAPPERS = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper": (
        "_checkpoint_wrapped_module"
    ),
    "lightning.fabric.wrappers._FabricModule": "_original_module",
    "lightning_fabric.wrappers._FabricModule": "_original_module",
    "deepspeed.runtime.engine.DeepSpeedEngine": "module",
}
_FLAT = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel"


def _classes(module: nn.Module) -> Iterator[str]:
    return (f"{kind.__module__}.{kind.__name__}" for kind in type(module).__mro__)


def _inside(module: nn.Module) -> str | None:
    """The attribute under which a wrapper has its model; None for other modules.

    Raises ValueError for FullyShardedDataParallel, whose parameters are one flat piece.
    """
    for kind in _classes(module):
        if kind == _FLAT:
            raise ValueError(
                "the model is wrapped in FullyShardedDataParallel, whose parameters are "
                "pieces of one flat tensor: gather its state "
                "(torch.distributed.checkpoint.state_dict.get_model_state_dict with "
                "full_state_dict=True) into a model that is not sharded"
            )
        if kind in _WRAPPERS:
            return _WRAPPERS[kind]
    return None


def inner_model(model: nn.Module) -> nn.Module:
    """The model without what is around it; `model` itself if there is nothing around it."""
    while isinstance(model, nn.Module) and (attribute := _inside(model)) is not None:
        model = getattr(model, attribute)
    return model


class _Wrapped(NamedTuple):
    """A module of a model that is in wrappers: `wrapper` is the child `name` of `parent`."""

    parent: nn.Module
    name: str
    wrapper: nn.Module


@contextmanager
def unwrapped(model: nn.Module) -> Iterator[nn.Module]:
    """The plain model; while the context lasts, without the wrappers inside of it, too.

    They are put back afterwards, around what then is in their place. Raises ValueError for a model
    in FullyShardedDataParallel.
    """
    plain = inner_model(model)
    with ExitStack() as afterwards:
        for place in list(_wrapped(plain)):
            inside = inner_model(place.wrapper)
            afterwards.callback(_put_back, place, inside)
            place.parent._modules[place.name] = inside
        yield plain


def _wrapped(model: nn.Module) -> Iterator[_Wrapped]:
    """The outermost wrappers in a model, and those inside of what they wrap."""
    seen: set[nn.Module] = set()
    waiting = [model]
    while waiting:
        parent = waiting.pop()
        if parent in seen or not isinstance(parent, nn.Module):
            continue
        seen.add(parent)
        for name, child in parent._modules.items():
            if child is None:
                continue
            if _inside(child) is not None:
                yield _Wrapped(parent, name, child)
            waiting.append(inner_model(child))


def _put_back(place: _Wrapped, inside: nn.Module) -> None:
    """The wrapper again, around `inside` or what has replaced it."""
    now = place.parent._modules.get(place.name)
    if now is not None and now is not inside:
        _exchange(place.wrapper, inside, now)
    place.parent._modules[place.name] = place.wrapper


def _exchange(wrapper: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """`new` wherever a wrapper, or one inside of it, has `old`."""
    for name, child in list(wrapper._modules.items()):
        if child is old:
            setattr(wrapper, name, new)
        elif child is not None and _inside(child) is not None:
            _exchange(child, old, new)
    again: Any = getattr(wrapper, "_initialize", None)
    if again is not None:  # OptimizedModule, which compiles what it was given first
        again()


# Batch norms that training folded into a convolution: which module stands where one was.
#
# The convolution remembers it, and no name: a model may be put into another one. So a file can say
# where its float model has a batch norm (docs/files.md).

_KEPT = "_folded_norms"  # in a tuple, so that it is no child: it stays where it was


def stands_for_norm(place: nn.Module, layer: QLayer) -> None:
    """Remember that `place` stands where a batch norm was that is folded into `layer`."""
    setattr(layer, _KEPT, (*folded_places(layer), place))


def folded_places(layer: QLayer) -> tuple[nn.Module, ...]:
    """What stands where batch norms were that are folded into `layer`."""
    places: tuple[nn.Module, ...] = vars(layer).get(_KEPT, ())
    return places


def folded_norms(model: nn.Module) -> dict[str, str]:
    """{name of a batch norm that was: the convolution that includes it}, in the model's order."""
    layers: dict[nn.Module, str] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            layers |= dict.fromkeys(folded_places(layer), name)
    modules = model.named_modules(remove_duplicate=False)
    return {name: layers[module] for name, module in modules if module in layers}
