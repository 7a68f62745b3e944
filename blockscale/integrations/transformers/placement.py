# SPDX-License-Identifier: BSD-3-Clause
"""Models on several devices, on the CPU beside an accelerator, and on disk.

transformers loads what a device map leaves on disk as floats, which quantizing would turn around:
so such layers are loaded on the CPU, quantized, and then left to accelerate as the map says.
"""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor
from transformers.core_model_loading import Concatenate, ConversionOps, MergeModulelist

from blockscale.core.untrusted import shown
from blockscale.files.metadata import PARTS, FileError, TensorInfo
from blockscale.files.renaming_view import piece_values

# Parameters that a model fuses of several tensors of its checkpoint, such as experts.
#
# Where the fused parameter's blocks are those of the parts, its codes are the parts' codes, fused
# in
# the same way. Elsewhere (one scale for a whole part; a part that is turned) the parts are
# dequantized and their floats fused, and the model holds floats.

Tensors = dict[str, Any]  # {pattern: a tensor, or a list of them}


class Taker(Protocol):
    """What takes the codes of a fused parameter (reading.Reading)."""

    def take_fused(self, name: str, info: TensorInfo, parts: dict[str, Tensor]) -> Tensor:
        """The parameter that the model holds meanwhile."""

    def note_dequantized(self, name: str) -> None:
        """A fused parameter that has to be held in float."""


class Fuse(ConversionOps):
    """The operations of a model's own converter, on tensors that are quantized.

    hf_quantizer: only that it is there says that dtypes are to be kept (`get_new_dtype`)
    infos: {source pattern of the converter: how its tensors are stored}
    operations: the converter's own
    """

    def __init__(
        self, taker: Taker, infos: Mapping[str, TensorInfo], operations: list[ConversionOps]
    ):
        self.hf_quantizer, self._infos, self._operations = taker, infos, operations

    def __deepcopy__(self, memo: dict[int, Any]) -> "Fuse":
        return Fuse(self.hf_quantizer, self._infos, self._operations)

    def convert(  # type: ignore[override]
        self,
        input_dict: Tensors,
        target_patterns: list[str],
        full_layer_name: str,
        model: Any,
        **more: Any,
    ) -> Tensors:
        """{pattern.part: [tensors]} -> {target: a stand-in, or floats}."""
        told = more | {
            "target_patterns": target_patterns, "full_layer_name": full_layer_name, "model": model,
            "source_patterns": list(self._infos),
        }  # fmt: skip
        if len(target_patterns) == 1 and not self._mixed(input_dict):
            info = self._fused_info(model.get_parameter(full_layer_name))
            if info is not None and (parts := self._fused_parts(input_dict, info, told)):
                held = self.hf_quantizer.take_fused(full_layer_name, info, parts)
                return {target_patterns[0]: held}
        self.hf_quantizer.note_dequantized(full_layer_name)
        return self._run(self._floats(input_dict, model.config.dtype), told)

    def _mixed(self, found: Tensors) -> bool:
        """Whether some of the tensors are in float."""
        return any(not self._is_part(name) for name in found)

    def _is_part(self, name: str) -> bool:
        return any(name == f"{pattern}.{part}" for pattern in self._infos for part in PARTS)

    def _fused_info(self, parameter: Tensor) -> TensorInfo | None:
        """How the fused parameter is stored, if its codes are those of its tensors."""
        formats = {(info.format, info.layout) for info in self._infos.values()}
        rows = all(_keeps_rows(each, parameter.ndim) for each in self._operations)
        if len(formats) != 1 or not rows or {layout for _, layout in formats} != {"plain"}:
            return None
        first = next(iter(self._infos.values()))
        return replace(first, shape=tuple(parameter.shape))

    def _fused_parts(
        self, found: Tensors, info: TensorInfo, told: dict[str, Any]
    ) -> dict[str, Tensor] | None:
        """Codes and scales, fused; None where they are not what a parameter of this shape has."""
        parts = {}
        for part, (_, shape) in info.parts().items():
            each = {pattern: list(found[f"{pattern}.{part}"]) for pattern in self._infos}
            value = next(iter(self._run(each, told).values()))
            parts[part] = value[0] if isinstance(value, list) else value
            if tuple(parts[part].shape) != tuple(shape):
                return None
        return parts

    def _run(self, values: Tensors, told: dict[str, Any]) -> Tensors:
        for operation in self._operations:
            values = operation.convert(values, **told)
        return values

    def _floats(self, found: Tensors, dtype: Any) -> Tensors:
        """{pattern: [float tensors]}; those that are in float are as they are."""
        floats = {name: each for name, each in found.items() if not self._is_part(name)}
        for pattern, info in self._infos.items():
            parts = {part: found.get(f"{pattern}.{part}") or [] for part in info.parts()}
            rows = zip(*parts.values(), strict=True)
            values = [piece_values(dict(zip(parts, row, strict=True)), info) for row in rows]
            if values:
                floats[pattern] = [each.to(dtype) for each in values]
        return floats


