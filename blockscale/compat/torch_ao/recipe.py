# SPDX-License-Identifier: BSD-3-Clause
"""What an observer or fake quantizer of torch.ao does to a tensor, as a Format."""

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.ao import quantization as ao

from blockscale.core.block import read_block
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.integer_scales import with_power_of_2_scale
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.scale import FLOAT_SCALES
from blockscale.core.torch_private import ConvNd
from blockscale.layers.kinds import quantized_class

_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)
_INTEGERS = (
    torch.qint8, torch.quint8, torch.quint4x2, torch.int8, torch.uint8, torch.int16, torch.uint16,
)  # fmt: skip
_RANGES = {  # where the observer itself has none (placeholders)
    torch.qint8: (-128, 127), torch.int8: (-128, 127),
    torch.quint8: (0, 255), torch.uint8: (0, 255), torch.quint4x2: (0, 15),
    torch.int16: (-(2**15), 2**15 - 1), torch.uint16: (0, 2**16 - 1),
}  # fmt: skip


def to_format(observer: nn.Module) -> Format | None:
    """A torch.ao observer or fake quantizer, theirs or ours -> its Format; None: values stay float.

    The format quantizes with torch.ao's bits: under float scales by its 127.5 rule (`half`) and
    its multiplication by a reciprocal (`recip`), except that scales may be smaller than torch.ao's
    `eps`, 2^-23. With power_of_2_scale it is the same rule and the same range that is rounded to a
    power of two, by the format as by our observers. One that was made with a format as its dtype
    gives that.

    Raises ValueError for what no Format says: ranges that are not those of an integer type, float
    zero points, fixed scales, float16.
    """
    if isinstance(observer, nn.Identity):
        return None
    fake = getattr(observer, "activation_post_process", observer)
    if isinstance(own := getattr(fake, "format", None), Format):
        return own
    dtype, qscheme = getattr(fake, "dtype", None), getattr(fake, "qscheme", None)
    if dtype is torch.float32:
        return None
    if dtype not in _INTEGERS or not hasattr(fake, "quant_min"):
        raise ValueError(
            f"{_name(fake)} of dtype {dtype} has no integers that a Format could describe"
        )
    if hasattr(fake, "scale"):
        raise ValueError(f"{_name(fake)} has a fixed scale: pass it to quantize_ as input_scales")
    if qscheme not in (*_TENSOR, *_CHANNEL):
        raise ValueError(f"{_name(fake)}: {qscheme} has no integer zero point")
    element, options = _element(fake, qscheme in _SYMMETRIC)
    axis = getattr(fake, "ch_axis", 0)
    block = read_block(f"channel{axis}" if qscheme in _CHANNEL else "tensor")
    fmt = Format(element, block, FLOAT_SCALES["fp32"], recip=True, **options)
    return with_power_of_2_scale(fmt) if getattr(fake, "power_of_2_scale", False) else fmt


def _element(fake: Any, symmetric: bool) -> tuple[Integer, dict[str, Any]]:
    """The integers between the observer's limits, once its zero point is taken off."""
    low, high = fake.quant_min, fake.quant_max
    if low is None or high is None:
        low, high = _RANGES[fake.dtype]
    zero = _middle(fake, low, high) if symmetric else 0
    low, high = low - zero, high - zero
    bits = high.bit_length()
    if symmetric and high == 2**bits - 1 and low in (-high, -high - 1) and bits:
        return Integer(bits + 1), {"span": "half" if low < -high else ""}
    if not symmetric and (low, high) == (0, 2**bits - 1) and bits:
        return Integer(bits, signed=False), {"asym": True}
    if not symmetric and (low, high) == (-(2**bits), 2**bits - 1) and bits:
        return Integer(bits + 1), {"asym": True}
    kind = "symmetric" if symmetric else "affine"
    raise ValueError(
        f"{_name(fake)}: the {kind} range {low} ... {high} is not that of an integer type, such as "
        f"{'-127 ... 127, -128 ... 127' if symmetric else '0 ... 255, -128 ... 127'}"
    )


def _middle(fake: Any, low: int, high: int) -> int:
    """The zero point of torch.ao's symmetric schemes."""
    if fake.dtype in (torch.quint8, torch.uint8):
        return (low + high) // 2 if getattr(fake, "has_customized_qrange", False) else 128
    return 2**15 if fake.dtype is torch.uint16 else 0


def _name(observer: nn.Module) -> str:
    return type(observer).__name__


# One QConfig of torch.ao as the formats of a layer.


