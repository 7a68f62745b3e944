# SPDX-License-Identifier: BSD-3-Clause
"""What stands before quantize_ and its kin: wrong uses are found before anything is changed."""

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from blockscale.core.parse import is_spelling
from blockscale.core.untrusted import kind_of
from blockscale.layers.buffers import Buffers
from blockscale.layers.layer import QLayer
from blockscale.layers.store import held

# What may be given where a model is wanted, and under which modes of torch.

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


def _found(item: object) -> str:
    """What it is, in words."""
    if item is None or isinstance(item, str):
        return repr(item)
    if isinstance(item, type):
        return f"the class {item.__name__}"
    if isinstance(item, torch.jit.ScriptModule):
        return f"a TorchScript program ({type(item).__name__})"
    if isinstance(item, Mapping):
        tensors = sum(isinstance(value, Tensor) for value in item.values())
        return f"a state_dict of {tensors} tensors" if tensors else kind_of(item)
    if isinstance(item, Tensor):
        return f"a tensor of shape {tuple(item.shape)}"
    name = getattr(item, "__name__", "")
    if callable(item) and name:
        return f"the function {name}"
    return kind_of(item)


def _advice(value: object) -> str:
    """What to do instead."""
    if value is None:
        return "did a function that makes the model forget to return it?"
    if isinstance(value, type):
        return f"make a model of it, such as {value.__name__}(...), and pass that"
    if isinstance(value, str | os.PathLike):
        return _of_text(os.fspath(value))
    if isinstance(value, Mapping) and any(isinstance(each, Tensor) for each in value.values()):
        return f"{_STATE}; single tensors go to bs.quantize(tensor, format)"
    owner = getattr(value, "__self__", None)
    if isinstance(owner, nn.Module):
        return f"pass the model whose method it is, {kind_of(owner)}"
    advice = (note for kind, note in _INSTEAD.items() if isinstance(value, kind))
    inside = (  # of a pipeline, a trainer, an engine
        f"pass its model: .{attribute}"
        for attribute in ("model", "module")
        if isinstance(getattr(value, attribute, None), nn.Module)
    )
    return next(iter([*advice, *inside, "pass the nn.Module that holds the layers"]))


