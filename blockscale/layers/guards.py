# SPDX-License-Identifier: BSD-3-Clause
"""What stands before quantize_ and its kin: wrong uses are found before anything is changed."""

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from blockscale.core.arithmetic.sums import digest
from blockscale.core.parse import is_spelling
from blockscale.core.untrusted import kind_of
from blockscale.layers.kinds import quantized_class
from blockscale.layers.model import Snapshot

Group: TypeAlias = "Literal['same', 'local'] | dist.ProcessGroup | None"

# What may be given where a model is wanted, and under which modes of torch.

_STATE = "build the model, model.load_state_dict(state), and pass the model"


def check_model(model: object, caller: str) -> None:
    """Raise TypeError, which says what to pass instead, unless `model` is a module of Python's.

    caller: the function that it was given to, e.g. "bs.quantize_"
    """
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        return
    raise TypeError(
        f"{caller}: expected a model (an nn.Module), found {_what_it_is(model)}: {_advice(model)}"
    )


def _what_it_is(item: object) -> str:
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


def check_flag(caller: str, name: str, value: object) -> None:
    """Raise TypeError for anything but True and False: any text but "" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{caller}: {name} must be True or False, got {value!r}")


# Quantizing looks at whole weights: models that are sharded, or moved to their device by hooks, are
# refused.


def check_whole(model: nn.Module, caller: str) -> None:
    """Raise TypeError for what is no model, and ValueError for one that is sharded,
    or whose layers run under accelerate's hooks.

    caller: the function that it was given to, e.g. "bs.quantize_"
    """
    check_model(model, caller)
    check_unsharded(model, caller)
    hooks = [name for name, each in model.named_modules() if _is_dispatched(each)]
    if hooks:
        raise ValueError(
            f"{caller}: accelerate moves {len(hooks)} of the model's layers to their device when "
            f"they run (dispatch_model, cpu_offload, disk_offload or a device_map), such as "
            f"{hooks[0]!r}: call accelerate.hooks.remove_hook_from_submodules(model) first and "
            f"dispatch the quantized model again, or let from_pretrained do all of it "
            f"(quantization_config=BlockscaleConfig(recipe), device_map=…)"
        )


def check_unsharded(model: nn.Module, caller: str) -> None:
    """Raise ValueError for a model whose tensors are parts of others (DTensor: FSDP2, tensor
    parallel)."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts = [n for n, each in model.named_modules() if getattr(each, "part", "")]
    if parts:
        raise ValueError(
            f"{caller}: each process has a part of {len(parts)} of the model's weights, such as "
            f"{parts[0]!r} (bs.parallel.shard_): call it before that, on the whole model"
        )
    sharded = [(name, tensor) for name, tensor in tensors if hasattr(tensor, "full_tensor")]
    if sharded:
        name, tensor = sharded[0]
        raise ValueError(
            f"{caller}: {len(sharded)} of the model's {len(tensors)} tensors are shards, such "
            f"as {name!r} ({_placement(tensor)}): call it before fully_shard, parallelize_module "
            "or a tp_plan, or gather the state "
            "(torch.distributed.checkpoint.state_dict.get_model_state_dict with "
            "full_state_dict=True) into a model that is whole"
        )


def _placement(tensor: Any) -> str:
    """How a DTensor lies, in words."""
    places = getattr(tensor, "placements", ())
    return f"{kind_of(tensor)}: {', '.join(map(str, places))}"


