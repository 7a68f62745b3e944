# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's ready-made constructors and QConfigs, of classes that take `power_of_2_scale`."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch.ao import quantization as ao

from blockscale.compat.torch_ao import fake_quantize, observers
from blockscale.compat.torch_ao.blocks import format_as_dtype
from blockscale.compat.torch_ao.option import (
    chooses_nothing,
    of_torchao,
    unwrap,
    with_option,
    wrap,
)
from blockscale.core.format import Format
from blockscale.core.integer_scales import with_power_of_2_scale
from blockscale.core.parse import parse

_FAKES: dict[Any, Any] = {
    ao.FakeQuantize: fake_quantize.FakeQuantize,
    ao.FusedMovingAvgObsFakeQuantize: fake_quantize.FusedMovingAvgObsFakeQuantize,
}


class QConfig(ao.QConfig):
    """torch.ao's, whose parts may be formats, too: QConfig(activation="bfp8", weight="mxfp4").

    A format, its name or its spelling becomes a FakeQuantize of it, made for its part, that
    torch.ao's own prepare, prepare_fx, prepare_qat and prepare_qat_fx call; so do observers and
    fake quantizers with a format as dtype. Other parts stay as they are.

    ch_axis: the dimension of activations that blocks of a format alone lie along, as torch.ao's
        flows do not say what reads them: 1 for the channels of images. `prepare`, `prepare_qat`
        and `to_recipe` here know each layer, and need none.

    A spelling that does not parse is a ValueError where the part is called.
    """

    __slots__ = ()

    def __new__(cls, activation: Any, weight: Any, *, ch_axis: int = -1) -> "QConfig":
        if isinstance(activation, str | Format):
            activation = fake_quantize.FakeQuantize.with_args(
                dtype=activation, part="input", ch_axis=ch_axis
            )
        return super().__new__(cls, _of_part(activation, "input"), _of_part(weight, "weight"))


def _of_part(part: Any, name: str) -> Any:
    """A constructor that knows what part of a layer it is for, where it is of a format."""
    if isinstance(part, str | Format):
        return fake_quantize.FakeQuantize.with_args(dtype=part, part=name)
    kind, arguments, calls = unwrap(part)
    data = {**unwrap(arguments.get("observer"))[1], **arguments}
    if (
        not isinstance(data.get("dtype"), str | Format)
        or data.get("part") == name
        or not _is_ours(kind)
    ):
        return part
    return wrap(kind, {**arguments, "part": name}, calls)


def power_of_2(config: Any, enabled: bool = True) -> Any:
    """torch.ao's configuration -> the same with power-of-two scales; `config` stays as it is.

    config: a QConfig, a QConfigMapping, or what they hold: a class, a class with arguments
        (`with_args`), a Format, None. Or torchao's for PT2E, of the classes of the same names: a
        QuantizationSpec, a QuantizationConfig, which quantizers take. A subclass of their
        observers gives a subclass of it that takes `power_of_2_scale`. What chooses no scale (a
        fixed one, an identity, a shared or derived QuantizationSpec) stays.
    enabled: False exchanges torch.ao's classes for ours and leaves the numbers alone.

    Raises ValueError for an observer or a fake quantizer that is neither torch.ao's nor torchao's
    nor ours, and for what is no configuration.
    """
    if isinstance(config, ao.QConfigMapping):
        return _mapping(config, enabled)
    if isinstance(config, ao.QConfig):
        return QConfig(*(power_of_2(part, enabled) for part in config))
    if isinstance(config, str | Format):
        return with_power_of_2_scale(parse(config)) if enabled else config
    if is_dataclass(config) and not isinstance(config, type):
        return _specs(config, enabled)
    kind, arguments, calls = unwrap(config)
    kind = _ours(kind)
    if not _is_ours(kind):
        if enabled and not chooses_nothing(kind):
            raise ValueError(
                f"{kind}: only the observers and fake quantizers of torch.ao.quantization and "
                f"torchao.quantization.pt2e, subclasses of those observers, and subclasses of "
                f"blockscale's can round their scales"
            )
        return config
    own = format_as_dtype(arguments)
    if own is None:
        return wrap(kind, _with_option(arguments, enabled), calls)
    rounded = arguments | {"dtype": with_power_of_2_scale(own)}
    return wrap(kind, rounded, calls) if enabled else config


def _with_option(arguments: dict[str, Any], enabled: bool) -> dict[str, Any]:
    """The arguments of one of our classes, with the option."""
    if "observer" in arguments:
        arguments["observer"] = power_of_2(arguments["observer"], enabled=False)
        inner = unwrap(arguments["observer"])[0]
        if enabled and not _is_ours(inner):
            raise ValueError(f"{inner}: only torch.ao's observers can round their scales")
    return arguments | {"power_of_2_scale": True} if enabled else arguments


