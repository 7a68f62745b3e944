# SPDX-License-Identifier: BSD-3-Clause
"""A quantized table gives the rows that `dequantize()[indices]` gives, and refuses the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.parse import CATALOG
from tests.support.op_samples import Made
from tests.support.ops_embedding import EXTRA

ROWS, SIZE = 19, 37  # every block below is partial somewhere
INDICES = (
    torch.tensor(3),
    torch.tensor([], dtype=torch.long),
    torch.tensor([[18, 0, 7], [7, 7, 1]]),
    torch.arange(ROWS, dtype=torch.int32),
    torch.zeros(2, 0, 3, dtype=torch.long),
    torch.randperm(ROWS)[:12].reshape(3, 4).t(),
)


def samples(made: Made) -> dict[str, list[tuple]]:
    return {"embedding": [(made.packed, torch.tensor([[0, 4], [2, 2]]), made.dtype)]}


def table(fmt: str, dtype=torch.float32, odd: bool = False) -> tuple[nn.Module, Tensor]:
    """A quantized embedding, and the float table that its codes mean."""
    embedding = nn.Embedding(ROWS, SIZE, padding_idx=0).to(dtype)
    if odd:
        embedding.weight.data[3, 5], embedding.weight.data[7, 1] = torch.nan, torch.inf
    dense = bs.quantize(embedding.weight, fmt).dequantize(dtype)
    model = nn.Sequential(embedding)
    bs.quantize_(model, fmt)
    return model[0], dense


def same(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fmt", [*CATALOG, *EXTRA])
def test_rows(fmt: str, dtype: torch.dtype) -> None:
    quantized, dense = table(fmt, dtype)
    for indices in INDICES:
        same(quantized(indices), F.embedding(indices, dense))
    same(quantized.dequantize_weight(), dense)


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "int8_channel", "uint4", "binary"])
def test_rows_of_a_table_with_nan_and_infinity(fmt: str) -> None:
    with pytest.warns(UserWarning, match="2 of 703 weights are NaN or infinite"):
        quantized, dense = table(fmt, odd=True)
    same(quantized(INDICES[3]), dense)


@pytest.mark.parametrize(
    "indices",
    [torch.tensor([-1]), torch.tensor([0, -ROWS]), torch.tensor([ROWS]), torch.tensor([1.0]),
     torch.ones(ROWS, dtype=torch.bool), torch.ones(4, dtype=torch.uint8)],
    ids=str,
)  # fmt: skip
def test_indices_that_torch_refuses(indices: Tensor) -> None:
    """A label of -100 that reaches the table must not become a row from its end."""
    quantized, dense = table("int8_channel")
    with pytest.raises((IndexError, RuntimeError)):
        F.embedding(indices, dense)
    with pytest.raises((IndexError, RuntimeError, TypeError)):
        quantized(indices)


def test_dtype_follows_the_model() -> None:
    quantized, _ = table("nvfp4")
    before = {name: buffer.clone() for name, buffer in quantized.named_buffers()}
    for move, dtype in ((nn.Module.half, torch.float16), (nn.Module.bfloat16, torch.bfloat16)):
        move(quantized)
        same(quantized(INDICES[2]), quantized.weight.tensor.dequantize(dtype)[INDICES[2]])
    for name, buffer in quantized.named_buffers():
        same(buffer, before[name])


def test_output_format_and_ignored_input_format() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, SIZE))
    dense = bs.quantize(model[0].weight, "int8_channel").dequantize()
    ledger = bs.quantize_(model, bs.Recipe("int8_channel", "int8", "mxfp4"))
    same(model(INDICES[2]), bs.fake_quantize(dense[INDICES[2]], "mxfp4"))
    assert (ledger["0"].input, ledger["0"].output) == ("", "e2m1:group32:e8m0/floor")
    assert ledger["0"].reason == "its input is indices, which have no format"


@pytest.mark.slow
def test_compile_and_export() -> None:
    count = torch.export.Dim("count", min=2, max=99)
    for fmt in ("nvfp4", "uint4", "int5:tile4x16:fp32"):
        torch._dynamo.reset()
        quantized, dense = table(fmt)
        run = torch.compile(quantized, fullgraph=True, backend="aot_eager", dynamic=True)
        program = torch.export.export(quantized, (torch.arange(4),), dynamic_shapes=({0: count},))
        for n in (4, 9, 2):
            indices = torch.arange(n) % ROWS
            same(run(indices), dense[indices])
            same(program.module()(indices), dense[indices])


def test_backward_stops_here_in_words() -> None:
    quantized, _ = table("int8_channel")
    assert not quantized(INDICES[2]).requires_grad  # as a frozen nn.Embedding
    x = torch.randn(2, 3, SIZE, requires_grad=True)
    (quantized(INDICES[2]) * x).sum().backward()
    same(x.grad, quantized(INDICES[2]))
