# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of a tensor: in which format it is quantized, or why it stays as it is.

One decision for models in memory (layers.plan, layers.parameters.planned) and for directories
(files.directory.eligibility). Each describes its tensors as a `Weight`, from modules or from the
headers of files; `decide` is told nothing else but the recipe, so that both quantize the same. What
several tensors decide together is here as well: those that are one weight (`why_tied`); those that
share an outer scale are told so by core.joined_weights.sharing.

`decide` looks at these in order, and the first that applies says what becomes of the tensor:

1. what keeps it in float whatever the recipe says (`Weight.stays`), such as an adapter
2. a parameter of one dimension is kept
3. names of one tensor that the recipe treats in several ways: it is skipped
4. a recipe that gives it no format: it is kept
5. what stays in float unless a rule names it: it is kept
6. what no format can hold (`Weight.refused`), and what this format cannot: it is skipped
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from blockscale.core.format import Format
from blockscale.core.integer_scales import why_no_sums
from blockscale.core.joined_weights import of_stack
from blockscale.core.ledger import Status
from blockscale.core.pack import stored_shape
from blockscale.core.profiles.knobs import Profile
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.reference import FLOATS
from blockscale.core.torch_private import ConvNd
from blockscale.layers.layer import QLayer

VECTOR = "a vector, such as a norm's weight or a bias"

Role = Literal["layer", "parameter", "part"]


class Weight(NamedTuple):
    """A tensor that a recipe may quantize, as a module or the header of a file shows it.

    name: its own, such as `a.b.weight`, by which some tensors stay in float by default
    names: those by which the recipe knows it: of a layer its layer's, of which it may have several
    role: what it is: the weight of a layer, any other parameter, or a part that a parametrization
        computes a weight from
    shape, dtype: as they are in the model or the file; a name for a dtype that torch has not
    layout: how it is stored (core.layout)
    parts: of how many matrices each of its matrices consists (core.joined_weights)
    stays: why it stays in float whatever the recipe says; perhaps empty
    unless_named: why it stays in float unless a rule names it, beside the reasons that its name and
        shape give; perhaps empty
    refusal: why no format can hold it; perhaps empty
    """

    name: str
    names: tuple[str, ...]
    role: Role
    shape: tuple[int, ...]
    dtype: torch.dtype | str
    layout: str = "plain"
    parts: int = 1
    stays: str = ""
    unless_named: str = ""
    refusal: str = ""


class Outcome(NamedTuple):
    """What becomes of a tensor: quantized in `format`, or kept or skipped for `reason`.

    scheme: the formats that the recipe gives it, and what stands beside it: its input, its bias
    """

    status: Status
    reason: str = ""
    scheme: Scheme = Scheme()
    format: Format | None = None


def decide(weight: Weight, recipe: Recipe) -> Outcome:
    """What a recipe makes of a tensor by itself, whatever it shares with others."""
    results = [(_scheme(weight, name, recipe), recipe.decide(name)[1]) for name in weight.names]
    scheme, pattern = results[0]
    stays = weight.stays or (VECTOR if weight.role != "layer" and len(weight.shape) < 2 else "")
    if stays:
        return Outcome("kept", stays)
    if any(other != scheme for other, _ in results):
        what = "layer" if weight.role == "layer" else "parameter"
        text = f"share one {what}, and the recipe treats them differently"
        return Outcome("skipped", f"{', '.join(weight.names)} {text}")
    if not scheme:
        why = "the recipe has no format for its weight"
        return Outcome("kept", f"pattern {pattern!r} of the recipe" if pattern else why)
    if pattern is None and (rest := weight.unless_named or _reason_to_keep(weight)):
        return Outcome("kept", rest)
    try:
        return _quantized(weight, scheme)
    except ValueError as error:
        return Outcome("skipped", str(error))


def _scheme(weight: Weight, name: str, recipe: Recipe) -> Scheme:
    """What the recipe gives a tensor by one of its names: only a layer has an input and a bias."""
    scheme, _ = recipe.decide(name)
    if weight.role == "layer":
        bias = recipe.bias_of(name.removesuffix(".weight"))
        return scheme if scheme.bias == bias else replace(scheme, bias=bias)
    return Scheme(scheme.weight, profile=scheme.profile, since=scheme.since)


def _quantized(weight: Weight, scheme: Scheme) -> Outcome:
    """Raises ValueError that says why the tensor cannot be quantized so."""
    if scheme.weight is None:
        raise ValueError("its input, output and bias are quantized only along with its weight")
    if weight.refusal:
        raise ValueError(weight.refusal)
    if scheme.profile is not None and weight.role != "layer":
        raise ValueError(f"profile {scheme.profile} is only for the weights of layers")
    assert isinstance(weight.dtype, torch.dtype)  # or it would be refused
    stored = stored_shape(weight.shape, weight.layout)
    scheme = scheme.of_weight(weight.dtype, stored)
    fmt = scheme.weight
    assert fmt is not None
    if len(stored) > 2 or weight.parts > 1:
        fmt = of_stack(fmt, stored, weight.parts)
    _check_blocks(fmt, tuple(stored))
    if scheme.profile is not None:
        scheme.profile.check_blocks(torch.Size(stored))
    return Outcome("quantized", "", scheme, fmt)


@lru_cache(maxsize=1024)  # the weights of a model have few shapes
def _check_blocks(fmt: Format, stored: tuple[int, ...]) -> None:
    """Raise ValueError where blocks do not fit a shape."""
    fmt.stored(stored)


