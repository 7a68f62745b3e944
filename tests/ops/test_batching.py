# SPDX-License-Identifier: BSD-3-Clause
"""torch.vmap gives each slice the bits that it has by itself, whatever of an op is batched."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import blockscale as bs
from blockscale.core.cuts import blocks_of
from blockscale.core.parse import parse
from blockscale.ops import batching
from blockscale.ops.batching import in_blocks_of, within_rows

X = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(0)) * torch.tensor(
    [1.0, 30.0, 0.01]
).reshape(3, 1, 1)  # a scale over all slices would differ from that of each
INPUTS = [
    None, "int8_token", "mxfp8", "int8", "nvfp4", "int8:channel-1:fp32", "int8:tile2x8:fp32",
    "uint8:token:fp32:asym", "int4:group8@0:fp32", "int8:flat64:fp32", "book3:tensor:fp32",
    "int8:group8:fp32:offset",
]  # fmt: skip
AT_ONCE = {None, "int8_token", "mxfp8", "int8:tile2x8:fp32", "uint8:token:fp32:asym",
           "int8:group8:fp32:offset"}  # fmt: skip
# whose rows have scales of their own: sums that do not depend on other rows can be had
ALONE = {None, "int8_token", "mxfp8", "uint8:token:fp32:asym", "int8:group8:fp32:offset"}


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops that took their slices one by one."""
    names: list[str] = []
    one_by_one = batching._one_by_one

    def watched(op: Any, name: str, *rest: Any) -> Any:
        names.append(name)
        return one_by_one(op, name, *rest)

    monkeypatch.setattr(batching, "_one_by_one", watched)
    return names


def model(fmt: str | None, *layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(*(layers or (nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))))
    bs.quantize_(made, bs.Recipe("int8_channel", input=fmt))
    return made


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
@pytest.mark.parametrize("fmt", INPUTS)
def test_layers(fmt: str | None, looped: list[str]) -> None:
    alone = fmt in ALONE
    layers = model(fmt) if alone else model(fmt, nn.Linear(32, 16))
    for dim in (0, 1):
        with bs.use(batch_invariant=alone):
            expected = torch.stack([layers(each) for each in X])
            found = vmap(layers, in_dims=dim)(X.movedim(0, dim))
        bound = 0.0 if alone else 1e-5  # torch's sums of rows depend on how many there are
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    assert (looped == []) == (fmt in AT_ONCE), looped


@pytest.mark.some(3)
@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
@pytest.mark.parametrize("fmt", INPUTS[1:])
def test_tensors(fmt: str, looped: list[str]) -> None:
    one = torch.stack([bs.fake_quantize(each, fmt) for each in X])
    assert torch.equal(vmap(lambda x: bs.fake_quantize(x, fmt))(X), one)
    assert torch.equal(vmap(lambda x: bs.quantize(x, fmt).dequantize())(X), one)
    assert ("fake_quantize" not in looped) == (fmt in AT_ONCE)


@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
def test_static_scales(looped: list[str]) -> None:
    for block, scale in (("tensor", torch.tensor(0.1)), ("channel-1", torch.rand(32) + 0.1)):
        layers = nn.Sequential(nn.Linear(32, 16))
        recipe = bs.Recipe("int8_channel", input=f"int8:{block}:fp32")
        bs.quantize_(layers, recipe, input_scales={"0": scale})
        with bs.use(batch_invariant=True):
            assert torch.equal(vmap(layers)(X), torch.stack([layers(each) for each in X]))
            rows = [layers(row) for row in X.flatten(0, 1)]
            assert torch.equal(vmap(vmap(layers))(X).flatten(0, 1), torch.stack(rows))
    assert looped == []


@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
@pytest.mark.parametrize("fmt", [None, "mxint8", "int8", "int8:channel-1:fp32"])
@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3, 2)], ids=str)
def test_convolutions(fmt: str | None, layer: nn.Module, looped: list[str]) -> None:
    layers, x = model(fmt, copy.deepcopy(layer)), torch.randn(3, 2, 4, 5, 5)
    x[1] *= 50
    assert torch.equal(vmap(layers)(x), torch.stack([layers(each) for each in x]))
    assert (looped == []) == (fmt in (None, "mxint8"))


