# SPDX-License-Identifier: BSD-3-Clause
"""One warning for an optimizer that steps weights which are not in their model any more.

Quantizing replaces weights; an optimizer that was made before goes on stepping the old ones, and
nothing that it does reaches the model. The first model that loses parameters registers one hook
with torch, which runs before the steps of every optimizer: it looks once at those that it does not
know, and costs a look into a dictionary after that.
"""

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

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
    left = {id(parameter) for parameter in model.parameters()}
    gone = [each for each in before if id(each[2]) not in left]
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
