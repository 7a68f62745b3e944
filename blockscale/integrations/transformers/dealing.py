# SPDX-License-Identifier: BSD-3-Clause
"""Models that transformers is to deal out to processes (`distributed_config`, `tp_plan`).

transformers cuts a model before it reads it, and each process reads its part of every float
weight. Codes are cut when they are there: every process reads or quantizes all of them, by the
plans that transformers resolves, and keeps its part. What cannot be dealt out is refused first.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from blockscale.layers.layer import QLayer
from blockscale.layers.store import weights_of
from blockscale.parallel.frozen import as_parameters_, check_torch
from blockscale.parallel.parts import cut_weight, place
from blockscale.parallel.plan import Stored, check_plan, deal_layers

_LATER = "_blockscale_dealing"  # in a model that is being read: its Dealing
_SIZES = ("tp_size", "ep_size", "fsdp_size", "dp_replicate_size", "pp_size")
_STACK, _DISPATCH = "grouped_gemm", "ep_dispatch_experts"  # transformers' styles of experts


class Distribution:
    """A model that is read whole in each process, and then dealt out.

    Raises ValueError for pipelines, reduced precision of FSDP2, and versions of transformers that
    deal models out in another way.
    """

    parameters: Callable[[], Mapping[str, Stored]]  # what will be quantized, once that is known

    def __init__(self, model: Any):
        self._model, self._manager = model, None
        self._accelerate_shards = _accelerate_shards()
        self._config: Any = getattr(getattr(model, "config", None), "distributed_config", None)
        sizes = {name: getattr(self._config, name, None) or 1 for name in _SIZES}
        requests = [f"{name}={size}" for name, size in sizes.items() if size > 1]
        if not requests:
            return
        request = f"distributed_config asks for {', '.join(requests)}"
        if sizes["pp_size"] > 1:
            raise ValueError(
                f"{request}, and pipelines of quantized models are not supported: leave pp_size out"
            )
        if getattr(self._config, "fsdp_mixed_precision", False):
            raise ValueError(
                f"{request} and fsdp_mixed_precision, which would round the scales of codes when "
                "they are gathered: leave it out, and load the model with dtype=torch.bfloat16"
            )
        self._whole_plans = hasattr(_mixin(), "_resolve_parallel_plans")  # 5.23; 5.17 has not
        experts = getattr(self._config, "enable_expert_parallel", False)  # as 5.17 spells ep_size
        alone = sizes["tp_size"] > 1 and len(requests) == 1 and not experts
        if not hasattr(_mixin(), "maybe_distribute_model") or not (alone or self._whole_plans):
            raise ValueError(
                f"{request}{' and experts' * experts}, which this version of transformers does in "
                "a way that does not suit codes: load the model whole in each process and call "
                "bs.parallel.shard_(model, mesh), or install transformers 5.23"
            )
        self._sizes = sizes
        vars(model)[_LATER] = self

    def plan(self, config: Any, manager: Any) -> None:
        """Resolve transformers' plans while the model is still in float, and check them."""
        model = self._model
        self._config, self._manager = config, manager
        model.config.distributed_config = config
        self._experts, self._fsdp = self._resolve()
        self._layers: dict[str, str] = {}
        if config.tp_size > 1:
            over = tuple(model.ep_plan) if self._sizes["ep_size"] > 1 else ()
            self._layers = {
                name: style
                for name, style in model.tp_plan.items()
                if not any(name == each or name.startswith(f"{each}.") for each in over)
            }
            try:
                check_plan(self._layers, self.parameters(), config.tp_size)
            except ValueError as error:
                raise ValueError(f"tp_size={config.tp_size}: {error}") from None
        if other := sorted({*self._experts.values()} - {_STACK, _DISPATCH}):
            raise ValueError(
                f"ep_size={config.ep_size}: the plan deals experts out by {other[0]!r}; quantized "
                f"ones can be dealt by {_DISPATCH!r} and {_STACK!r}"
            )
        if getattr(config, "dp_size", 1) > 1:
            check_torch(torch.__version__)

    def _resolve(self) -> tuple[dict[str, str], dict[str, str]]:
        """transformers' plans for experts and for shards; the plan for layers becomes the model's
        tp_plan."""
        model, config = self._model, self._config
        if self._whole_plans:
            _, experts, fsdp = model._resolve_parallel_plans(config)
            return experts, fsdp
        if isinstance(config.tp_plan, dict):
            model.tp_plan = config.tp_plan
        return {}, {}

    def finish(self) -> None:
        """Let this process keep its part of the model, which is read and quantized."""
        model, config, manager = self._model, self._config, self._manager
        vars(model).pop(_LATER, None)
        if self._accelerate_shards:
            as_parameters_(model)
        if manager is None:
            return
        model._tp_size, model._fsdp_size = config.tp_size, config.fsdp_size
        if not self._whole_plans:  # the mesh itself
            model._device_mesh = manager
            mesh = manager["tp"] if manager.ndim > 1 else manager
            deal_layers(model, mesh.get_group(), self._layers, auto=True)
            return
        model._mesh_manager = manager
        model._device_mesh = manager.get_mesh(("pp", "fsdp", "tp"))
        model._is_distributed_loading_by_transformers = True
        if self._layers:
            deal_layers(model, manager.get_mesh("tp").get_group(), self._layers, auto=True)
        if self._experts:
            _deal_experts(model, manager, self._experts, config.ep_implementation)
        if config.dp_size > 1:
            from transformers.distributed.fsdp import apply_fully_sharded_data_parallelism

            tied = _tied(model)
            plan = {name: style for name, style in self._fsdp.items() if name not in tied}
            as_parameters_(model)
            apply_fully_sharded_data_parallelism(model, manager, plan, self._experts)


def _accelerate_shards() -> bool:
    """Whether accelerate will call FSDP2's fully_shard: `accelerate launch` says so in the
    environment. Raises ValueError where it would first broadcast the state of one process."""
    uses_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    if not uses_fsdp or os.environ.get("FSDP_VERSION") != "2":
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
    weight, parameter = weights_of(module).get(name), module._parameters.get(name)
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
    """Have transformers leave a model whole until it is read, if a `Distribution` deals it out."""
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