def _ours(kind: Any) -> Any:
    """Our class for one of torch.ao's or torchao's; every other object as it is."""
    if not isinstance(kind, type):
        return kind
    if of_torchao(kind):
        from blockscale.compat.torch_ao import pt2e_fakes  # torchao is there, as its class is

        return with_option(pt2e_fakes.FAKES.get(kind, kind))
    return with_option(_FAKES.get(kind, kind))


def _is_ours(kind: Any) -> bool:
    """Whether it takes power_of_2_scale: one of our classes, or a subclass of one."""
    if not isinstance(kind, type):
        return False
    ours = (observers.PowerOfTwoScale, fake_quantize.FakeQuantize, fake_quantize.InTurn)
    return issubclass(kind, ours) or kind.__module__ == "blockscale.compat.torch_ao.pt2e_fakes"


def _specs(config: Any, enabled: bool) -> Any:
    """torchao's QuantizationSpec, or the specs of its QuantizationConfig and what is derived."""
    own_parts = {f.name: getattr(config, f.name) for f in fields(config) if f.init}
    if "observer_or_fake_quant_ctr" in own_parts:
        if enabled and own_parts.get("is_dynamic"):
            raise ValueError(
                "a dynamic QuantizationSpec: torchao's own operator chooses its scales at run "
                "time, as floats: use a static one, or blockscale's recipes"
            )
        result = power_of_2(own_parts["observer_or_fake_quant_ctr"], enabled)
        return replace(config, observer_or_fake_quant_ctr=result)
    specs = {name: spec for name, spec in own_parts.items() if is_dataclass(spec)}
    if not specs and not {"derived_from", "edge_or_node", "scale"} & set(own_parts):
        raise ValueError(f"{type(config).__name__} holds no QuantizationSpec")
    return replace(config, **{name: _specs(spec, enabled) for name, spec in specs.items()})


def _mapping(mapping: ao.QConfigMapping, enabled: bool) -> ao.QConfigMapping:
    new = ao.QConfigMapping().set_global(power_of_2(mapping.global_qconfig, enabled))
    for kind, qconfig in mapping.object_type_qconfigs.items():
        new.set_object_type(kind, power_of_2(qconfig, enabled))
    for regex, qconfig in mapping.module_name_regex_qconfigs.items():
        new.set_module_name_regex(regex, power_of_2(qconfig, enabled))
    for name, qconfig in mapping.module_name_qconfigs.items():
        new.set_module_name(name, power_of_2(qconfig, enabled))
    for place, qconfig in mapping.module_name_object_type_order_qconfigs.items():
        new.set_module_name_object_type_order(*place, power_of_2(qconfig, enabled))
    return new


def get_default_qconfig(backend: str = "x86", version: int = 0) -> ao.QConfig:
    """torch.ao's QConfig for calibration on a backend, of our classes; version as theirs."""
    return power_of_2(ao.get_default_qconfig(backend, version), enabled=False)


def get_default_qat_qconfig(backend: str = "x86", version: int = 1) -> ao.QConfig:
    """torch.ao's QConfig for training on a backend, of our classes; version as theirs."""
    return power_of_2(ao.get_default_qat_qconfig(backend, version), enabled=False)


def get_default_qconfig_mapping(backend: str = "x86", version: int = 0) -> ao.QConfigMapping:
    """torch.ao's QConfigMapping for calibration on a backend, of our classes; version as theirs."""
    return power_of_2(ao.get_default_qconfig_mapping(backend, version), enabled=False)


def get_default_qat_qconfig_mapping(backend: str = "x86", version: int = 1) -> ao.QConfigMapping:
    """torch.ao's QConfigMapping for training on a backend, of our classes; version as theirs."""
    return power_of_2(ao.get_default_qat_qconfig_mapping(backend, version), enabled=False)


DEFAULTS = (
    "default_observer",
    "default_weight_observer",
    "default_per_channel_weight_observer",
    "default_histogram_observer",
    "default_dynamic_quant_observer",
    "default_placeholder_observer",
    "default_fake_quant",
    "default_weight_fake_quant",
    "default_per_channel_weight_fake_quant",
    "default_histogram_fake_quant",
    "default_dynamic_fake_quant",
    "default_fused_act_fake_quant",
    "default_fused_wt_fake_quant",
    "default_fused_per_channel_wt_fake_quant",
    "default_qconfig",
    "default_per_channel_qconfig",
    "default_dynamic_qconfig",
    "default_qat_qconfig",
    "default_qat_qconfig_v2",
    "default_dynamic_qat_qconfig",
    "default_weight_only_qconfig",
    "default_activation_only_qconfig",
    "default_symmetric_qnnpack_qconfig",
    "default_symmetric_qnnpack_qat_qconfig",
    "default_per_channel_symmetric_qnnpack_qconfig",
    "default_per_channel_symmetric_qnnpack_qat_qconfig",
)


def default(name: str) -> Any:
    """torch.ao's `default_...` of that name, one of DEFAULTS, of our classes."""
    return power_of_2(getattr(ao, name), enabled=False)