def why_not_dtype(dtype: torch.dtype | str) -> str:
    """Why formats do not take values of this dtype; empty if they do."""
    if dtype in FLOATS:
        return ""
    return (
        f"{str(dtype).removeprefix('torch.')}; only float32, bfloat16 and float16 can be quantized"
    )


def why_not_bias_format(shape: Sequence[int], fmt: Format) -> str:
    """Why a layer's bias of this shape cannot get a format of its own; empty if it can."""
    if fmt.unchosen:
        return f"its format is {fmt}: {fmt.unchosen}"
    try:
        fmt.stored(shape)
    except ValueError as error:
        return str(error)
    return ""


# What stays in float unless a rule names it. Layers (Linear, Embedding, convolutions) are what
# recipes are for. Of other parameters of two and more dimensions most are weights, which are
# quantized as well; some are not what a small format should hold, because little is gained or much
# depends on them. A file has nothing but names and shapes to tell them by.

_SMALL = 1024  # elements: a table of this size is not worth a scale

# (pattern of the dotted name, why it stays): the first that is found decides
_NAMED = (
    (r"(^|\.)(router|gate|wg|shared_expert_gate|expert_gate)(\.(classifier|wg|layer|gate))?"
     r"(\.(weight|linear\.weight))?$", "router"),
    (r"(^|\.)(A_log|A_logs|dt_bias|dt_projs?_bias|D|Ds|time_(decay|first|faaaa|maa\w*|mix\w*))$",
     "state of a recurrence"),
    (r"(^|[._])(abs_)?(rel_)?(pos|position)\w*(embed\w*|emb|encod\w*|table|bias\w*|h|w|ids)?$",
     "position table"),
    (r"(^|\.)(relative_position\w*|rel_pos\w*|alibi\w*|freqs?\w*|rotary\w*|rope\w*)$",
     "position table"),
    (r"(^|[._])(cls|class|mask|dist|distillation|reg|register|prompt|sep|pad|null)_?(token|embed\w*"
     r"|tokens|emb)s?$", "token"),
    (r"(^|\.)(query|latents?|latent_query|query_tokens?|probe|seed)$", "queries"),
    (r"(^|[._])(norm\w*|ln\w*|layernorm\w*|gamma|beta|scale|scales|temperature|logit_scale|gains?)$",
     "norm or factor"),
    (r"(^|[._])bias(es)?\w*$", "bias"),
    # a buffer in a model, where it is none of its parameters (encodec, mimi)
    (r"(^|\.)codebook\.embed(_avg|_sum)?$", "codebook"),
)  # fmt: skip
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), why) for pattern, why in _NAMED)


def _reason_to_keep(weight: Weight) -> str:
    """Why a tensor stays in float unless a rule names it; empty if it does not."""
    if weight.role == "part":
        return ""
    by_default = kept_layer_by_default if weight.role == "layer" else kept_by_default
    return by_default(weight.name, weight.shape)


def kept_by_default(name: str, shape: Sequence[int]) -> str:
    """Why a parameter that no layer of a known kind owns stays in float; empty if it does not.

    name: its dotted name in the model or directory; shape: as it is there
    """
    if sum(size > 1 for size in shape) < 2:
        return "a vector, such as a norm's weight or a bias"
    if len(shape) > 3:
        return "of four or more dimensions, kept in float by default: name it in a rule"
    for pattern, why in _PATTERNS:
        if pattern.search(name):
            return f"a {why}, kept in float by default: name it in a rule to quantize it"
    if prod(shape) < _SMALL:
        return "a small table, kept in float by default: name it in a rule to quantize it"
    return ""


def kept_layer_by_default(name: str, shape: Sequence[int]) -> str:
    """Why a layer's weight, or what a file calls so, stays in float; empty if it does not.

    Of layers only routers do, which have fewer rows, one for each expert, than inputs: a layer
    called `gate` that is no smaller than others is no router.

    name: of the weight; shape: as it is there
    """
    pattern, why = _PATTERNS[0]
    if len(shape) == 2 and shape[0] < shape[1] and pattern.search(name):
        return f"a {why}, kept in float by default: name it in a rule to quantize it"
    return ""


# What several tensors decide together.


class CodesKey(NamedTuple):
    """What decides whether layers can share a weight's codes: by which of them they differ."""

    format: str
    layout: str
    profile: Profile | None


def codes_of(outcome: Outcome, layout: str) -> CodesKey | None:
    """What a layer by itself wants its weight's codes to be; None where it stays in float."""
    if outcome.format is None:
        return None
    return CodesKey(str(outcome.format), layout, outcome.scheme.profile)


def why_tied(layer: str, keys: Mapping[str, CodesKey | None], others: Sequence[str] = ()) -> str:
    """Why a layer whose weight others use as well stays in float; empty if it is quantized, or
    stays so by itself.

    wanted: {each layer that has the weight: what it wants, None where it stays in float}
    others: parameters that are the same weight, of modules that are no layers
    """
    if keys[layer] is None or (not others and len(set(keys.values())) == 1):
        return ""
    ties = [*others, *(name for name in keys if name != layer)]
    return f"its weight is tied to {', '.join(ties)}, which cannot share its codes"


# Why a float layer cannot be quantized: each reason is a sentence for the ledger.


# Layers that are replaced, and their subclasses, of which some cannot be.
_RELATIVES = (nn.Linear, nn.Embedding, nn.EmbeddingBag)


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


def _why_not_tensor(tensor: Tensor, name: str) -> str:
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        return f"its {name} is sparse ({kind}): make it dense first, with to_dense()"
    reason = why_not_dtype(tensor.dtype)
    return reason and f"its {name} is {reason}"
