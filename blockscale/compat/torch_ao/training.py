# SPDX-License-Identifier: BSD-3-Clause
"""Train a model by torch.ao's configuration: its recipe and its observer, handed to blockscale."""

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.ao import quantization as ao

from blockscale import qat
from blockscale.calibration import observers
from blockscale.compat.torch_ao.blocks import FormatObserver, asked_format, spec_of
from blockscale.compat.torch_ao.formats import instance
from blockscale.compat.torch_ao.option import unwrap
from blockscale.compat.torch_ao.recipe import is_layer, mapping_of, to_recipe
from blockscale.core.format import Format


def prepare_qat(
    model: nn.Module,
    config: Any = None,
    *,
    outputs: bool = False,
    observer: observers.Spec | None = None,
    inplace: bool = True,
    **options: Any,
) -> nn.Module:
    """A float model -> prepared for training, by a torch.ao QConfig or QConfigMapping; returns it.

    It is bs.prepare_qat(model, to_recipe(config, model, outputs=outputs), observer=observer), with
    further `options` of that. `convert` then gives the quantized model.

    config: None takes the `qconfig` attributes of the model and its modules, as torch.ao's does.
    observer: by default the one that the configuration's activations name, see `to_observer`.
    inplace: False prepares a copy, which torch.ao's does by default.

    Raises ValueError for what cannot be translated, and as bs.prepare_qat, before anything changes.
    """
    mapping = mapping_of(model, config)
    recipe = to_recipe(mapping, model, outputs=outputs)
    chosen = to_observer(mapping) if observer is None else observer
    model = model if inplace else copy.deepcopy(model)
    return qat.prepare_qat(model, recipe, observer=chosen, **options)


def to_observer(config: Any) -> str:
    """The observer of blockscale that stands for the one of a configuration's activations.

    Minima and maxima and their moving averages are the same ones. A HistogramObserver becomes
    "mse", which also minimizes the squared error, but for the format at hand. Where nothing is
    observed (float or dynamic activations, Formats) it is "moving_average".

    Raises ValueError if there are several, or one that has no counterpart.
    """
    specs = {spec for qconfig in _qconfigs(config) if (spec := _spec(qconfig))}
    if len(specs) > 1:
        raise ValueError(
            f"the activations have several observers, {', '.join(sorted(specs))}: "
            f"choose one, observer=..."
        )
    return specs.pop() if specs else "moving_average"


def _qconfigs(config: Any) -> Iterator[Any]:
    if not isinstance(config, ao.QConfigMapping):
        yield config
        return
    yield config.global_qconfig
    yield from config.module_name_qconfigs.values()
    yield from config.module_name_regex_qconfigs.values()
    yield from config.module_name_object_type_order_qconfigs.values()
    yield from (q for kind, q in config.object_type_qconfigs.items() if is_layer(kind))


def _spec(qconfig: Any) -> str | None:
    if qconfig is None or isinstance(qconfig.activation, str | Format | None):
        return None
    _, arguments, _ = unwrap(qconfig.activation)
    if asked_format(arguments) is not None and "observer" not in arguments:
        return None  # a format alone
    made = instance(qconfig.activation)
    made = getattr(made, "activation_post_process", made)
    if isinstance(made, FormatObserver):
        return made.spec if made.statistics is not None else None
    if isinstance(made, nn.Identity | ao.PlaceholderObserver) or getattr(made, "is_dynamic", False):
        return None
    try:
        return spec_of(type(made), vars(made), users=True)
    except TypeError:
        raise ValueError(
            f"{type(made).__name__} has no counterpart here: choose one, observer=..."
        ) from None
