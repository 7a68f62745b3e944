# SPDX-License-Identifier: BSD-3-Clause
"""Models on several devices, on the CPU beside an accelerator, and on disk.

transformers loads as floats what a device map leaves on disk, and quantizing would have to read it
back: so such layers are loaded on the CPU, quantized, and then given to accelerate, by the map.
"""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from transformers.core_model_loading import ConversionOps

from blockscale.core.untrusted import shown
from blockscale.files.metadata import PARTS, FileError, TensorInfo
from blockscale.files.renaming_carry import carry
from blockscale.files.renaming_moves import Move
from blockscale.files.renaming_view import piece_values

# Parameters that a model fuses of several tensors of its checkpoint, such as experts.
#
# Where a format has blocks that put each of its rows under the scale that it has, the codes are the
# parts' codes, fused in the same way (an expert's gate and up projection under outer scales of
# their own). Elsewhere the parts are dequantized and their floats fused: the model holds floats.

Tensors = dict[str, Any]  # {pattern: a tensor, or a list of them}


class Taker(Protocol):
    """What takes the codes of a fused parameter (reading.Reading)."""

    def take_fused(self, name: str, info: TensorInfo, parts: dict[str, Tensor]) -> Tensor:
        """The parameter that the model holds meanwhile."""

    def note_dequantized(self, name: str) -> None:
        """A fused parameter that has to be held in float."""


class Fuse(ConversionOps):
    """The operations of a model's own converter, on tensors that are quantized.

    hf_quantizer: that it is not None makes `get_new_dtype` keep dtypes
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
        options = more | {
            "target_patterns": target_patterns, "full_layer_name": full_layer_name, "model": model,
            "source_patterns": list(self._infos),
        }  # fmt: skip
        whole = len(target_patterns) == 1 and not self._mixed(input_dict)
        if whole and (result := self._fuse_codes(input_dict, options)) is not None:
            parameter = self.hf_quantizer.take_fused(full_layer_name, *result)
            return {target_patterns[0]: parameter}
        self.hf_quantizer.note_dequantized(full_layer_name)
        return self._run(self._floats(input_dict, model.config.dtype), options)

    def _mixed(self, tensors: Tensors) -> bool:
        """Whether some of the tensors are in float."""
        return any(not self._is_part(name) for name in tensors)

    def _is_part(self, name: str) -> bool:
        return any(name == f"{pattern}.{part}" for pattern in self._infos for part in PARTS)

    def _fuse_codes(
        self, inputs: Tensors, options: dict[str, Any]
    ) -> tuple[TensorInfo, dict[str, Tensor]] | None:
        """The fused parameter of codes and scales as they are, as `bs.load` makes it
        (renaming_carry.py); None where no format has blocks that keep them."""
        target, model = options["full_layer_name"], options["model"]
        sources: dict[str, tuple[str, ...]] = {}
        infos: dict[str, TensorInfo] = {}
        pieces: dict[str, dict[str, Tensor]] = {}
        for pattern, info in self._infos.items():
            for part in info.parts():
                tensors = list(inputs[f"{pattern}.{part}"])
                sources[pattern] = tuple(f"{pattern}/{i}" for i in range(len(tensors)))
                pieces.setdefault(part, {}).update(zip(sources[pattern], tensors, strict=True))
            infos |= dict.fromkeys(sources[pattern], info)
        move = Move(sources, target, _Operations(lambda values: self._run(values, options)))
        shape = model.get_parameter(target).shape
        result = carry(model, move, infos, {target: shape})
        if result is None:
            return None
        each, device = result[target], next(iter(pieces["codes"].values())).device
        parts = {part: each.part(part, pieces[part]).to(device) for part in each.parts}
        return each.info, parts

    def _run(self, values: Tensors, options: dict[str, Any]) -> Tensors:
        for operation in self._operations:
            values = operation.convert(values, **options)
        return values

    def _floats(self, tensors: Tensors, dtype: Any) -> Tensors:
        """{pattern: [float tensors]}; those that are in float are as they are."""
        floats = {name: each for name, each in tensors.items() if not self._is_part(name)}
        for pattern, info in self._infos.items():
            parts = {part: tensors.get(f"{pattern}.{part}") or [] for part in info.parts()}
            rows = zip(*parts.values(), strict=True)
            values = [piece_values(dict(zip(parts, row, strict=True)), info) for row in rows]
            if values:
                floats[pattern] = [each.to(dtype) for each in values]
        return floats


class _Operations:
    """A converter's operations as a `Move` asks for them: the one tensor that they make."""

    def __init__(self, run: Callable[[Tensors], Tensors]):
        self._run = run
        self.collected_tensors: Tensors = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Operations":
        return _Operations(self._run)

    def convert(self, name: str, **_: Any) -> Tensors:
        """{name: the tensor}, of what was collected."""
        return {name: next(iter(self._run(self.collected_tensors).values()))}


def only(pattern: str, infos: list[tuple[str, TensorInfo]]) -> TensorInfo:
    """How all tensors that become parts of one are stored. Raises FileError where they differ."""
    first = infos[0][1]
    if other := next((name for name, info in infos if info != first), None):
        raise FileError(
            f"{infos[0][0]} and {other} become one tensor of this model, but are stored in "
            f"different formats: quantize the checkpoint with one format for {pattern}"
        )
    return first


DISK = "disk"


def loading_places(device_map: dict[str, Any]) -> dict[str, Any]:
    """The device map by which a model is loaded: the CPU in the place of disk."""
    return {name: "cpu" if place == DISK else place for name, place in device_map.items()}


@contextmanager
def dispatch_after(model: Any, places: dict[str, Any] | None) -> Iterator[None]:
    """Run the block without accelerate's hooks, then dispatch the model as `places` says.

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
    options: dict[str, Any] = {"skip_keys": getattr(model, "_skip_keys_device_placement", None)}
    if on_disk:
        options["offload_dir"] = _folder_of(model, on_disk)
    dispatch_model(model, device_map=_by_block(model, places), **options)


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
