# SPDX-License-Identifier: BSD-3-Clause
"""Our directories in vLLM with our plug-in: greedy tokens are those of `generate` here."""

from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.integrations.transformers import from_checkpoint
from tests.clients import results
from tests.clients.programs import install, run
from tests.clients.vllm import (
    COUNT,
    PROMPTS,
    divergence,
    expected_logprobs,
    expected_tokens,
    greedy,
    model,
    prompt_logprobs,
    served,
)

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "vLLM with our plug-in"
MOST = 1e-3  # nats
TABLES = ["model.embed_tokens", "lm_head"]  # vLLM gives gpt-oss's to no plug-in


def label(value: object) -> str:
    """What a case is called: a recipe by its formats."""
    if not isinstance(value, bs.Recipe):
        return str(value)
    each = (value.weight, value.input)
    return " × ".join(str(fmt) for fmt in each if fmt is not None)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


@pytest.mark.loads("directories of `blockscale quantize`")
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [
        ("Llama", "mxfp4"),
        ("Llama", "e4m3:tile128x128:fp32"),
        ("Qwen2", "bfp8"),
        ("Qwen3", "nvfp4"),
        ("Qwen3", "nf4"),
        ("Qwen3", bs.Recipe("log4", skip=["*.q_proj", "*.k_proj", "*.v_proj"])),
        ("Qwen3Moe", "int4:group32:fp16"),
        ("Mixtral", bs.Recipe("nvfp4", skip=["model.embed_tokens"])),
        ("GptOss", bs.Recipe("mxfp4", skip=TABLES)),
        ("GptOss", bs.Recipe("nvfp4", skip=TABLES)),
    ],
    ids=label,
)
def test_tokens_are_those_of_generate(
    kind: str, recipe: Any, installed: Path, tmp_path: Path
) -> None:
    directory, here = served(kind, recipe, tmp_path)
    expected = expected_tokens(here, PROMPTS, COUNT)
    assert len({tuple(each) for each in expected}) == len(PROMPTS)  # they say something
    results.equal(greedy(directory, PROMPTS, COUNT, installed), expected)


@pytest.mark.loads("directories, inputs quantized as they come")
@pytest.mark.parametrize(
    "recipe",
    [
        bs.Recipe("int8_channel", input="int8_token"),
        bs.Recipe("e4m3:tile128x128:fp32", input="e4m3:group128:fp32"),
        bs.Recipe("nvfp4", input="nvfp4_token"),
    ],
    ids=label,
)
def test_quantized_inputs(recipe: Any, installed: Path, tmp_path: Path) -> None:
    """vLLM's attention adds up in another order, and a number beside a tie may be rounded the other
    way: what follows is alike, not equal."""
    directory, here = served("Llama", recipe, tmp_path, size=1.5)
    theirs = prompt_logprobs(directory, PROMPTS, 96, installed=installed)
    results.close(divergence(expected_logprobs(here, PROMPTS), theirs), MOST)


@pytest.mark.loads("a calibrated model: SmoothQuant, static int8 inputs")
def test_a_calibrated_model_with_transforms(installed: Path, tmp_path: Path) -> None:
    """Saved by save_pretrained: factors before layers, static scales of inputs."""
    quantized = model("Llama")
    batches = [torch.tensor(PROMPTS)]
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32", skip=["lm_head"])
    bs.calibrate(quantized, batches, recipe, transform="smoothquant")
    quantized.save_pretrained(tmp_path / "ours")
    expected = expected_tokens(quantized, PROMPTS, COUNT)
    results.equal(greedy(tmp_path / "ours", PROMPTS, COUNT, installed), expected)


@pytest.mark.loads("checkpoints of others, saved with their codes")
@pytest.mark.parametrize(
    ("producer", "fmt"),
    [("awq", "uint4:group64:fp16:asym"), ("gptq", "uint4:group64:fp16:asym"),
     ("gguf", "int8:group32:fp16:full")],
)  # fmt: skip
def test_a_checkpoint_of_another_producer(
    producer: str, fmt: str, installed: Path, tmp_path: Path
) -> None:
    """Read by from_checkpoint, saved with its codes, and served."""
    skip = ["lm_head", "model.embed_tokens"] if producer != "gguf" else []
    directory, _ = served("Llama", bs.Recipe(fmt, skip=skip), tmp_path)
    other = tmp_path / ("other.gguf" if producer == "gguf" else "other")
    bs.export.convert_checkpoint(directory, other, producer)
    here = from_checkpoint(other).eval()
    here.save_pretrained(tmp_path / "saved")
    expected = expected_tokens(here, PROMPTS, COUNT)
    results.equal(greedy(tmp_path / "saved", PROMPTS, COUNT, installed), expected)


