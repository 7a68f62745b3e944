# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files a tensor at a time; frequencies of llama 3 as transformers computes them."""

from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.export.writers.gguf_files.file import GGUFFile, rope_factors
from blockscale.export.writers.gguf_files.head import Value, encoded
from blockscale.export.writers.writer import Planned


def test_tensors_in_any_order(tmp_path: Path) -> None:
    q = bs.quantize(torch.randn(3, 64), "int8:group32:fp16:full")
    x, n = torch.randn(5).to(torch.bfloat16), torch.arange(7, dtype=torch.int8)
    planned = [
        Planned("q", (3, 64), q.format), Planned("x", (5,), None, torch.bfloat16),
        Planned("n", (7,), None, torch.int8),
    ]  # fmt: skip
    path = tmp_path / "m.gguf"
    made = GGUFFile(path, planned, {"general.architecture": encoded(Value("text", "a"))}, 32, {})
    for name, value in (("n", n), ("q", q), ("x", x)):
        made.write(name, value)
    made.close()
    with bs.checkpoint(path) as found:
        assert {s.name: s.kind for s in found.stored.values()} == {
            "q": "Q8_0", "x": "BF16", "n": "I8"
        }  # fmt: skip
        assert torch.equal(found["q"].packed, q.packed) and torch.equal(found["x"], x)
        assert torch.equal(found["n"], n)


@pytest.mark.slow
def test_rope_factors() -> None:
    """transformers 5.23: its frequencies are the plain ones over these."""
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    settings = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "rope_theta": 5e5,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=settings,
                         max_position_embeddings=512)  # fmt: skip
    scaled, _ = rope.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 5e5 ** (torch.arange(0, 64, 2).float() / 64)
    factors = rope_factors(settings, 64)
    assert factors[0] == 1 and factors[-1] == 8 and len(factors.unique()) > 2
    torch.testing.assert_close(plain / factors, scaled, rtol=1e-6, atol=0)
