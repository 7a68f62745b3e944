# SPDX-License-Identifier: BSD-3-Clause
# ruff: noqa: ARG002 - the signatures are vLLM's
"""The quantization method "blockscale" of vLLM, in the classes that vLLM 0.32 asks for.

vLLM builds a float model and asks the method for each layer. Ours reads the layer's weights from
the directory itself, by name, and vLLM's loader leaves out what was read; all else, such as norms,
biases and layers in float, vLLM loads as it always does. Names: vLLM's "joined" layer (qkv_proj)
has several of the model's (q_proj, k_proj, v_proj).
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm import envs
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.fused_moe.activation import (
    ApplyMoEActivationConfig,
    MoEActivation,
    apply_moe_activation,
)
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import WeightsMapper
from vllm.model_executor.utils import set_weight_attrs

from blockscale.core.operand import UNQUANTIZED
from blockscale.files.stored_model import open_stored_model
from blockscale.integrations.config import METHOD, quantized_copy
from blockscale.integrations.vllm.experts import Biases, check_biases, clamped_swiglu
from blockscale.integrations.vllm.served import Part, Served
from blockscale.ops.embedding import embedding
from blockscale.ops.linear import linear

if TYPE_CHECKING:
    from blockscale.integrations.vllm.experts import Experts

_log = logging.getLogger("vllm.blockscale")


class Taken:
    """In the place of a regular expression of names that vLLM's loader is to leave out."""

    def __init__(self, names: set[str]):
        self._names = names

    def search(self, name: str) -> bool:
        """Whether the tensor `name` was read already."""
        return name in self._names


class BlockscaleMethod(QuantizationConfig):
    """Which of our methods a layer gets: those whose weights the directory holds quantized."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config = config or {}
        self.served: Served | None = None
        self._counts: Counter[str] = Counter()

    def get_name(self) -> str:
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BlockscaleMethod":
        return cls(config)

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """Look at the directory: its headers say the format of each tensor. One in float is
        quantized first, by the recipe that `hf_overrides` gives."""
        stored = open_stored_model(model_name)
        if not stored.metadata.tensors and self.config.get("recipe"):
            folder = Path(envs.VLLM_CACHE_ROOT) / METHOD
            _log.info("blockscale: %s in float is quantized into %s", model_name, folder)
            stored = quantized_copy(model_name, self.config, folder)
        self.served = Served(stored)
        if not self.served.stored.metadata.tensors:
            raise ValueError(
                f"{model_name} holds no tensor that blockscale quantized: `blockscale quantize "
                f"{model_name} OUT --recipe …` makes a directory that does, or pass --quantization "
                f"blockscale and --hf-overrides with a quantization_config that has a recipe"
            )

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """The model has other names in vLLM than in its files."""
        assert self.served is not None
        self.served.rename(hf_to_vllm_mapper.map_name)

    def get_checkpoint_weight_mapper(self) -> WeightsMapper:
        """What vLLM's loader is to leave out. Asked for when all layers are there."""
        assert self.served is not None
        names = self.served.read_names()
        told = ", ".join(f"{count} × {fmt}" for fmt, count in self._counts.most_common())
        _log.info("blockscale: weights as they are stored: %s", told)
        for note in self.served.notes():
            _log.warning("blockscale: %s", note)
        return WeightsMapper(orig_to_new_regex={Taken(names): None})

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        assert self.served is not None
        method: QuantizeMethodBase | None = None
        if isinstance(layer, LinearBase):
            method = self._linear(prefix) or UnquantizedLinearMethod()
        elif isinstance(layer, VocabParallelEmbedding):
            method = self._table(layer, prefix) or UnquantizedEmbeddingMethod()
        elif isinstance(layer, RoutedExperts):
            method = self._experts(layer, prefix)
        return method

    def _linear(self, prefix: str) -> "LinearMethod | None":
        assert self.served is not None
        above, _, last = prefix.rpartition(".")
        joined = self.packed_modules_mapping.get(last, [last])
        names = [f"{above}.{each}" if above else each for each in joined]
        shards = self.served.shards(names, prefix)
        if shards is None:
            return None
        self._count(*shards)
        return LinearMethod(self.served, shards, names)

    def _table(self, layer: Any, prefix: str) -> "TableMethod | None":
        assert self.served is not None
        shape = (layer.org_vocab_size, layer.embedding_dim)
        tensor = self.served.table(prefix, shape)
        if tensor is None:
            return None
        self._count(tensor)
        return TableMethod(self.served, tensor)

    def _experts(self, layer: Any, prefix: str) -> "ExpertsMethod | None":
        assert self.served is not None
        names = [layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name]
        stored = self.served.experts(prefix, layer.global_num_experts, names)
        if stored is None:
            return None
        self._count(*stored.tensors)
        return ExpertsMethod(layer.moe_config, stored)

    def _count(self, *tensors: str) -> None:
        assert self.served is not None
        known = self.served.stored.metadata.tensors
        self._counts.update(known[each].format for each in tensors)