@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
def test_tables(looped: list[str]) -> None:
    table, indices = model(None, nn.Embedding(10, 32)), torch.arange(6).reshape(3, 2)
    assert torch.equal(vmap(table)(indices), table(indices))
    assert looped == []


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
@pytest.mark.parametrize("fmt", ["mxfp4", "int4:group16:fp32:asym", "nvfp4", "book3:channel0:fp32"])
def test_an_ensemble(fmt: str, looped: list[str]) -> None:
    """Batched codes, scales, zero points and further parts, which are a list."""
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)))
        bs.quantize_(models[-1], fmt)
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]
    base = copy.deepcopy(models[0])

    def call(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(base, (p, b), (x,))

    same = vmap(call, (0, 0, None))(parameters, buffers, X[0])
    assert torch.equal(same, torch.stack([each(X[0]) for each in models]))
    own = vmap(call)(parameters, buffers, X)
    assert torch.equal(own, torch.stack([each(x) for each, x in zip(models, X, strict=True)]))
    assert set(looped) == {"linear"}


@pytest.mark.filterwarnings("ignore:.*using the reference, which is slow")
def test_chance_is_torchs_question() -> None:
    stochastic = "int8:token:fp32:stochastic"
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: bs.fake_quantize(x, stochastic))(X)
    seeded = vmap(lambda x: bs.fake_quantize(x, stochastic, seed=7))(X)
    assert torch.equal(seeded, torch.stack([bs.fake_quantize(x, stochastic, seed=7) for x in X]))


# Blocks over the flattened tensor told as blocks within rows: the same elements in one order.


@pytest.mark.parametrize(
    ("fmt", "shape", "block"),
    [
        ("nf4:flat64:fp32", (3, 128), "group64"),
        ("nf4:flat64:fp32", (2, 3, 128), "group64"),
        ("nf4:flat64:fp32", (70,), "group64"),  # a vector is a row, its last block partial
        ("int4:flat64:fp16", (8, 16), "tile4x16"),
        ("int4:flat64:fp16", (7, 16), "tile4x16"),
        ("int4:flat64:(e4m3:tensor:fp32)", (3, 128), "group64"),
        ("int4:flat64:fp32", (2, 4, 16), "flat64"),  # rows of several matrices
        ("int4:flat64:fp32", (3, 96), "flat64"),
        ("int4:flat64:(int8:flat4:fp32)", (3, 128), "flat64"),  # scales are flat, too
        ("int4:flat64@0:fp32", (64, 128), "flat64@0"),
        ("int4:group64:fp32", (3, 128), "group64"),
        ("uint4:flat8:fp32:offset(flat8:fp16)", (3, 16), "flat8"),
        ("int4:flat64:fp32", (3, 0), "flat64"),
    ],
)
def test_which_blocks_are_the_same(fmt: str, shape: tuple[int, ...], block: str) -> None:
    assert str(within_rows(parse(fmt), shape).block) == block


@pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")
@pytest.mark.parametrize("shape", [(3, 128), (2, 3, 64), (70,), (8, 16), (7, 16)])
@pytest.mark.parametrize("fmt", ["nf4:flat64:fp32", "uint4:flat64:fp16:asym"])
def test_the_parts_have_the_same_numbers(fmt: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    q, rows = bs.quantize(x, fmt), within_rows(parse(fmt), shape)
    other = bs.quantize(x, rows)
    assert rows.block.flat == 0 and torch.equal(q.packed, other.packed)
    back = in_blocks_of(other.qparams, parse(fmt), shape)
    for mine, theirs in zip(back, q.qparams, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)
    there = in_blocks_of(q.qparams, rows, shape)
    assert there.scale.shape == other.qparams.scale.shape


def test_all_blocks_of_a_format() -> None:
    fmt = "uint4:group32:(uint6:group8:fp16:offset(tensor:fp16)):offset(token:fp16)"
    assert [str(block) for block in blocks_of(parse(fmt))] == [
        "group32",
        "group8",
        "tensor",
        "token",
    ]
    fmt = "uint4:group32:fp16:offset(uint6:group4:fp16)"
    assert [str(block) for block in blocks_of(parse(fmt))] == ["group32", "group4"]
