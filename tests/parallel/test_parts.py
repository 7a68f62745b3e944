# SPDX-License-Identifier: BSD-3-Clause
"""Which part of a weight a process has, and which layers cannot have parts (no processes here)."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.joined_weights import of_stack
from blockscale.layers.layer import QBias
from blockscale.layers.store import QWeight
from blockscale.parallel import parts
from blockscale.parallel.parts import cut_weight, pieces_of, place, refuses

On = Callable[[int, int], None]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Be one process of so many."""

    def be(rank: int, count: int) -> None:
        monkeypatch.setattr(parts.dist, "get_rank", lambda group: rank)
        monkeypatch.setattr(parts.dist, "get_world_size", lambda group: count)

    return be


def stack(fmt: str, parts_of_it: int) -> tuple[torch.Tensor, QWeight]:
    x = torch.randn(3, 64, 32, generator=torch.Generator().manual_seed(0))
    return x, QWeight.quantize(x, of_stack(bs.parse(fmt), x.shape, parts_of_it))


def test_places(on: On) -> None:
    on(1, 3)
    at = place(None, 10)
    assert (at.start, at.length, at.places) == (4, 4, (0, 4, 8, 10))
    assert at.of(torch.arange(10), 0).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "int4:group32:fp32", "int8", "int8_channel"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_packed_weight_is_cut_in_each_of_its_parts(on: On, fmt: str, count: int) -> None:
    """Gate and up: each process has rows of both, with the values that they had."""
    values = stack(fmt, count)[1].dequantize()
    for rank in range(2):
        on(rank, 2)
        _, weight = stack(fmt, count)
        codes = weight.codes
        cut_weight(weight, 1, 2, None)
        each = values.reshape(3, 2, 32, 32)[:, :, 16 * rank : 16 * rank + 16].reshape(3, 32, 32)
        assert torch.equal(weight.dequantize(), each) and weight.shape == (3, 32, 32)
        assert weight.part == f"{16 * rank} to {16 * rank + 16} of 32" and weight.part in str(
            weight
        )
        assert weight.codes.untyped_storage().data_ptr() != codes.untyped_storage().data_ptr()
        assert set(weight.state_dict()) == {"codes", *weight.format.parts, "_extra_state"}


def test_a_transposed_weight(on: On) -> None:
    on(1, 2)
    weight = QWeight.quantize(torch.randn(32, 64), bs.parse("mxfp4"), "transposed")
    values = weight.dequantize()
    cut_weight(weight, 0, 1, None)
    assert weight.shape == (32, 32) and torch.equal(weight.dequantize(), values[:, 32:])


def test_parts_that_do_not_divide(on: On) -> None:
    on(0, 2)
    weight = QWeight.quantize(torch.randn(63, 32), bs.parse("mxfp4"))
    with pytest.raises(ValueError, match="63 rows cannot be divided into 2 equal parts"):
        pieces_of(weight, 0, 2, None)
    on(1, 2)
    tall = QWeight.quantize(torch.randn(16, 32), bs.parse("int8:tile12x32:fp32"))
    with pytest.raises(ValueError, match="are cut at other places of blocks"):
        pieces_of(tall, 0, 2, None)


def layer(recipe: bs.Recipe) -> nn.Module:
    net = nn.Sequential(nn.Linear(64, 64))
    bs.quantize_(net, recipe)
    return net[0]


def test_what_cannot_be_a_part() -> None:
    assert "a Linear is no quantized" in refuses(nn.Linear(4, 4), "colwise")
    assert refuses(layer(bs.Recipe("mxfp4", "nvfp4")), "rowwise") == ""
    told = refuses(layer(bs.Recipe("mxfp4", output="int8_token")), "colwise")
    assert told == "its output is quantized (int8:token:fp32) by scales of several processes"
    assert refuses(layer(bs.Recipe("mxfp4", output="int8_token")), "rowwise") == ""
    told = refuses(layer(bs.Recipe("mxfp4", "int8:flat32:fp32")), "rowwise")
    assert "run over the flattened tensor" in told
    told = refuses(layer(bs.Recipe("mxfp4", "int8:token:fp32:stochastic")), "rowwise")
    assert "stochastic rounding" in told
    static = layer(bs.Recipe("mxfp4", "int8:channel-1:fp32"))
    static.input.set_scale(torch.ones(1, 64))
    assert "is not one number" in refuses(static, "rowwise") and refuses(static, "colwise") == ""
    table = nn.Sequential(nn.Embedding(8, 64))
    bs.quantize_(table, bs.Recipe("mxfp4", output="int8_token"))
    told = "" if table[0].output is None else "its output is quantized"
    assert refuses(table[0], "embedding_rowwise") == told


def test_transforms_of_an_input_that_is_cut() -> None:
    from blockscale.layers.before.rotate import Rotate
    from blockscale.layers.before.scale import Scale

    one = layer(bs.Recipe("mxfp4"))
    one.before = Rotate(64, 16)
    assert "mixes inputs of several processes" in refuses(one, "rowwise")
    assert refuses(one, "colwise") == ""
    one.before = Scale(torch.ones(64))
    assert refuses(one, "rowwise") == ""


def test_a_quantized_bias() -> None:
    from blockscale.core.arithmetic.sums import SumInteger

    one = layer(bs.Recipe("mxfp4"))
    bias = QBias(torch.zeros(64, dtype=torch.int32), torch.ones(64), SumInteger(32), torch.float32)
    one.set_bias(bias)
    assert refuses(one, "colwise") == "its bias is quantized (int32:sums)"