def _whole(what: str) -> None:
    """Raise ValueError where a process would need a part of what is served whole."""
    ranks = get_tensor_model_parallel_world_size()
    if ranks > 1:
        raise ValueError(
            f"{what}: tensor_parallel_size is {ranks}, and blockscale's plug-in does not cut it: "
            f"set tensor_parallel_size=1 (or enable_expert_parallel for experts)"
        )


def _parts(layer: Any, shards: Sequence[str], sizes: Sequence[int]) -> list[Part | None]:
    """What this process has of each shard of a layer that vLLM cuts."""
    if layer.tp_size == 1:
        return [None] * len(shards)
    if layer.input_size_per_partition < layer.input_size:
        size = layer.input_size_per_partition
        return [Part(1, layer.tp_rank * size, (layer.tp_rank + 1) * size)]
    if sum(sizes) == layer.output_size:  # each process has all
        return [None] * len(shards)
    if len(sizes) != len(shards):
        raise ValueError(
            f"{', '.join(shards)}: one weight in the file and {len(sizes)} in vLLM, each of "
            f"which is cut: set tensor_parallel_size=1"
        )
    copies = getattr(layer, "num_kv_head_replicas", 1)  # processes that share heads of keys
    ranks = [layer.tp_rank if i == 0 else layer.tp_rank // copies for i in range(len(shards))]
    return [Part(0, rank * n, (rank + 1) * n) for rank, n in zip(ranks, sizes, strict=True)]


def _device() -> torch.device:
    """Where vLLM builds its model."""
    return torch.get_default_device()


class LinearMethod(LinearMethodBase):
    """A linear layer of vLLM by ours: its shards one after the other, each as the model has it."""

    def __init__(self, served: Served, shards: list[str], names: list[str]):
        self._served, self._shards, self._names = served, shards, names

    def create_weights(
        self, layer: Any, input_size_per_partition: int, output_partition_sizes: list[int],
        input_size: int, output_size: int, params_dtype: torch.dtype, **extra: Any,
    ) -> None:  # fmt: skip
        layer.input_size_per_partition = input_size_per_partition
        parts = _parts(layer, self._shards, output_partition_sizes)
        joined = self._served.joined(self._shards, params_dtype, parts).to(_device())
        sizes = (joined.each()[0].in_features, sum(joined.sizes))
        expected = (input_size_per_partition, sum(output_partition_sizes))
        if sizes != expected:
            raise ValueError(
                f"{', '.join(self._shards)}: {sizes[0]} inputs and {sizes[1]} outputs, and vLLM's "
                f"layer has {expected[0]} and {expected[1]}"
            )
        layer.quantized = joined

    def process_weights_after_loading(self, layer: Any) -> None:
        """Set what is quantized of a bias, which vLLM adds to the layer after its weights."""
        biases = [self._served.bias(name) for name in self._names]
        start = 0
        for size, bias in zip(layer.quantized.sizes, biases, strict=True):
            if bias is not None:
                _whole(f"the bias of {self._names[0]}")
                layer.bias.data[start : start + size] = bias.to(layer.bias)
            start += size

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y: Tensor = layer.quantized(x, bias)
        return y


class TableMethod(QuantizeMethodBase):
    """A table of embeddings, and the logits of a model whose head is one; perhaps tied."""

    def __init__(self, served: Served, tensor: str):
        self._served, self._tensor = served, tensor
        self._dtype = torch.float32

    def create_weights(
        self, layer: Any, *args: Any, params_dtype: torch.dtype, **extra: Any
    ) -> None:
        own = layer.shard_indices
        rows = (own.org_vocab_start_index, own.org_vocab_end_index)
        layer.quantized = self._served.rows(self._tensor, params_dtype, _device(), rows)
        self._dtype = params_dtype

    def embedding(self, layer: Any, ids: Tensor) -> Tensor:
        rows: Tensor = embedding(layer.quantized.operand, ids, self._dtype)
        return rows

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y: Tensor = linear(x, layer.quantized.operand, bias, UNQUANTIZED)
        missing = layer.num_embeddings_per_partition - y.shape[-1]  # as many from each process
        return y if layer.tp_size == 1 else F.pad(y, (0, missing))

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
        """The head's codes are the table's: the file holds them once, and so does the model."""
        layer.quantized = embed_tokens.quantized
        return layer


class ExpertsMethod(FusedMoEMethodBase):
    """The experts of a mixture: a product of all tokens, sorted by expert, with all matrices."""

    def __init__(self, moe: Any, stored: Any):
        super().__init__(moe)
        self._stored = stored

    def create_weights(
        self, layer: Any, num_experts: int, hidden_size: int,
        intermediate_size_per_partition: int, params_dtype: torch.dtype, **extra: Any,
    ) -> None:  # fmt: skip
        if self.moe.has_bias:
            self._add_biases(layer, num_experts, hidden_size, params_dtype, extra)
        ranks, local = self.moe.moe_parallel_config, _local_experts(layer, num_experts)
        experts = self._stored.read(local, params_dtype, ranks.tp_rank, ranks.tp_size)
        layer.quantized = experts.to(_device())

    def _add_biases(
        self, layer: Any, count: int, features: int, dtype: torch.dtype, attributes: dict[str, Any]
    ) -> None:
        """Parameters of vLLM's own names, which its loader sets: biases are floats."""
        ranks = get_tensor_model_parallel_world_size()
        check_biases(layer.layer_name, layer.activation.value, ranks)
        for name, size in (("w13_bias", self._stored.outputs()), ("w2_bias", features)):
            bias = nn.Parameter(torch.zeros(count, size, dtype=dtype), requires_grad=False)
            layer.register_parameter(name, bias)
            set_weight_attrs(bias, attributes)

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def apply(
        self, layer: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor,
        shared_experts: Any = None, shared_experts_input: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        experts: Experts = layer.quantized
        ids = topk_ids if layer.expert_map is None else layer.expert_map[topk_ids]
        biases = Biases(layer.w13_bias, layer.w2_bias) if self.moe.has_bias else None
        weighs = layer.apply_router_weight_on_input
        return experts(x, topk_weights, ids, _activation(layer), weighs, biases)


def _local_experts(layer: Any, count: int) -> list[int]:
    """Which of all experts this process has, in its own order."""
    if layer.expert_map is None:
        return list(range(count))
    owners = layer.expert_map.tolist()
    return sorted((each for each, own in enumerate(owners) if own >= 0), key=lambda e: owners[e])


def _activation(layer: Any) -> Callable[[Tensor], Tensor]:
    """gate and up [rows, 2 n] -> [rows, n], as the model's activation says."""
    if layer.activation == MoEActivation.SWIGLUOAI:
        return clamped_swiglu

    config = layer.moe_config  # also says where gates and ups are clamped
    settings = ApplyMoEActivationConfig.from_configs(config, FUSED_MOE_UNQUANTIZED_CONFIG)

    def apply(x: Tensor) -> Tensor:
        y = x.new_empty(x.shape[0], x.shape[1] // (2 if config.is_act_and_mul else 1))
        apply_moe_activation(layer.activation, y, x, activation_config=settings)
        return y

    return apply
