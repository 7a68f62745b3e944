# SPDX-License-Identifier: BSD-3-Clause
"""QEmbedding as a module: tests/ops/test_embedding.py has what it gives."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.before import Scale
from blockscale.layers.kinds import QEmbedding


def test_it_keeps_what_the_table_had() -> None:
    model = nn.Sequential(nn.Embedding(9, 16, padding_idx=2))
    bs.quantize_(model, "int4:group8:fp32")
    table = model[0]
    assert isinstance(table, QEmbedding)
    assert (table.num_embeddings, table.embedding_dim, table.padding_idx) == (9, 16, 2)
    assert table._parameters["bias"] is None
    assert "9, 16" in repr(table)


def test_rows_are_those_of_the_dequantized_table() -> None:
    model = nn.Sequential(nn.Embedding(9, 16))
    bs.quantize_(model, "int4:group8:fp32")
    indices = torch.tensor([[3, 0], [8, 3]])
    assert torch.equal(model(indices), model[0].dequantize_weight()[indices])


def test_its_input_has_no_format_and_nothing_stands_before_it() -> None:
    model = nn.Sequential(nn.Embedding(9, 16))
    ledger = bs.quantize_(model, bs.Recipe("int8", input="int8"))
    assert model[0].input is None
    assert ledger["0"].reason == "its input is indices, which have no format"
    with pytest.raises(ValueError, match="its input is indices, which cannot be transformed"):
        model[0].set_before(Scale(torch.ones(16)))