def to_scheme(qconfig: Any, place: str = "qconfig", outputs: bool = False) -> Scheme:
    """A QConfig, theirs or ours, or None for float -> the formats of a layer.

    Its parts may also be Formats, names or spellings: QConfig(activation="mxfp8", weight="bfp8").
    place: what error messages call it; outputs: as in `to_recipe`.

    Raises ValueError for what no Format says.
    """
    if qconfig is None:
        return Scheme()
    weight, _ = _read(qconfig.weight, f"{place}: weight", "channel0")
    fmt, dynamic = _read(qconfig.activation, f"{place}: activation", "channel-1")
    if fmt is None:
        return Scheme(weight)
    if weight is None:
        raise ValueError(f"{place}: activations are quantized only along with a weight")
    return Scheme(weight, fmt, fmt if outputs and not dynamic else None)


def _read(constructor: Any, place: str, by_channel: str) -> tuple[Format | None, bool]:
    """The format of one part, None for float, and whether its scale is chosen at run time.

    by_channel: the block of observers by channel that has a meaning here.
    """
    if constructor is None:
        return None, False
    try:
        if isinstance(constructor, str | Format):
            return parse(constructor), False
        result = instance(constructor)
        fmt = to_format(result)
        theirs = not hasattr(result, "format")
        if fmt is not None and theirs and fmt.block.name not in ("tensor", by_channel):
            raise ValueError(f"its channels are {fmt.block}, expected {by_channel}")
        return fmt, bool(getattr(result, "is_dynamic", False))
    except (ValueError, AssertionError, NotImplementedError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from error


def instance(constructor: Any) -> Any:
    """What a part of a QConfig constructs, made only to be read."""
    with warnings.catch_warnings():
        # torch.ao's advice to whoever wrote reduce_range, and not to who reads it
        warnings.filterwarnings("ignore", "Please use quant_min and quant_max", UserWarning)
        return constructor()


# torch.ao's QConfigMapping as a Recipe: which layer gets which formats.

# What layers that a Recipe covers call, but for those that torch.ao's default mappings name too.
_CALLS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.embedding)
_LAYERS = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, ConvNd)
_LOOKING = re.compile(r"\$|\(\?|\\[bBZ]")  # what a regular expression may see beyond its match


def to_recipe(config: Any, model: nn.Module | None = None, *, outputs: bool = False) -> Recipe:
    """The Recipe that does what `config` does: a QConfig or QConfigMapping, torch.ao's or ours.

    model: the model it is for. Needed where the mapping speaks of types of layers or of their
        order, or by a regular expression that looks beyond what it matches. With it the Recipe
        names every layer, decided as torch.ao's prepare_fx decides.
    outputs: quantize what layers give, too, and not only what they take. torch.ao quantizes an
        activation once, where it is made, after the activation function if one follows; here that
        is the input of the next layer.

    A Recipe is about layers with weights: entries for other types, functions and methods decide
    nothing, as in a torch.ao model without those. A dynamic activation is an input only. The
    observer is chosen where the Recipe is used, in bs.calibrate or bs.prepare_qat.

    Raises ValueError that names the entry that cannot be translated, TypeError for other objects.
    """
    config = to_mapping(config)
    for kind, qconfig in config.object_type_qconfigs.items():
        if kind in _CALLS and qconfig is not None:
            raise ValueError(
                f"object_type {_name_of(kind)}: a Recipe quantizes layers, not calls of functions: "
                f"use the module"
            )
    entries = _by_name(config) if model is None else _by_layer(config, model)
    default, *rules = [
        (pattern, to_scheme(qconfig, place, outputs)) for pattern, place, qconfig in entries
    ]
    return Recipe(**default[1].formats, rules={pattern: _rule(scheme) for pattern, scheme in rules})


def to_mapping(config: Any) -> ao.QConfigMapping:
    """A QConfig or None for every layer, or a QConfigMapping as it is; TypeError for others."""
    if config is None or isinstance(config, ao.QConfig):
        return ao.QConfigMapping().set_global(config)
    if not isinstance(config, ao.QConfigMapping):
        raise TypeError(f"expected a QConfig or a QConfigMapping, found {type(config).__name__}")
    return config


