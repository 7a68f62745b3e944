# SPDX-License-Identifier: BSD-3-Clause
"""llama.cpp on what `bs.export.convert_checkpoint` writes: transformers' logits, of every kind of
model. llama.cpp computes on floats here (files widened by its own quantizer), so that both are
float32; GELU is a table of float16 there, which is why models that have it differ by more."""

from pathlib import Path

import pytest
import torch

import blockscale as bs
from tests.clients import llama_cpp, results
from tests.support import tiny

pytestmark = pytest.mark.clients
CLIENT = "llama.cpp"
NEAR = 1e-5
GELU = {"gpt2": 3e-3, "gemma2": 1e-3, "gemma3_text": 1e-3}  # of logits up to 5


@pytest.mark.loads("GGUF of a float directory")
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_logits_of_float_files(kind: str, tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "m", kind)
    done = bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    ids = tiny.tokens(48)  # three windows of Gemma
    ours, theirs = tiny.logits(model, ids), llama_cpp.logits(tmp_path / "m.gguf", ids)
    assert not done.notes
    results.near(theirs, ours, GELU.get(kind, NEAR))
    tokens = llama_cpp.greedy(tmp_path / "m.gguf", ids[:16], 16)
    expected = model.generate(
        torch.tensor([ids[:16]]), max_new_tokens=16, do_sample=False, pad_token_id=0,
        eos_token_id=None,
    )[0, 16:].tolist()  # fmt: skip
    results.equal([tokens], [expected])


@pytest.mark.loads("GGUF in Q8_0, widened by llama.cpp")
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_logits_of_quantized_files(kind: str, tmp_path: Path) -> None:
    """Q8_0 (experts, too), widened to float32 by llama.cpp: the values that we say it holds."""
    from blockscale.integrations.transformers import from_checkpoint

    tiny.write(tmp_path / "m", kind)
    bs.quantize_directory(tmp_path / "m", tmp_path / "q", "profile:gguf.q8_0")
    bs.export.convert_checkpoint(tmp_path / "q", tmp_path / "q.gguf", "gguf")
    llama_cpp.quantize(tmp_path / "q.gguf", tmp_path / "wide.gguf", "F32")
    ids = tiny.tokens(48)
    ours = tiny.logits(from_checkpoint(tmp_path / "q.gguf"), ids)
    results.near(llama_cpp.logits(tmp_path / "wide.gguf", ids), ours, GELU.get(kind, NEAR))


@pytest.mark.loads("GGUF of a model whose window llama.cpp has not: within the window")
def test_a_window_that_llama_cpp_has_not(tmp_path: Path) -> None:
    """The same within the window, which is where the context ends; not beyond it."""
    model = tiny.write(tmp_path / "m", "mistral", sliding_window=24)
    done = bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    assert "the last 24 tokens (sliding_window)" in done.notes[0]
    ids = tiny.tokens(60)
    theirs, ours = llama_cpp.logits(tmp_path / "m.gguf", ids), tiny.logits(model, ids)
    results.near(theirs[:24], ours[:24], NEAR)
    assert float((theirs - ours)[40:].abs().max()) > 0.1


