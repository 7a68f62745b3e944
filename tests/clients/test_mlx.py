# SPDX-License-Identifier: BSD-3-Clause
"""MLX directories in mlx-lm on a CPU: the logits of the model here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import blockscale as bs
from tests.clients import results
from tests.clients.programs import run

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "mlx-lm"
PROMPT = [(7 * i + 3) % 96 for i in range(48)]
_SCRIPT = """
import json, sys
from pathlib import Path
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)
model, _ = load_model(Path(sys.argv[1]))
logits = model(mx.array([json.loads(sys.argv[2])])).astype(mx.float32)
kinds = sorted({layer.mode for _, layer in model.named_modules() if hasattr(layer, "mode")})
print(json.dumps({"logits": logits[0].tolist(), "modes": kinds}))
"""


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 8
    return model


@pytest.mark.loads("MLX directories, embeddings quantized, too")
@pytest.mark.parametrize(
    ("fmt", "mode"), [("profile:gguf.nvfp4", "nvfp4"), ("mxfp4", "mxfp4")], ids=["nvfp4", "mxfp4"]
)
def test_logits(fmt: str, mode: str, tmp_path: Path) -> None:
    """Embeddings are quantized, too. Sums have another order there."""
    llama().save_pretrained(tmp_path / "float")
    bs.quantize_directory(
        tmp_path / "float", tmp_path / "ours", bs.Recipe(fmt, rules={"model.embed_tokens": fmt})
    )
    done = bs.export.convert_checkpoint(tmp_path / "ours", tmp_path / "out", "mlx")
    assert done.lossless
    found = run("light", _SCRIPT, tmp_path / "out", str(PROMPT))
    assert found["modes"] == [mode]
    with torch.no_grad():
        model = llama()
        with bs.checkpoint(tmp_path / "ours") as stored:
            model.load_state_dict({name: stored.dequantize(name) for name in stored})
        expected = model(torch.tensor([PROMPT])).logits[0]
    theirs = torch.tensor(found["logits"])
    results.equal(theirs.argmax(-1)[:, None].tolist(), expected.argmax(-1)[:, None].tolist())
    results.near(theirs, expected, 1e-4 * float(expected.abs().max()))
