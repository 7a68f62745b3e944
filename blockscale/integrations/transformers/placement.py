# SPDX-License-Identifier: BSD-3-Clause
"""Models on several devices, on the CPU beside an accelerator, on disk, and in several processes.

transformers loads what a device map leaves on disk as floats, which quantizing would turn around:
so such layers are loaded on the CPU, quantized, and then left to accelerate as the map says.
"""

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.core_model_loading import Concatenate, ConversionOps, MergeModulelist

from blockscale.core.untrusted import shown
from blockscale.files.metadata import PARTS, FileError, TensorInfo
from blockscale.files.renaming_view import piece_values
from blockscale.layers.layer import QLayer
from blockscale.layers.store import held
from blockscale.parallel.frozen import as_parameters_, check_torch
from blockscale.parallel.parts import cut_weight, place
from blockscale.parallel.plan import Stored, check_plan, deal_layers

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


# Models that transformers is to deal out to processes (`distributed_config`, `tp_plan`).
#
# transformers cuts a model before it reads it, and each process reads its part of every float
# weight. Codes are cut when they are there: every process reads or quantizes all of them, by the
# plans that transformers resolves, and keeps its part. What cannot be is refused before that.

_LATER = "_blockscale_dealing"  # in a model that is being read: its Dealing
_SIZES = ("tp_size", "ep_size", "fsdp_size", "dp_replicate_size", "pp_size")
_STACK, _DISPATCH = "grouped_gemm", "ep_dispatch_experts"  # transformers' styles of experts


class Dealing:
    """A model that is read whole in each process, and then dealt out.

    Raises ValueError for what cannot be: pipelines, reduced precision of FSDP2, and a transformers
    that deals models out in another way.
    """

    parameters: Callable[[], Mapping[str, Stored]]  # what will be quantized, once that is known

    def __init__(self, model: Any):
        self._model, self._manager = model, None
        self._accelerate_shards = _accelerate_shards()
        self._asked: Any = getattr(getattr(model, "config", None), "distributed_config", None)
        sizes = {name: getattr(self._asked, name, None) or 1 for name in _SIZES}
        asked = [f"{name}={size}" for name, size in sizes.items() if size > 1]
        if not asked:
            return
        told = f"distributed_config asks for {', '.join(asked)}"
        if sizes["pp_size"] > 1:
            raise ValueError(
                f"{told}, and pipelines of quantized models are not built: leave pp_size out"
            )
        if getattr(self._asked, "fsdp_mixed_precision", False):
            raise ValueError(
                f"{told} and fsdp_mixed_precision, which would round the scales of codes when they "
                "are gathered: leave it out, and load the model with dtype=torch.bfloat16"
            )
        if not hasattr(_mixin(), "maybe_distribute_model"):
            raise ValueError(
                f"{told}, which this version of transformers does in a way that does not suit "
                "codes: load the model whole in each process and call bs.parallel.shard_(model, "
                "mesh), or install transformers 5.23"
            )
        vars(model)[_LATER] = self

    def plan(self, asked: Any, manager: Any) -> None:
        """Resolve transformers' plans while the model is still in float, and check them."""
        model = self._model
        self._asked, self._manager = asked, manager
        model.config.distributed_config = asked
        _, self._experts, self._fsdp = model._resolve_parallel_plans(asked)
        self._layers: dict[str, str] = {}
        if asked.tp_size > 1:
            over = tuple(model.ep_plan) if asked.ep_size > 1 else ()
            self._layers = {
                name: style
                for name, style in model.tp_plan.items()
                if not any(name == each or name.startswith(f"{each}.") for each in over)
            }
            try:
                check_plan(self._layers, self.parameters(), asked.tp_size)
            except ValueError as error:
                raise ValueError(f"tp_size={asked.tp_size}: {error}") from None
        if other := sorted({*self._experts.values()} - {_STACK, _DISPATCH}):
            raise ValueError(
                f"ep_size={asked.ep_size}: the plan deals experts out by {other[0]!r}; quantized "
                f"ones can be dealt by {_DISPATCH!r} and {_STACK!r}"
            )
        if asked.dp_size > 1:
            check_torch(torch.__version__)

    def finish(self) -> None:
        """Let this process keep its part of the model, which is read and quantized."""
        model, asked, manager = self._model, self._asked, self._manager
        vars(model).pop(_LATER, None)
        if self._accelerate_shards:
            as_parameters_(model)
        if manager is None:
            return
        model._mesh_manager = manager
        model._device_mesh = manager.get_mesh(("pp", "fsdp", "tp"))
        model._is_distributed_loading_by_transformers = True
        model._tp_size, model._fsdp_size = asked.tp_size, asked.fsdp_size
        if self._layers:
            deal_layers(model, manager.get_mesh("tp").get_group(), self._layers, auto=True)
        if self._experts:
            _deal_experts(model, manager, self._experts, asked.ep_implementation)
        if asked.dp_size > 1:
            from transformers.distributed.fsdp import apply_fully_sharded_data_parallelism

            tied = _tied(model)
            plan = {name: style for name, style in self._fsdp.items() if name not in tied}
            as_parameters_(model)
            apply_fully_sharded_data_parallelism(model, manager, plan, self._experts)


