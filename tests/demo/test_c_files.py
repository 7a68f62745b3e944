# SPDX-License-Identifier: BSD-3-Clause
"""C files called from Python: their outputs, what they refuse, an encoder's occurring words."""

import pytest
import torch

import blockscale as bs
from blockscale.demo import exports
from blockscale.demo.exports import compiled, compiler, with_occurring_words
from tests.support.c_handmade import handmade
from tests.support.integer_oracle import INT8, shifts, whole

needs_compiler = pytest.mark.skipif(compiler() is None, reason=exports.NO_COMPILER)


@needs_compiler
def test_outputs(tmp_path):
    """Codes by their exponent and zero point, integers as they are, in their shapes."""
    x = whole(-128, 127, 2, 3, dtype=torch.int8)
    calls = [("rescale", ["x", 0, shifts(1), 5, -127, 127, INT8]), ("dequantize", ["@0", 5, -3])]
    graph = handmade({"x": x}, calls)
    path = tmp_path / "model.c"
    bs.export.c(graph, path, x)
    codes, values = compiled(path)({"x": x})
    expected, floats = graph(x)
    assert torch.equal(codes, expected) and codes.dtype == torch.int8
    assert torch.equal(values, floats) and values.dtype == torch.float32
    with pytest.raises(ValueError, match="x has 3 elements, the C file is for 6"):
        compiled(path)({"x": x[:1]})


@needs_compiler
def test_what_is_no_file_of_ours(tmp_path):
    path = tmp_path / "model.c"
    path.write_text("int f(void);\nint f(void)\n{\n    return 0;\n}\n")
    with pytest.raises(RuntimeError, match="does not declare model_run"):
        compiled(path)
    path.write_text("int f(\n")
    with pytest.raises(RuntimeError, match=r"refuses .*model\.c"):
        compiled(path)


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(exports.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler is installed"):
        compiled(tmp_path / "model.c")


def test_occurring_words():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = BertModel(BertConfig(vocab_size=50, num_attention_heads=2, **sizes)).eval()
    tokens = {"input_ids": torch.tensor([[3, 49, 3], [7, 0, 20]])}
    part, given = with_occurring_words(model, tokens)
    assert part.embeddings.word_embeddings.weight.shape == (5, 32)
    assert model.embeddings.word_embeddings.weight.shape == (50, 32)
    with torch.no_grad():
        assert torch.equal(part(**given)[0], model(**tokens)[0])
