"""Quantized parameters that are no layer's weight: experts' stacks become a matrix for each expert,
under the names that checkpoints of the model have; all else has no place."""

from torch import Tensor, nn

from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming.apart import Back
from blockscale.layers.parameters.hold import all_held
from blockscale.layers.store import QWeight
from blockscale.ops.tensor import QTensor


def matrices(model: nn.Module, back: Back) -> tuple[dict[str, QTensor], dict[str, str]]:
    """{layer of a checkpoint: its weight [out, in]}, and {parameter: why it has no place}."""
    found: dict[str, QTensor] = {}
    refused: dict[str, str] = {}
    for name, weight in all_held(model):
        pieces = back.quantized(name, _info(weight), _parts(weight))
        if not pieces or not all(stored.endswith(".weight") for stored in pieces):
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            apart = f", and in {weight.fmt} it does not come apart into matrices"
            refused[name] = f"it is a parameter of {owner}, not the weight of an nn.Linear" + (
                apart * (len(weight.shape) > 2)
            )
            continue
        found |= {stored.removesuffix(".weight"): piece for stored, piece in pieces.items()}
    return found, refused


def _info(weight: QWeight) -> TensorInfo:
    dtype = str(weight.dtype).removeprefix("torch.")
    return TensorInfo(weight.fmt, tuple(weight.shape), dtype, weight.layout)


def _parts(weight: QWeight) -> dict[str, Tensor]:
    q = weight.tensor
    held = {part: each for part, each in q.qparams._asdict().items() if each is not None}
    return {"codes": q.packed} | held
