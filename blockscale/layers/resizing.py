# SPDX-License-Identifier: BSD-3-Clause
"""resize_token_embeddings of transformers, for models whose embeddings are quantized.

transformers takes only nn.Embedding and nn.Linear there, and finds that out when it may have
replaced one of the two already. So a quantized model gets the method as an attribute of its own.
"""

import inspect
import warnings
from functools import partial
from typing import Any

from torch import nn

from blockscale.layers.embedding import QEmbedding
from blockscale.layers.layer import QLayer
from blockscale.layers.linear import QLinear
from blockscale.layers.model import swap

_METHOD = "resize_token_embeddings"
_ENDS = ("get_input_embeddings", "get_output_embeddings")


def let_embeddings_be_resized(model: nn.Module) -> None:
    """Give the method to each model of transformers in `model` that has quantized layers."""
    for module in model.modules():
        theirs = callable(getattr(type(module), _METHOD, None)) and hasattr(module, _ENDS[0])
        if theirs and any(isinstance(inner, QLayer) for inner in module.modules()):
            vars(module)[_METHOD] = partial(_resize, module)


def _resize(
    model: Any,
    new_num_tokens: int | None = None,
    pad_to_multiple_of: int | None = None,
    *more: Any,
    **options: Any,
) -> nn.Module:
    """As the model's class does it. Quantized embeddings and output embeddings, if their size
    changes, become float layers before: what they hold is dequantized, and a warning names them.

    Raises what transformers raises; the model is as it was then.
    """
    own = partial(getattr(type(model), _METHOD), model)
    quantized = {} if new_num_tokens is None and pad_to_multiple_of is None else _ends(model)
    rows = {layer.qweight.shape[0] for layer in quantized.values()}
    multiple = pad_to_multiple_of if isinstance(pad_to_multiple_of, int) else 1
    wanted = rows if new_num_tokens is None else {new_num_tokens}
    if rows and {-(-each // multiple) * multiple for each in wanted} == rows:
        quantized = {}  # the size that they have
    floats = _floats(quantized)
    old = swap(model, floats)
    try:
        resized: nn.Module = own(new_num_tokens, pad_to_multiple_of, *more, **options)
    except BaseException:
        swap(model, old)
        raise
    if floats:
        warnings.warn(
            f"blockscale: resized, and in float from now on: {', '.join(floats)}. They hold "
            "the dequantized values, without formats for inputs and outputs; call quantize_ "
            "to quantize them again",
            stacklevel=2,
        )
    return resized


def _ends(model: Any) -> dict[str, QLayer]:
    """{name: layer} of the embeddings and output embeddings that are quantized."""
    ends = [found() for get in _ENDS if inspect.ismethod(found := getattr(model, get, None))]
    kinds = QEmbedding | QLinear
    layers = [e for e in ends if isinstance(e, kinds) and e.qweight.layout == "plain"]
    named = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in named if any(module is each for each in layers)}


def _floats(quantized: dict[str, QLayer]) -> dict[str, nn.Module]:
    """Float layers in place of these; those that share codes share a parameter."""
    weights: dict[int, nn.Parameter] = {}
    made: dict[int, nn.Module] = {}
    for layer in quantized.values():
        if id(layer) in made:
            continue
        key = id(layer.qweight)
        if layer.before is not None or key not in weights:
            weights[key] = nn.Parameter(layer.dequantize_weight())
        made[id(layer)] = _float(layer, weights[key])
    return {name: made[id(layer)] for name, layer in quantized.items()}


def _float(layer: Any, weight: nn.Parameter) -> nn.Module:
    """A quantized table or matrix as a float layer with this weight."""
    made: Any
    if isinstance(layer, QEmbedding):
        rows, size = weight.shape
        made = nn.Embedding(rows, size, layer.padding_idx, device="meta")
    else:
        made = nn.Linear(weight.shape[1], weight.shape[0], layer.bias is not None, device="meta")
        if layer.bias is not None:
            made.bias = nn.Parameter(layer.added_bias().detach().to(weight.dtype))
    made.weight = weight
    QLayer.take_place_of(made, layer)  # mode and hooks
    return made  # type: ignore[no-any-return]