def _accelerate_shards() -> bool:
    """Whether accelerate will call FSDP2's fully_shard: `accelerate launch` says so in the
    environment. Raises ValueError where it would first broadcast the state of one process."""
    asked = os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    if not asked or os.environ.get("FSDP_VERSION") != "2":
        return False
    check_torch(torch.__version__)
    if os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "").lower() in ("1", "true"):
        raise ValueError(
            "accelerate is set to read the model in one process and to broadcast it "
            "(fsdp_cpu_ram_efficient_loading), which fails on the formats that stand beside codes "
            "in a state: set fsdp_cpu_ram_efficient_loading to false; each process then reads codes"
        )
    return True


def _tied(model: nn.Module) -> set[str]:
    """Layers that share their codes with others: FSDP2 gathers those with the model's own, so that
    all have them, and not with one of the layers."""
    names: dict[int, list[str]] = {}
    for name, each in model.named_modules(remove_duplicate=False):
        if isinstance(each, QLayer):
            names.setdefault(id(each.qweight), []).append(name)
    return {name for several in names.values() if len(several) > 1 for name in several}


def _deal_experts(model: nn.Module, manager: Any, plan: Mapping[str, str], how: str) -> None:
    """Let this process keep its experts, to which transformers brings their tokens."""
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

    mesh, modules = manager.get_mesh("ep"), dict(model.named_modules())
    for name, style in plan.items():
        if style == _STACK:
            owner, _, attribute = name.rpartition(".")
            _keep_experts(modules[owner], attribute, mesh.get_group())
        else:
            ALL_PARALLEL_STYLES[style].install_forward(
                modules[name], mesh, tp_mesh=manager.get_mesh("tp"), ep_implementation=how
            )


def _keep_experts(module: Any, name: str, group: Any) -> None:
    """Cut a stack [experts, ...], quantized or in float, along its experts."""
    weight, parameter = held(module).get(name), module._parameters.get(name)
    of: Any = weight or parameter
    if of is None:
        return
    at = place(group, of.shape[0])
    if at.places[1] * (len(at.places) - 1) != of.shape[0]:
        raise ValueError(
            f"ep_size={len(at.places) - 1}: {of.shape[0]} experts cannot be dealt out evenly"
        )
    if weight is not None:
        cut_weight(weight, 0, 1, group)
    else:
        module._parameters[name] = nn.Parameter(
            at.of(parameter.detach(), 0).clone(), parameter.requires_grad
        )
    module.num_experts, module._is_expert_parallel = at.length, True


def deal_later() -> None:
    """Have transformers leave a model alone that is dealt out when it is read."""
    mixin = _mixin()
    original = getattr(getattr(mixin, "maybe_distribute_model", None), "__func__", None)
    if original is None:
        return

    def maybe_distribute_model(
        cls: Any, model: Any, distributed_config: Any, mesh_manager: Any
    ) -> Any:
        if _LATER not in vars(model) or mesh_manager is None:
            return original(cls, model, distributed_config, mesh_manager)
        vars(model)[_LATER].plan(distributed_config, mesh_manager)
        return model

    mixin.maybe_distribute_model = classmethod(maybe_distribute_model)


def _mixin() -> Any:
    """transformers' class of models that are dealt out; None in a version without it."""
    try:
        from transformers.distributed.mixin import DistributedMixin
    except ImportError:
        return None
    return DistributedMixin