def _is_dispatched(module: nn.Module) -> bool:
    """Whether it is a float layer that could be quantized, under a hook of accelerate's."""
    return "_hf_hook" in vars(module) and quantized_class(module) is not None


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
def replacing(model: nn.Module, caller: str) -> Iterator[None]:
    """Remember the parameters that a model has before and not afterwards, unless this raises.

    caller: what replaces them, e.g. "bs.quantize_"
    """
    before = [
        (f"{name}.{attribute}" if name else attribute, module, parameter)
        for name, module in model.named_modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None
    ]
    yield
    values = {id(parameter) for parameter in model.parameters()}
    old = [each for each in before if id(each[2]) not in values]
    for name, module, parameter in old:
        _replaced[parameter] = (name, weakref.ref(module), caller)
    if old:
        if not _times[0]:
            register_optimizer_step_pre_hook(_look)
        _times[0] += 1


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step."""
    del args, kwargs
    if torch.compiler.is_compiling() or _looked_at.get(optimizer) == _times[0]:
        return
    _looked_at[optimizer] = _times[0]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    dead = [_replaced[p] for p in parameters if p in _replaced and not _is_held(p)]
    if not dead:
        return
    name, _, caller = dead[0]
    count = f"{len(dead)} of its {len(parameters)} parameters are"
    warnings.warn(
        f"blockscale: this {type(optimizer).__name__} was made before {caller}: {count} not "
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


# Processes that must not disagree: each quantizes by itself, so data of which each sees a part are
# refused unless the caller says what is right.


def check_group(group: Group, caller: str, *, compared: bool = True) -> None:
    """Raise ValueError in a torch.distributed group of several processes, unless the caller has
    said what each of them sees; and for anything but "same", "local" and None.

    compared: whether there are codes at the end to compare for "same", as prepared graphs have none
    """
    if group not in ("same", "local", None) and not is_group(group):
        raise ValueError(
            f"{caller}: group must be a process group, such as torch.distributed.group.WORLD "
            "(batch i is that of process i mod N, and all get one model), 'same' (every process "
            f"has the same batches), 'local' (each gets a model of its own) or None, got {group!r}"
        )
    if is_group(group) and not compared:
        raise ValueError(
            f"{caller}: a prepared graph does not merge over a group what its processes see: "
            "calibrate and convert it in one process and share it with bs.export.program, or pass "
            "group='local'"
        )
    if group == "same" and not compared and processes() > 1:
        raise ValueError(
            f"{caller}: a prepared graph has no codes yet to compare: calibrate and convert "
            "it in one process and share it with bs.export.program, or pass group='local'"
        )
    if group is None and processes() > 1:
        raise ValueError(
            f"{caller} was called in a group of {processes()} processes: each would choose scales "
            f"and codes from the batches that it sees, and they would end with different models. "
            f"Say what is right here: group=torch.distributed.group.WORLD if batch i of all is "
            f"that of process i mod {processes()}, for one model made from all; group='same' if "
            f"every process has the same batches, which is compared at the end; or group='local' "
            f"if each is to have a model of its own"
        )


def is_group(group: object) -> bool:
    """Whether this is a process group of torch.distributed."""
    return dist.is_available() and isinstance(group, dist.ProcessGroup)


def is_launched() -> bool:
    """Whether torchrun, or what sets the same variables, started several of this process."""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in variables) and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this process is the one that writes and prints for all that torchrun started."""
    return not is_launched() or int(os.environ["RANK"]) == 0


def processes() -> int:
    """How many there are in torch's default group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def agreeing(model: nn.Module, group: Group) -> Iterator[None]:
    """With "same" or a process group, compare what every process has made of the model inside.

    Raises RuntimeError, in every process, where it is not the same; the model is as before then.
    """
    members = group if is_group(group) else None
    if not (group == "same" and processes() > 1) and members is None:
        yield
        return
    before = Snapshot(model)
    yield
    results: list[Any] = [None] * dist.get_world_size(members)  # type: ignore[arg-type]
    dist.all_gather_object(results, _digests(model), members)
    odd = [i for i, each in enumerate(results) if each != results[0]]
    if odd:
        before.restore()
        first, other = results[0], results[odd[0]]
        names = [n for n in {**first, **other} if first.get(n) != other.get(n)]
        start = "group='same', but" if members is None else "they calibrated one model, but"
        raise RuntimeError(
            f"{start} processes 0 and {odd[0]} have made other codes or scales of "
            f"the model, such as {names[0]!r}; the model is as it was before (this is process "
            f"{dist.get_rank(members)}): do all have the "  # type: ignore[arg-type]
            "same weights, batches and seed? With group='local' each gets a model of its own"
        )


def _digests(model: nn.Module) -> dict[str, str]:
    """{name: digest} of all tensors in a model's state."""
    tensors = {n: each for n, each in model.state_dict().items() if isinstance(each, Tensor)}
    sums = {name: digest(each) for name, each in tensors.items()}  # a GPU goes on meanwhile
    return {n: f"{x.dtype} {tuple(x.shape)} {int(sums[n])}" for n, x in tensors.items()}


# A model called as calibration calls it, on a batch as its user has it.


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
        return (), {name: _move(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_move(value, device) for value in batch), {}
    return (_move(batch, device),), {}


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _move(each, device) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_move(each, device) for each in value)
    return value
