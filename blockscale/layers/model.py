# SPDX-License-Identifier: BSD-3-Clause
"""What is to know of a whole model: what is around it, and what training took out of it; and who
has to know that it has quantized layers: its library, its methods, DistributedDataParallel."""

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from blockscale.core.recipe import Recipe
from blockscale.layers.buffers import Buffers
from blockscale.layers.kinds import QEmbedding, QLinear
from blockscale.layers.layer import QLayer
from blockscale.layers.store import all_held

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


# A model's modules, parameters and buffers as they are, to be put back.


class Snapshot:
    """Which objects a model consists of; their numbers are not copied."""

    def __init__(self, model: nn.Module):
        self._parts = [
            (m, m.__class__, dict(vars(m)), dict(m._modules), dict(m._parameters), dict(m._buffers))
            for m in model.modules()
        ]

    def restore(self) -> None:
        """Put every object back where it was."""
        for module, kind, attributes, modules, parameters, buffers in self._parts:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._parameters.clear()
            module._buffers.clear()
            module._modules.update(modules)
            module._parameters.update(parameters)
            module._buffers.update(buffers)


# Quantized weights know what they are called, so that errors can say which one they are about.


def tell_names(model: nn.Module) -> None:
    """Tell each quantized weight and bias of a model its first name, unless it has one."""
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            for part, tensor in (("weight", layer.qweight), ("bias", layer.quantized_bias)):
                if tensor is not None:
                    tensor.name = tensor.name or f"{name}.{part}"
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


class _Wrapper(NamedTuple):
    """A module of a model that is in wrappers: `wrapper` is the child `name` of `parent`."""

    parent: nn.Module
    name: str
    wrapper: nn.Module


