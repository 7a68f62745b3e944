"""Why a float layer cannot be quantized: each reason is a sentence for the ledger."""

from collections.abc import Sequence

from torch import Tensor, nn

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.layout import stored_shape
from blockscale.layers.layer import QLayer

# Layers that hold weights but that nothing here replaces; subclasses of those it replaces, too.
_RELATIVES = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.Bilinear, nn.RNNBase, nn.RNNCellBase)
_REPLACED = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)

# Modules that read the weights of layers inside them without calling those layers.
_BYPASSES = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def looks_like_a_layer(module: nn.Module) -> bool:
    """Whether it is a relative of layers that are replaced: it is not passed over silently."""
    return isinstance(module, (*_RELATIVES, nn.modules.conv._ConvNd))


def why_not_layer(
    model: nn.Module, module: nn.Module, names: Sequence[str], kind: type[QLayer] | None
) -> str | None:
    """Why a layer cannot be quantized, whatever the format; None if it can.

    names: all that the layer has in the model; kind: what would replace it, None if nothing does.
    """
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "it is lazy and its weight holds no data: run the model once first"
    if kind is None:
        name = type(module).__name__
        if isinstance(module, _REPLACED):
            return f"{name} is a subclass: a quantized layer would replace what it adds"
        return f"there is no quantized {name}"
    for name in names:
        parent = model.get_submodule(name.rpartition(".")[0])
        if isinstance(parent, _BYPASSES):
            return f"{type(parent).__name__} reads its weight without calling it"
    if "forward" in vars(module):
        return "its forward was replaced on the instance, which a quantized layer would undo"
    return kind.refuses(module)


def why_not_weight(weight: Tensor | None, layout: str, fmt: Format) -> str | None:
    """Why a weight in this layout cannot be quantized into this format; None if it can."""
    if weight is None:
        return "its weight is computed (weight_norm, pruning, parametrization): remove that first"
    if weight.device.type == "meta":
        return "its weight holds no data (meta device): load the weights first"
    if weight.dtype not in reference.FLOATS:
        dtype = str(weight.dtype).removeprefix("torch.")
        return f"its weight is {dtype}; formats take float32, bfloat16, float16"
    try:
        fmt.stored(stored_shape(weight.shape, layout))
    except ValueError as error:
        return str(error)
    return None