@pytest.mark.loads("a float directory, quantized as it is served")
def test_a_float_directory_is_quantized_as_it_is_served(installed: Path, tmp_path: Path) -> None:
    """With the numbers of `blockscale quantize`, once: the copy stays in vLLM's cache."""
    recipe = bs.Recipe("mxfp4", skip=["*.o_proj"])
    _, here = served("Qwen2", recipe, tmp_path)
    expected = expected_tokens(here, PROMPTS, COUNT)
    config = {"quant_method": "blockscale", "recipe": recipe.to_dict()}
    options = {"quantization": "blockscale", "hf_overrides": {"quantization_config": config}}
    results.equal(greedy(tmp_path / "float", PROMPTS, COUNT, installed, **options), expected)
    copies = list((tmp_path / "float-cache" / "blockscale").iterdir())
    assert len(copies) == 1
    before = copies[0].stat().st_mtime_ns
    results.equal(greedy(tmp_path / "float", PROMPTS, COUNT, installed, **options), expected)
    assert [(each, each.stat().st_mtime_ns) for each in copies] == [(copies[0], before)]


@pytest.mark.loads("a directory under torch.compile")
def test_compiled(installed: Path, tmp_path: Path) -> None:
    """vLLM's own default: the model is one torch.compile."""
    directory, here = served("Llama", "mxfp4", tmp_path)
    expected = expected_tokens(here, PROMPTS, COUNT)
    tokens = greedy(directory, PROMPTS, COUNT, installed, enforce_eager=False)
    results.equal(tokens, expected)


@pytest.mark.loads("directories, tensor_parallel_size 2")
@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3Moe"])
def test_two_processes_that_each_have_a_part(kind: str, installed: Path, tmp_path: Path) -> None:
    """Two heads of keys for two processes, cut tables, and a part of every expert."""
    directory, here = served(kind, "mxfp4", tmp_path)
    expected = expected_tokens(here, PROMPTS, COUNT)
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    results.equal(greedy(directory, PROMPTS, COUNT, installed, **options), expected)


@pytest.mark.loads("directories that it cannot serve")
@pytest.mark.parametrize(
    ("kind", "recipe", "reason"),
    [
        ("Llama", bs.Recipe("mxfp4", skip=["*.k_proj"]), "k_proj are float and the others"),
        ("Mixtral", "mxfp4", r"server computes itself, such as model\.embed_tokens\.weight"),
    ],
)
def test_a_model_is_refused_that_would_compute_with_nothing(
    kind: str, recipe: Any, reason: str, installed: Path, tmp_path: Path
) -> None:
    """One of several joined layers is float; vLLM gives Mixtral's table to no plug-in."""
    directory, _ = served(kind, recipe, tmp_path)
    with pytest.raises(AssertionError, match=reason):
        greedy(directory, PROMPTS, COUNT, installed)
    results.refused()


_CLAMPED = """
import json, types, torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from blockscale.integrations.vllm.method import _activation
torch.manual_seed(0)
x = torch.randn(3, 16) * 4
def gives(**changes):
    settings = {"is_act_and_mul": True, "swiglu_limit": None, "swiglu_alpha": None,
                "swiglu_beta": None, "activation_situ_beta": None,
                "activation_situ_linear_beta": None} | changes
    layer = types.SimpleNamespace(activation=MoEActivation.SILU,
                                  moe_config=types.SimpleNamespace(**settings))
    return _activation(layer)(x)
gate, up = x.chunk(2, 1)
silu = torch.nn.functional.silu
expected = silu(gate.clamp(max=1.5)) * up.clamp(-1.5, 1.5)
try:
    clamped = float((gives(swiglu_limit=1.5) - expected).abs().max())
except Exception as error:
    clamped = str(error)
print(json.dumps([float((gives() - silu(gate) * up).abs().max()), clamped]))
"""


@pytest.mark.loads("experts whose gates are clamped")
def test_gates_are_clamped_where_the_model_says(installed: Path) -> None:
    plain, clamped = run("vllm", _CLAMPED, installed=installed)
    assert plain < 1e-6
    # a build without that operation says so; it must not leave the clamp out
    assert clamped < 1e-6 if isinstance(clamped, float) else "clamp" in clamped
