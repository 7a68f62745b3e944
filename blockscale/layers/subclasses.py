# SPDX-License-Identifier: BSD-3-Clause
"""Subclasses of float layers, quantized as what they are: their class and their forward stay."""

from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from blockscale.core.recipe import Scheme
from blockscale.layers.before import Before
from blockscale.layers.layer import PARENTS, QLayer, parent_of
from blockscale.layers.store import QWeight

# What a subclass of a float layer computes: the same as its parent, or something of its own.

# Their forward is written in another way and means the same: (beginning of the module, class).
_SPELLED_OTHERWISE = (("transformers.models.falcon.", "FalconLinear"), ("timm.layers.", "Linear"))
_declared: set[type] = set()


def computes_as_parent(kind: type[nn.Module]) -> type[nn.Module]:
    """Say that a subclass of nn.Linear, nn.Embedding or a convolution computes what its parent
    does, though it has a forward of its own; usable as a decorator.

    Its input and output are quantized then as well, where a recipe says so, and its forward is
    never called. Raises ValueError for a class that is no such subclass.
    """
    parent = parent_of(kind)
    if parent is None or parent is kind:
        names = ", ".join(each.__name__ for each in PARENTS)
        raise ValueError(
            f"{kind.__name__} is not a subclass of a layer that can be quantized: {names}"
        )
    _declared.add(kind)
    return kind


def same_meaning(kind: type) -> bool:
    """Whether a class is known to compute what its parent does in other words."""
    is_known = any(
        kind.__name__ == name and kind.__module__.startswith(module)
        for module, name in _SPELLED_OTHERWISE
    )
    return is_known or kind in _declared


def has_own_forward(kind: type, parent: type[nn.Module]) -> bool:
    """Whether a subclass computes something else than its parent, as far as its code shows."""
    if same_meaning(kind):
        return False
    steps = ("forward", "_conv_forward", "_output_padding")
    return any(getattr(kind, step, None) is not getattr(parent, step, None) for step in steps)


# A quantized layer that is still an instance of a user's subclass of nn.Linear, nn.Embedding or a
# convolution: class Scaled(nn.Embedding), whose forward is
# `return super().forward(indices) * self.scale`, becomes Scaled(QEmbedding, nn.Embedding).
#
# The class that is made has the subclass first, then the quantized layer, then torch's: its own
# forward runs, `super().forward(...)` is the quantized layer's, and `self.weight` is read as
# anybody reads a quantized weight. What else it has and is (attributes, methods, children) stays.

_TABLES = (nn.Embedding, nn.EmbeddingBag)  # which have no bias of their own
_OWN = "its own forward changes its input or its weight"
_QUANTIZING = ("blockscale.", "torch.ao.")  # whose layers quantize already
_STATE = ("_parameters", "_buffers", "_modules")  # of nn.Module; what else it has is attributes


class KeptSubclass:
    """What a quantized subclass is besides. `float_class` is the subclass itself."""

    float_class: ClassVar[type[nn.Module]]
    own_forward: ClassVar[bool]
    inner: ClassVar[type[QLayer]]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _restore, (self.float_class, self.inner), self.__dict__.copy()

    @classmethod
    def usable(cls, scheme: Scheme) -> tuple[Scheme, str]:
        """What of a scheme it can follow, and a note on what it cannot."""
        parts = ("input", "output") if cls.inner.takes_input else ("output",)
        without = [part for part in parts if getattr(scheme, part) is not None]
        if not cls.own_forward or not without:
            return scheme, ""
        text = (
            f"{' and '.join(without)} left in float: {cls.float_class.__name__} has its own forward"
        )
        if cls.inner.takes_input:
            text += (
                "; bs.graph.prepare(torch.export.export(model, ...), recipe) quantizes the "
                "input of the product in it, if that is a product with the weight itself"
            )
        floats: dict[str, Any] = dict.fromkeys(without)
        return replace(scheme, **floats), text

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        """Why this float layer cannot be replaced, or None."""
        if names := _name_clashes(cls, module):
            return (
                f"{cls.float_class.__name__} is a subclass with attributes that quantized "
                f"layers need for themselves: {', '.join(names)}"
            )
        return cls.inner.refuses(module)

    @classmethod
    def refuses_before(cls, module: Any, before: Before) -> str | None:
        """Why `before` cannot stand before this layer, or None."""
        return _OWN if cls.own_forward else cls.inner.refuses_before(module, before)

    @classmethod
    def from_float(cls, module: Any, weight: QWeight, scheme: Scheme) -> QLayer:
        """The same layer with a quantized weight: its attributes and children are the module's."""
        plain = cls.inner.from_float(module, weight, cls.usable(scheme)[0])
        result = cls.__new__(cls)
        state = plain.__dict__ | module.__dict__
        for kind in _STATE:
            own = {n: v for n, v in getattr(module, kind).items() if n not in ("weight", "bias")}
            state[kind] = getattr(plain, kind) | own
        result.__dict__.update(state)
        return result  # type: ignore[return-value]


def quantized_subclass(kind: type, inner: type[QLayer] | None) -> type[QLayer] | None:
    """The quantized layer for a subclass of a float layer; None for what cannot be one.

    inner: the quantized layer for its parent (parent_of)
    """
    parent = parent_of(kind)
    special = issubclass(kind, nn.modules.lazy.LazyModuleMixin) or any(
        each.__module__.startswith(_QUANTIZING) for each in kind.__mro__
    )
    if inner is None or parent is None or special:
        return None
    if any(
        "weight" in vars(each) for each in kind.__mro__
    ):  # computed: parametrized, or a property
        return None
    return _class_of(kind, inner)


_classes: dict[tuple[type, type], type[QLayer]] = {}  # of which a program has few


def _class_of(kind: type[nn.Module], inner: type[QLayer]) -> type[QLayer]:
    entry = _classes.get((kind, inner))
    if entry is not None:
        return entry
    parent = parent_of(kind)
    assert parent is not None
    own = has_own_forward(kind, parent)
    beneath = type(inner.__name__, (inner, parent), {"__module__": inner.__module__})
    body: dict[str, Any] = {"float_class": kind, "own_forward": own, "inner": inner}
    body |= {"takes_input": inner.takes_input and not own, "layout": inner.layout}
    body |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    body["__doc__"] = kind.__doc__
    if same_meaning(kind):
        body["forward"] = inner.forward
    elif own and kind.forward is parent.forward:  # which calls the step that the subclass has
        body["forward"] = parent.forward
    result: type[QLayer] = type(kind.__name__, (KeptSubclass, kind, beneath), body)
    return _classes.setdefault((kind, inner), result)


def _name_clashes(cls: type[KeptSubclass], module: nn.Module) -> list[str]:
    """Names that the quantized layer uses and that a subclass uses for something else."""
    parent = parent_of(cls.float_class)
    ours = set(dir(cls.inner)) - set(dir(parent)) | {"input", "output", "before"}
    ours -= {"weight"} if issubclass(cls.float_class, _TABLES) else {"weight", "bias"}
    ours -= set(getattr(parent, "__constants__", ()))  # mean the same in both
    theirs = {name for each in cls.float_class.__mro__ for name in vars(each)}
    theirs -= set(dir(parent))
    theirs |= set(vars(module)) | set(module._modules) | set(module._buffers)
    theirs |= set(module._parameters)
    return sorted(name for name in ours & theirs if not name.startswith("__"))


def _restore(kind: type[nn.Module], inner: type[QLayer]) -> nn.Module:
    """A module of that class without state, for pickle and copies."""
    result = _class_of(kind, inner)
    return result.__new__(result)