@contextmanager
def without_wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The plain model; while the context lasts, without the wrappers inside of it, too.

    They are put back afterwards, around what then is in their place. Raises ValueError for a model
    in FullyShardedDataParallel.
    """
    plain = inner_model(model)
    with ExitStack() as afterwards:
        for place in list(_wrappers(plain)):
            inside = inner_model(place.wrapper)
            afterwards.callback(_put_back, place, inside)
            place.parent._modules[place.name] = inside
        yield plain


def _wrappers(model: nn.Module) -> Iterator[_Wrapper]:
    """The outermost wrappers in a model, and those inside of what they wrap."""
    parents: set[nn.Module] = set()
    waiting = [model]
    while waiting:
        parent = waiting.pop()
        if parent in parents or not isinstance(parent, nn.Module):
            continue
        parents.add(parent)
        for name, child in parent._modules.items():
            if child is None:
                continue
            if _inside(child) is not None:
                yield _Wrapper(parent, name, child)
            waiting.append(inner_model(child))


def _put_back(place: _Wrapper, inside: nn.Module) -> None:
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


# resize_token_embeddings of transformers, for models whose embeddings are quantized.
#
# transformers takes only nn.Embedding and nn.Linear there, and finds that out when it may have
# replaced one of the two already. So a quantized model gets the method as an attribute of its own.


_METHOD = "resize_token_embeddings"
_ENDS = ("get_input_embeddings", "get_output_embeddings")


def let_embeddings_be_resized(model: nn.Module) -> None:
    """Give the method to each model of transformers in `model` that has quantized layers."""
    for module in model.modules():
        theirs = callable(getattr(type(module), _METHOD, None)) and hasattr(module, _ENDS[0])
        if theirs and any(isinstance(inner, QLayer) for inner in module.modules()):
            vars(module)[_METHOD] = partial(_resize, module)


def _resize(
    model: Any,
    new_num_tokens: int | None = None,
    pad_to_multiple_of: int | None = None,
    *more: Any,
    **options: Any,
) -> nn.Module:
    """As the model's class does it. Quantized embeddings and output embeddings, if their size
    changes, become float layers before: what they hold is dequantized, and a warning names them.

    Raises what transformers raises; the model is as it was then.
    """
    own = partial(getattr(type(model), _METHOD), model)
    quantized = {} if new_num_tokens is None and pad_to_multiple_of is None else _ends(model)
    rows = {layer.qweight.shape[0] for layer in quantized.values()}
    multiple = pad_to_multiple_of if isinstance(pad_to_multiple_of, int) else 1
    target = rows if new_num_tokens is None else {new_num_tokens}
    if rows and {-(-each // multiple) * multiple for each in target} == rows:
        quantized = {}  # the size that they have
    floats = _floats(quantized)
    old = swap(model, floats)
    try:
        resized: nn.Module = own(new_num_tokens, pad_to_multiple_of, *more, **options)
    except BaseException:
        swap(model, old)
        raise
    if floats:
        warnings.warn(
            f"blockscale: resized, and in float from now on: {', '.join(floats)}. They hold "
            "the dequantized values, without formats for inputs and outputs; call quantize_ "
            "to quantize them again",
            stacklevel=2,
        )
    return resized


def _ends(model: Any) -> dict[str, QLayer]:
    """{name: layer} of the embeddings and output embeddings that are quantized."""
    ends = [result() for get in _ENDS if inspect.ismethod(result := getattr(model, get, None))]
    kinds = QEmbedding | QLinear
    layers = [e for e in ends if isinstance(e, kinds) and e.qweight.layout == "plain"]
    modules = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in modules if any(module is each for each in layers)}


def _floats(quantized: dict[str, QLayer]) -> dict[str, nn.Module]:
    """Float layers in place of these; those that share codes share a parameter."""
    weights: dict[int, nn.Parameter] = {}
    by_layer: dict[int, nn.Module] = {}
    for layer in quantized.values():
        if id(layer) in by_layer:
            continue
        key = id(layer.qweight)
        if layer.before is not None or key not in weights:
            weights[key] = nn.Parameter(layer.dequantize_weight())
        by_layer[id(layer)] = _float(layer, weights[key])
    return {name: by_layer[id(layer)] for name, layer in quantized.items()}


def _float(layer: Any, weight: nn.Parameter) -> nn.Module:
    """A quantized table or matrix as a float layer with this weight."""
    value: Any
    if isinstance(layer, QEmbedding):
        rows, size = weight.shape
        value = nn.Embedding(rows, size, layer.padding_idx, device="meta")
    else:
        value = nn.Linear(weight.shape[1], weight.shape[0], layer.bias is not None, device="meta")
        if layer.bias is not None:
            value.bias = nn.Parameter(layer.added_bias().detach().to(weight.dtype))
    value.weight = weight
    QLayer.take_place_of(value, layer)  # mode and hooks
    return value  # type: ignore[no-any-return]


# Models that got quantized layers are announced, so that rooms further right can tell the library
# that a model comes from how to save it. Nothing of that library is imported here.

Listener = Callable[[nn.Module, Recipe | None], None]


listeners: list[Listener] = []


def announce(model: nn.Module, recipe: Recipe | None = None) -> None:
    """Say that a model has quantized layers now, by this recipe if one is known."""
    for listener in listeners:
        listener(model, recipe)


# DistributedDataParallel would send all codes at each forward, as it does buffers: a model with
# quantized layers says that they need not be sent.


_IGNORED = "_ddp_params_and_buffers_to_ignore"  # torch.nn.parallel.DistributedDataParallel reads it


_hooked: list[bool] = []


class _Codes:
    """The names of codes and scales in a module, as they are when DistributedDataParallel asks;
    and others that it was told to ignore."""

    def __init__(self, module: nn.Module, others: tuple[str, ...] = ()):
        self._module, self._others = weakref.ref(module), others

    def __iter__(self) -> Iterator[str]:
        yield from self._others
        module = self._module()
        for prefix, each in () if module is None else module.named_modules(remove_duplicate=False):
            if isinstance(each, Buffers):
                yield from (f"{prefix}.{name}" for name in each.own)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Codes":
        module: Any = self._module()
        return _Codes(memo.get(id(module), module), self._others)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Codes, (self._module(), self._others)


def sent_by_no_forward(model: nn.Module) -> None:
    """Let DistributedDataParallel around this model, or around a module that it is put into later,
    leave codes and scales alone: they do not change."""
    entry = vars(model).get(_IGNORED)
    if not isinstance(entry, _Codes):
        vars(model)[_IGNORED] = _Codes(model, tuple(entry or ()))  # no wrapper hands it on
    if not _hooked:  # the first model: importing does nothing
        register_module_module_registration_hook(_put_into)
        _hooked.append(True)


def _put_into(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """A module was put into another, such as peft's around a model."""
    del name
    if child is not None and isinstance(vars(child).get(_IGNORED), _Codes):
        sent_by_no_forward(parent)