def mapping_of(model: nn.Module, config: Any) -> ao.QConfigMapping:
    """A configuration as a mapping; of None, the `qconfig` attributes of the model's modules.

    Those are what torch.ao's eager mode reads: the one of the nearest module above decides.
    """
    if config is not None:
        return to_mapping(config)
    own = {name: vars(m)["qconfig"] for name, m in model.named_modules() if "qconfig" in vars(m)}
    if not own:
        raise ValueError(
            "no QConfig: pass a QConfig or a QConfigMapping, or set model.qconfig, as torch.ao"
        )
    mapping = ao.QConfigMapping().set_global(own.pop("", None))
    for name, qconfig in own.items():
        mapping.set_module_name(name, qconfig)
    return mapping


def is_layer(kind: Any) -> bool:
    """Whether an entry of a mapping is about a type of layers with weights."""
    return isinstance(kind, type) and issubclass(kind, _LAYERS)


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _rule(scheme: Scheme) -> dict[str, Any] | None:
    return dict(scheme.formats) if scheme else None


Order = tuple[str, type, int]
Entry = tuple[str, str, Any]  # a Recipe's pattern, what error messages call it, the QConfig


def _by_name(mapping: ao.QConfigMapping) -> list[Entry]:
    """The global QConfig, and the mapping's own names as patterns, the first that fits decides."""
    for order in mapping.module_name_object_type_order_qconfigs:
        raise ValueError(f"module_name_object_type_order {order}: pass the model to to_recipe, too")
    for kind in mapping.object_type_qconfigs:
        if is_layer(kind):
            raise ValueError(f"object_type {_name_of(kind)}: pass the model to to_recipe, too")
    deepest = sorted(mapping.module_name_qconfigs.items(), key=lambda item: -item[0].count("."))
    entries = [(name, f"module_name {name!r}", qconfig) for name, qconfig in deepest]
    for regex, qconfig in mapping.module_name_regex_qconfigs.items():
        place = f"module_name_regex {regex!r}"
        if _LOOKING.search(regex):
            raise ValueError(
                f"{place} depends on more than the name that it matches: pass the model to "
                "to_recipe, too"
            )
        entries.append((f"re:(?:{regex}).*", place, qconfig))  # torch.ao matches the beginning
    return [("", "global", mapping.global_qconfig), *entries]


def _by_layer(mapping: ao.QConfigMapping, model: nn.Module) -> list[Entry]:
    """The global QConfig, and each layer by its name, in torch.ao's order of priority."""
    entries = [
        (name, f"{place}, layer {name!r}", qconfig)
        for name, place, qconfig in decide(mapping, model)
        if qconfig is not mapping.global_qconfig
    ]
    entries.sort(key=lambda entry: -entry[0].count("."))  # a pattern covers what is below it
    return [("", "global", mapping.global_qconfig), *entries]


def decide(mapping: ao.QConfigMapping, model: nn.Module) -> Iterator[Entry]:
    """(name, what decided, QConfig) of each layer of a model."""
    orders = _orders(model) if mapping.module_name_object_type_order_qconfigs else {}
    for name, module in model.named_modules(remove_duplicate=False):
        if is_layer(type(module)) or quantized_class(module) is not None:
            yield (name, *_decide(mapping, name, type(module), orders.get(name)))


def _decide(
    mapping: ao.QConfigMapping, name: str, kind: type, order: Order | None
) -> tuple[str, Any]:
    """(what decided, the QConfig of a layer)."""
    if order is not None and order in mapping.module_name_object_type_order_qconfigs:
        qconfig = mapping.module_name_object_type_order_qconfigs[order]
        return f"module_name_object_type_order {order}", qconfig
    steps = name.split(".")
    for count in range(len(steps), 0, -1):
        above = ".".join(steps[:count])
        if above in mapping.module_name_qconfigs:
            return f"module_name {above!r}", mapping.module_name_qconfigs[above]
    for regex, qconfig in mapping.module_name_regex_qconfigs.items():
        if re.match(regex, name):
            return f"module_name_regex {regex!r}", qconfig
    if kind in mapping.object_type_qconfigs:
        return f"object_type {_name_of(kind)}", mapping.object_type_qconfigs[kind]
    return "global", mapping.global_qconfig


def _orders(model: nn.Module) -> dict[str, Order]:
    """{layer: (the module it is in, its type, how many of that type were called there before)}."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"module_name_object_type_order needs a model that torch.fx traces: {error}"
        ) from error
    counts: Counter[tuple[str, type]] = Counter()
    orders: dict[str, Order] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            name = str(node.target)
            place = (name.rpartition(".")[0], type(model.get_submodule(name)))
            orders.setdefault(name, (*place, counts[place]))
            counts[place] += 1
    return orders
