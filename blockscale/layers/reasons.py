# SPDX-License-Identifier: BSD-3-Clause
"""Why a float layer cannot be quantized: each reason is a sentence for the ledger."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from blockscale.core.elements.binary import Binary
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.ternary import Ternary
from blockscale.core.format import Format
from blockscale.core.recipe import Scheme
from blockscale.core.torch_private import ConvNd
from blockscale.layers.decisions import why_not_bias_format, why_not_dtype
from blockscale.layers.layer import QLayer

# Layers that are replaced, and their subclasses, of which some cannot be.
_RELATIVES = (nn.Linear, nn.Embedding, nn.EmbeddingBag)

_WHOLE = (Integer, Ternary, Binary)  # elements whose codes are their values

_COMPUTED = (
    "its weight is computed (weight_norm, pruning, parametrization) by something random or "
    "trained, which cannot be folded: remove that first"
)


def looks_like_a_layer(module: nn.Module) -> bool:
    """Whether it is a relative of layers that are replaced: it is not passed over silently."""
    return isinstance(module, (*_RELATIVES, ConvNd))


def why_adapter(model: nn.Module, name: str) -> str:
    """Why the module or parameter `name` stays in float, as a part of an adapter; else empty.

    peft's adapters stand around the layers of a model, and name in `adapter_layer_names` what of
    them is trained: lora_A, lora_magnitude_vector, modules_to_save ... `prompt_encoder` is trained
    by models that have a `peft_config`.
    """
    owner: nn.Module | None = model
    for step in name.split("."):
        trained = getattr(owner, "adapter_layer_names", ())
        if step in trained or (step == "prompt_encoder" and hasattr(owner, "peft_config")):
            return f"{step} is a trained adapter: merge it to quantize it"
        owner = None if owner is None else owner._modules.get(step)
    return ""


def why_not_layer(module: nn.Module, kind: type[QLayer] | None) -> str | None:
    """Why a layer cannot be quantized, whatever the format; None if it can.

    kind: what would replace it, None if nothing does.
    """
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "it is lazy and its weight holds no data: run the model once first"
    if kind is None:
        name = type(module).__name__
        return _COMPUTED if parametrize.is_parametrized(module) else f"{name} has no quantized form"
    if _has_another_forward(module):
        return "its forward was replaced on the instance, which a quantized layer would undo"
    return kind.refuses(module)


def _has_another_forward(module: nn.Module) -> bool:
    """Whether its instance has another forward than its class: accelerate leaves the class's own
    there when it removes its hooks."""
    own = vars(module).get("forward")
    same = getattr(own, "__func__", None) is type(module).forward
    return own is not None and not (same and own.__self__ is module)


def read_by_parent(model: nn.Module, names: Sequence[str]) -> str:
    """The class of a module that computes with a layer's weight without calling the layer, so that
    nothing quantizes the layer's input and output; empty if there is none."""
    parents = [model.get_submodule(name.rpartition(".")[0]) for name in names]
    return next((type(p).__name__ for p in parents if isinstance(p, nn.MultiheadAttention)), "")


_TO_COME = ContextVar("weights on the meta device are not loaded yet", default=False)


@contextmanager
def weights_to_come() -> Iterator[None]:
    """Inside, a weight on the meta device may be quantized: whoever says so reads it in time."""
    token = _TO_COME.set(True)
    try:
        yield
    finally:
        _TO_COME.reset(token)


def why_not_weight(weight: Tensor | None) -> str:
    """Why a layer's weight or another parameter cannot be quantized into any format; empty if it
    can."""
    if weight is None:
        return _COMPUTED
    if weight.device.type == "meta" and not _TO_COME.get():
        return "its weight holds no data (meta device): load the weights first"
    return _why_not_tensor(weight, "weight")


def why_not_bias(bias: Tensor | None, scheme: Scheme, stored: Sequence[int]) -> str:
    """Why a layer's bias cannot get the scheme's format; empty if it can, or there is none.

    stored: the shape [n, k] of the layer's weight as it is stored
    """
    if bias is None or scheme.bias is None or scheme.weight is None:
        return ""
    if isinstance(scheme.bias, Format):
        return _why_not_tensor(bias, "bias") or why_not_bias_format(bias.shape, scheme.bias)
    reason = why_no_sums(scheme.input, scheme.weight, stored)
    return reason or _why_not_tensor(bias, "bias")


def _why_not_tensor(tensor: Tensor, called: str) -> str:
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        return f"its {called} is sparse ({kind}): make it dense first, with to_dense()"
    reason = why_not_dtype(tensor.dtype)
    return reason and f"its {called} is {reason}"


def why_no_sums(taken: Format | None, weight: Format, shape: Sequence[int]) -> str | None:
    """Why sums of products of these formats have no step for each output; None if they have.

    taken: of the layer's input; shape: of its stored weight, [n, k].
    """
    if taken is None:
        return "its input has no format, so its sums have no step: set one like 'int8:tensor:fp32'"
    if reason := why_no_integers(taken):
        return f"its input is {taken}, {reason}"
    if reason := why_no_weights(weight):
        return f"its weight is {weight}, {reason}"
    several = "the sum of one output would have several steps: use the block"
    if taken.block.name != "tensor":
        return f"its input is {taken}, {several} 'tensor'"
    if weight.block.scale_shape(tuple(shape)) not in ((1, 1), (shape[0], 1)):
        return f"its weight is {weight}, {several} 'channel0' or 'tensor'"
    return None


def why_no_weights(fmt: Format) -> str | None:
    """Why values of this format are no integers in parts of their block's step, 2^-grain of it;
    None if they are: integers, and powers of two and sums of them."""
    if fmt.element.grain is None:
        return (
            "whose codes are neither integers nor powers of two: use integers, log2 … log8 "
            "or apot3 … apot8"
        )
    return why_no_integers(fmt) if isinstance(fmt.element, _WHOLE) else None


def why_no_integers(fmt: Format) -> str | None:
    """Why values of this format are no integers in steps of their block; None if they are."""
    if not isinstance(fmt.element, _WHOLE):
        return "whose codes are not integers: use integers"
    if fmt.zero is not None:
        return f"whose zero points of type {fmt.zero} are not integers: use 'asym'"
    if fmt.offset is not None:
        return "whose offsets are not whole steps: use 'asym'"
    return None