@pytest.mark.loads("GGUF, layers with a window in another order")
def test_layers_with_a_window_in_another_order(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    model = tiny.write(
        tmp_path / "m", "gemma3_text", num_hidden_layers=3, layer_types=kinds, sliding_window=8
    )
    bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    ids = tiny.tokens(48)
    theirs = llama_cpp.logits(tmp_path / "m.gguf", ids)
    results.near(theirs, tiny.logits(model, ids), GELU["gemma3_text"])


@pytest.mark.loads("GGUF in float16 and bfloat16, widened by llama.cpp")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_files_of_sixteen_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    """Matrices as they are, the rest in float32; widened, the logits of the model in float32."""
    from transformers import AutoModelForCausalLM

    tiny.model("qwen3_moe").to(dtype).save_pretrained(tmp_path / "m")
    tiny.tokenizer(tmp_path / "m")
    bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    log = llama_cpp.quantize(tmp_path / "m.gguf", tmp_path / "wide.gguf", "F32")
    assert "file type" not in log or "guessed" not in log
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    ids = tiny.tokens(48)
    results.near(llama_cpp.logits(tmp_path / "wide.gguf", ids), tiny.logits(model, ids), NEAR)


@pytest.mark.loads("GGUF in NVFP4 with outer scales")
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_nvfp4_with_a_scale_of_scales(kind: str, tmp_path: Path) -> None:
    """`blk.N.attn_q.scale` and the like: multiplied by after the product. Biases of ffn are no
    part of it: llama.cpp asserts there."""
    from blockscale.integrations.transformers import from_checkpoint

    more = {"mlp_bias": False} if kind == "llama" else {}
    tiny.write(tmp_path / "m", kind, **more)
    recipe = bs.Recipe("nvfp4", skip=["*embed_tokens", "lm_head"])
    bs.quantize_directory(tmp_path / "m", tmp_path / "q", recipe)
    done = bs.export.convert_checkpoint(tmp_path / "q", tmp_path / "q.gguf", "gguf")
    assert done.lossless
    ids = tiny.tokens(48)
    ours = tiny.logits(from_checkpoint(tmp_path / "q"), ids)
    assert torch.equal(tiny.logits(from_checkpoint(tmp_path / "q.gguf"), ids), ours)
    llama_cpp.quantize(tmp_path / "q.gguf", tmp_path / "wide.gguf", "F32")  # keeps the scales
    results.near(llama_cpp.logits(tmp_path / "wide.gguf", ids), ours, NEAR)
    theirs = llama_cpp.logits(tmp_path / "q.gguf", ids)  # which quantizes inputs to 8 bits
    results.alike(theirs, ours, 0.998)


@pytest.mark.loads("its own IQ3_S, which we read")
def test_a_file_with_grids(tmp_path: Path) -> None:
    """llama.cpp's own IQ3_S: the values that it widens it to, where gguf is installed."""
    pytest.importorskip("gguf")
    from blockscale.integrations.transformers import from_checkpoint

    tiny.write(tmp_path / "m", "llama", hidden_size=256, intermediate_size=256)
    bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    llama_cpp.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", "IQ3_S", pure=True)
    llama_cpp.quantize(tmp_path / "q.gguf", tmp_path / "wide.gguf", "F32")
    with pytest.warns(UserWarning, match="hold vectors of a ggml grid"):
        model = from_checkpoint(tmp_path / "q.gguf")
    ids = tiny.tokens(48)
    theirs = llama_cpp.logits(tmp_path / "wide.gguf", ids)
    results.near(theirs, tiny.logits(model, ids), 10 * NEAR)


@pytest.mark.loads("GGUF in K types where rows are no whole blocks: the types of llama-quantize")
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q3_K"])
def test_rows_of_384(kind: str, tmp_path: Path) -> None:
    """The types that llama-quantize falls back to, tensor by tensor."""
    tiny.write(tmp_path / "m", "llama", hidden_size=384, intermediate_size=512,
               num_attention_heads=6)  # fmt: skip
    bs.quantize_directory(tmp_path / "m", tmp_path / "q", f"profile:gguf.{kind.lower()}")
    bs.export.convert_checkpoint(tmp_path / "q", tmp_path / "q.gguf", "gguf")
    bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    theirs = {"Q4_K": "Q4_K_S", "Q3_K": "Q3_K_S"}.get(kind, kind)
    llama_cpp.quantize(tmp_path / "m.gguf", tmp_path / "t.gguf", theirs, pure=True)
    with bs.checkpoint(tmp_path / "q.gguf") as ours, bs.checkpoint(tmp_path / "t.gguf") as there:
        matrices = {n: each.kind for n, each in ours.stored.items() if len(each.shape) > 1}
        assert matrices == {n: there.stored[n].kind for n in matrices}
        assert len(set(matrices.values())) == 2