def _keeps_rows(operation: ConversionOps, rank: int) -> bool:
    """Whether an operation puts rows together, and leaves each of them whole."""
    if isinstance(operation, MergeModulelist):
        return operation.dim == 0
    return isinstance(operation, Concatenate) and 0 <= operation.dim < rank - 1


def only(pattern: str, infos: list[tuple[str, TensorInfo]]) -> TensorInfo:
    """How all tensors are stored that become parts of one. Raises FileError where they differ."""
    first = infos[0][1]
    if other := next((name for name, info in infos if info != first), None):
        raise FileError(
            f"{infos[0][0]} and {other} become one tensor of this model, but are stored in "
            f"different formats: quantize the checkpoint with one format for {pattern}"
        )
    return first


DISK = "disk"


def loading_places(device_map: dict[str, Any]) -> dict[str, Any]:
    """Where a model is loaded that is to be where the device map says."""
    return {name: "cpu" if place == DISK else place for name, place in device_map.items()}


@contextmanager
def dispatched(model: Any, places: dict[str, Any] | None) -> Iterator[None]:
    """Without accelerate's hooks inside, and dispatched as `places` says after.

    The hooks of a layer replace its forward, which a quantized layer in its place could not have.
    What is left on disk is written to a directory of its own, which goes with the model.
    """
    places = places or getattr(model, "hf_device_map", None) or {}
    on_disk = [name or "the model" for name, place in places.items() if place == DISK]
    if len(set(places.values())) < 2 and not on_disk:
        yield
        return
    from accelerate import dispatch_model
    from accelerate.hooks import remove_hook_from_submodules
    from accelerate.utils.modeling import find_tied_parameters, retie_parameters

    ties = find_tied_parameters(model)
    remove_hook_from_submodules(model)
    retie_parameters(model, ties)  # a hook brings each name's tensor back by itself
    yield
    told: dict[str, Any] = {"skip_keys": getattr(model, "_skip_keys_device_placement", None)}
    if on_disk:
        told["offload_dir"] = _folder_of(model, on_disk)
    dispatch_model(model, device_map=_by_block(model, places), **told)


def _by_block(model: Any, places: dict[str, Any]) -> dict[str, Any]:
    """The same places; of a model that is on disk as a whole, those of its blocks, as accelerate
    looks for the tensors of a place by what stands before a dot."""
    if places.get("") != DISK:
        return places
    return {name: DISK for name, _ in model.named_children()}


def _folder_of(model: Any, on_disk: list[str]) -> str:
    """A new directory that is deleted with the model; a warning says where."""
    folder = tempfile.mkdtemp(prefix="blockscale-offload-")
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"blockscale: {shown(', '.join(on_disk), 400)}: kept on disk in {folder} while the "
        "model is in use, because transformers does not pass offload_folder to quantizers; "
        "set TMPDIR for another place",
        stacklevel=6,
    )
    return folder
