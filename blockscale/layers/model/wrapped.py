# SPDX-License-Identifier: BSD-3-Clause
"""Models inside of others that only run them: compiled, parallel, averaged. What quantizes, saves
and loads works on the plain model, by the names that it has without them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import nn

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
