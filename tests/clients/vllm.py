# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's CPU build on a directory: what it says of prompts, beside what a model here says."""

import json
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from tests.clients.programs import run

PROMPTS = [[(7 * i + 3 * j) % 96 for j in range(24)] for i in range(3)]
COUNT = 24

# NVFP4 and MXFP4 have no kernels on CPUs. Everything before them is vLLM's own: it finds the
# scheme, loads and joins weights and scales, processes them, and dequantizes and rounds inputs by
# its own reference functions; products are F.linear.
_EMULATED = """
import torch.nn.functional as F

def emulate():
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils as nvfp4
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w4a4_nvfp4 as scheme)

    class Kernel:
        def __init__(self, use_a16):
            self.use_a16 = use_a16
        def input_quant_key(self, *_):
            return None
        def process_weights_after_loading(self, layer):
            pass
        def apply_weights(self, layer, x, bias=None):
            weight = nvfp4.dequantize_to_dtype(
                layer.weight.data, layer.weight_scale.data, layer.weight_global_scale.data,
                x.dtype, 16, swizzle=False)
            if not self.use_a16:
                rows = x.reshape(-1, x.shape[-1])
                rows = nvfp4.ref_nvfp4_quant_dequant(rows, layer.input_global_scale_inv, 16)
                x = rows.reshape(x.shape)
            return F.linear(x, weight, bias)

    scheme.init_nvfp4_linear_kernel = lambda use_a16=False: Kernel(use_a16)
    scheme.expose_input_quant_key = lambda *_: None
"""

_SCRIPT = """
import json, os, sys
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
import torch
EMULATED
from vllm import LLM, SamplingParams

directory, prompts, vocabulary, dtype = sys.argv[1:]
prompts, vocabulary = json.loads(prompts), int(vocabulary)
emulate()
llm = LLM(directory, skip_tokenizer_init=True, dtype=dtype, enforce_eager=True, max_model_len=64,
          max_logprobs=vocabulary, enable_prefix_caching=False, max_num_seqs=4)
settings = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=vocabulary, detokenize=False)
said = []
for prompt in prompts:
    [found] = llm.generate([{"prompt_token_ids": prompt}], settings, use_tqdm=False)
    rows = [[each[i].logprob for i in range(vocabulary)] for each in found.prompt_logprobs[1:]]
    said.append(rows)
print(json.dumps(said))
"""


def prompt_logprobs(
    directory: Path,
    prompts: list[list[int]],
    vocabulary: int,
    dtype: str = "float32",
    installed: Path | None = None,
) -> torch.Tensor:
    """[prompts, tokens - 1, vocabulary] float32: what vLLM expects after each token but the last.

    directory: of a model whose prompts are given as tokens, all of one length; no tokenizer is read
    installed: where our plug-in is to be found
    """
    script = _SCRIPT.replace("EMULATED", _EMULATED)
    text = str([list(map(int, prompt)) for prompt in prompts])
    return torch.tensor(
        run("vllm", script, directory, text, vocabulary, dtype, installed=installed)
    )


_GREEDY = """
import json, os, sys
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
directory, prompts, count, options = sys.argv[1:]
if "hf_overrides" in options:  # where what is quantized by vLLM is kept
    os.environ["VLLM_CACHE_ROOT"] = directory + "-cache"
from vllm import LLM, SamplingParams
llm = LLM(directory, skip_tokenizer_init=True, max_model_len=128, enable_prefix_caching=False,
          max_num_seqs=4, **json.loads(options))
settings = SamplingParams(max_tokens=int(count), temperature=0, detokenize=False, ignore_eos=True)
prompts = [{"prompt_token_ids": each} for each in json.loads(prompts)]
found = llm.generate(prompts, settings, use_tqdm=False)
print(json.dumps([list(each.outputs[0].token_ids) for each in found]))
"""


def greedy(
    directory: Path, prompts: list[list[int]], count: int, installed: Path, **options: object
) -> list[list[int]]:
    """The `count` tokens that vLLM with our plug-in gives after each prompt.

    options: of vllm.LLM, such as dtype and enforce_eager
    """
    of = {"dtype": "float32", "enforce_eager": True} | options
    text = json.dumps(prompts)
    found: list[list[int]] = run(
        "vllm", _GREEDY, directory, text, count, json.dumps(of), installed=installed
    )
    return found


def expected_tokens(
    model: torch.nn.Module, prompts: list[list[int]], count: int
) -> list[list[int]]:
    """The same of `generate` of a causal model here."""
    ids = torch.tensor(prompts)
    with torch.no_grad():
        found = model.generate(  # type: ignore[operator]
            ids, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0,
            attention_mask=torch.ones_like(ids),
        )  # fmt: skip
    return found[:, ids.shape[1] :].tolist()


def expected_logprobs(model: torch.nn.Module, prompts: list[list[int]]) -> torch.Tensor:
    """The same of a causal model here."""
    with torch.no_grad():
        logits = model(torch.tensor(prompts)).logits.float()
    return logits.log_softmax(-1)[:, :-1]


def divergence(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The mean KL divergence over all tokens, in nats."""
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def model(kind: str, size: float = 4) -> Any:
    """A small random decoder whose weights are `size` times as large, so that tokens differ."""
    import transformers

    torch.manual_seed(0)
    common = {
        "vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    own: dict[str, dict[str, Any]] = {
        "Llama": {"intermediate_size": 256},
        "Qwen2": {"intermediate_size": 256},  # biases
        "Qwen3": {"intermediate_size": 256, "head_dim": 32, "tie_word_embeddings": True},
        "Qwen3Moe": {
            "intermediate_size": 256, "moe_intermediate_size": 64, "head_dim": 32,
            "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
        },
        "Mixtral": {
            "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        },
        "GptOss": {
            "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
            "head_dim": 32, "sliding_window": 16,
        },
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**common, **own[kind])
    built = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if name.endswith(("bias", "sinks")):  # which begin as zeros, and nobody sees those
                weight.normal_(0, 0.2)
            elif weight.dim() > 1:
                weight *= size
    return built


def served(kind: str, recipe: Any, folder: Path, size: float = 4) -> tuple[Path, Any]:
    """A directory of `blockscale quantize`, and the model that loads it here."""
    model(kind, size).save_pretrained(folder / "float")
    bs.quantize_directory(folder / "float", folder / "ours", recipe)
    here = model(kind, size)
    bs.load(here, folder / "ours")
    return folder / "ours", here