_INSTEAD: dict[Any, str] = {
    torch.jit.ScriptModule: (
        "its layers are compiled and cannot be replaced: quantize the Python model that it "
        "was made from, then use torch.export or torch.compile"
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
        return f"the model must come first: build it, then bs.load(model, {text!r})"
    if is_spelling(text):
        return f"that is a format, and the model must come first: bs.quantize_(model, {text!r})"
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


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers are the same objects with the same numbers afterwards, whatever a forward does.

    Codes and scales are not copied: no forward writes them.
    """
    rest = [(m, dict(m._buffers)) for m in model.modules() if not isinstance(m, Buffers)]
    values = [(b, b.detach().clone()) for _, own in rest for b in own.values() if b is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for module, own in rest:
            module._buffers.clear()
            module._buffers.update(own)


# One warning for an optimizer that steps weights which are not in their model any more.
#
# Quantizing replaces weights; an optimizer that was made before goes on stepping the old ones, and
# nothing that it does reaches the model. The first model that loses parameters registers one hook
# with torch, which runs before the steps of every optimizer: it looks once at those that it does
# not
# know, and costs a look into a dictionary after that.

_replaced = WeakTensorKeyDictionary()  # {parameter: (its name, a weak reference to its module)}
_looked_at: "weakref.WeakKeyDictionary[Optimizer, int]" = weakref.WeakKeyDictionary()
_times = [0]  # how often parameters were replaced


@contextmanager
def replacing(model: nn.Module, called: str) -> Iterator[None]:
    """Remember the parameters that a model has before and not afterwards, unless this raises.

    called: what replaces them, e.g. "bs.quantize_"
    """
    before = [
        (f"{name}.{attribute}" if name else attribute, module, parameter)
        for name, module in model.named_modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None
    ]
    yield
    values = {id(parameter) for parameter in model.parameters()}
    gone = [each for each in before if id(each[2]) not in values]
    for name, module, parameter in gone:
        _replaced[parameter] = (name, weakref.ref(module), called)
    if gone:
        if not _times[0]:
            register_optimizer_step_pre_hook(_look)
        _times[0] += 1


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step."""
    del args, kwargs
    if torch.compiler.is_compiling() or _looked_at.get(optimizer) == _times[0]:
        return
    _looked_at[optimizer] = _times[0]
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    dead = [_replaced[p] for p in stepped if p in _replaced and not _is_held(p)]
    if not dead:
        return
    name, _, called = dead[0]
    count = f"{len(dead)} of its {len(stepped)} parameters are"
    warnings.warn(
        f"blockscale: this {type(optimizer).__name__} was made before {called}: {count} not "
        f"in the model any more ({name!r} is one), so its steps change nothing. Make the "
        "optimizer afterwards, from model.parameters() or the parameters of an adapter; to "
        "train the weights themselves, bs.prepare_qat keeps them",
        stacklevel=3,
    )


def _is_held(parameter: Tensor) -> bool:
    """Whether the module that had it is still there and has it: somebody kept the float layer."""
    _, module, _ = _replaced[parameter]
    owner = module()
    return owner is not None and any(p is parameter for p in owner._parameters.values())


# A quantized model tried on a sample: what cannot work is found before anybody needs it.


def device_of(model: nn.Module) -> torch.device:
    """Where the first parameter or buffer of a model is that has numbers; the meta device where
    none has, and the CPU where there are none."""
    devices = [t.device for t in chain(model.parameters(), model.buffers())]
    real = (device for device in devices if device.type != "meta")
    return next(real, devices[0] if devices else torch.device("cpu"))


def call(model: nn.Module, batch: Any, device: torch.device | None = None) -> Any:
    """Call the model: with a mapping's items as keyword arguments, a tuple's or list's as
    positional ones, anything else as the one argument; tensors are moved to the device, by default
    the model's."""
    args, kwargs = arguments(batch, device_of(model) if device is None else device)
    return model(*args, **kwargs)


def arguments(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `call` calls a model with for a batch, positional and by name."""
    if isinstance(batch, Mapping):
        return (), {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_moved(value, device) for value in batch), {}
    return (_moved(batch, device),), {}


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return value


@contextmanager
def tried(model: nn.Module, sample: Any) -> Iterator[None]:
    """Run the model on `sample` when what is inside has quantized it; None runs nothing.

    It runs without gradients and in the mode it is in; buffers and torch's random numbers are as
    before then. Raises RuntimeError, and puts everything back, where it cannot run: with the
    innermost module whose forward raised, the quantized weights it has, and how to leave it out.
    """
    if sample is None:
        yield
        return
    before = Snapshot(model)
    yield
    error = _run(model, sample)
    if error is None:
        return
    message = _told(model, error)
    before.restore()
    if (same := _run(model, sample)) is not None:
        message = (
            "the float model fails as well: does the sample match its inputs? As for batches "
            "of bs.calibrate, a "
        )
        message += "tuple holds positional arguments and a mapping holds keyword arguments"
        error = same
    raise RuntimeError(
        f"the quantized model does not run on the sample, and nothing was changed: "
        f"{type(error).__name__}: {error}; {message}"
    ) from error


def _run(model: nn.Module, sample: Any) -> Exception | None:
    """What a call raises, None if it does not; the model is as it was."""
    devices = {t.device.index for t in chain(model.parameters(), model.buffers()) if t.is_cuda}
    with torch.random.fork_rng(sorted(devices)), buffers_kept(model), torch.no_grad():
        try:
            call(model, sample)
        except Exception as error:
            return error
    return None


def _told(model: nn.Module, error: Exception) -> str:
    """Where it was raised, and what to leave in float so that it is not."""
    names = {id(module): name for name, module in model.named_modules()}
    inside = [each for each in _forwards(error.__traceback__) if id(each) in names]
    place = inside[-1] if inside else model
    weights: list[str] = []
    for module in [place, *reversed(inside[:-1]), model]:  # the nearest that has codes
        weights = _quantized_in(module, names.get(id(module), ""))
        if weights:
            break
    called = names.get(id(place), "") or "the model itself"
    kind = type(place).__name__
    if not weights:
        return f"raised in {called} ({kind}), which has no quantized weight"
    skip = [name.removesuffix(".weight") for name in weights]
    return (
        f"raised in {called} ({kind}), whose quantized weight is {' or '.join(weights)}: leave it "
        f"in float with skip={skip} in the recipe"
    )


def _forwards(trace: TracebackType | None) -> Iterator[nn.Module]:
    """The modules whose forward was running, the outermost first."""
    while trace is not None:
        own = trace.tb_frame.f_locals.get("self")
        if trace.tb_frame.f_code.co_name == "forward" and isinstance(own, nn.Module):
            yield own
        trace = trace.tb_next


def _quantized_in(module: nn.Module, name: str) -> list[str]:
    """The names of the codes that a module has itself, or else those right below it."""
    if isinstance(module, QLayer):
        return [f"{name}.weight" if name else "weight"]
    own = [f"{name}.{each}" if name else each for each in held(module)]
    for child, layer in module.named_children():
        if isinstance(layer, QLayer):
            own.append(f"{name}.{child}.weight" if name else f"{child}.weight")
    return own
