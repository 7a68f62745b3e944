"""Files for servers whose joined layers disagree: query, key and value under several outer scales.

compressed-tensors has `weight_global_scale` and `input_global_scale` (or `input_scale`) for each
layer, NVIDIA ModelOpt `weight_scale_2` and `input_scale`. A server that joins such layers keeps one
of them (blockscale.core.weights.fused), so that the codes of the others mean other numbers there.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from blockscale.core.weights.fused import groups
from blockscale.files.stored_model import opened

WEIGHTS = ("weight_global_scale", "weight_scale_2")
INPUTS = ("input_global_scale", "input_scale")


def disagreements(path: Path) -> dict[str, str]:
    """{layer: what is to be noted of it} of a directory's layers."""
    numbers: dict[str, dict[str, float]] = {}
    for name, number in _scalars(path):
        layer, _, part = name.rpartition(".")
        numbers.setdefault(part, {})[layer] = number
    told: dict[str, list[str]] = {}
    for part, of_layers in numbers.items():
        for group in groups(of_layers):
            some = {layer: of_layers[layer] for layer in group}
            if len({*some.values()}) > 1:
                for layer in group:
                    told.setdefault(layer, []).append(_note(layer, part, some))
    return {layer: "; ".join(notes) for layer, notes in told.items()}


def _note(layer: str, part: str, numbers: dict[str, float]) -> str:
    others = ", ".join(
        f"{other.rpartition('.')[2]} {number:.4g}"
        for other, number in numbers.items()
        if other != layer
    )
    what = "codes mean" if part in WEIGHTS else "inputs are rounded to"
    return (
        f"its {part} is {numbers[layer]:.4g}, beside {others}: servers that join these layers "
        f"(vLLM, SGLang) keep one, under which its {what} other numbers"
    )


def _scalars(path: Path) -> Iterator[tuple[str, float]]:
    for file in sorted(path.glob("*.safetensors")):
        with opened(file) as held:
            for name in held.keys():  # noqa: SIM118 - it is no mapping
                if name.endswith((*WEIGHTS, *INPUTS)) and _is_one(held.get_slice(name).get_shape()):
                    yield name, float(held.get_tensor(name).float().reshape(()))


def _is_one(shape: list[int]) -> bool:
    return prod(shape) == 1
