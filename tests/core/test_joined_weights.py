# SPDX-License-Identifier: BSD-3-Clause
"""Which layers servers join, which weights can share an outer scale, rows that stand for them."""

import pytest
import torch

import blockscale as bs
from blockscale.core import joined_weights, reference
from blockscale.core.format import Format
from blockscale.core.joined_weights import of_matrix, of_stack
from blockscale.core.parse import parse

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj"]
ATTENTION = [f"model.layers.{i}.self_attn.{name}" for i in (0, 1) for name in LAYERS]


def last(groups: list[tuple[str, ...]]) -> list[list[str]]:
    return [[name.rpartition(".")[2] for name in group] for group in groups]


def test_known_ones_are_found_by_their_names_and_their_parent() -> None:
    mlp = [
        "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.down_proj",
        "model.layers.0.mlp.gate_proj",
    ]
    expert = ["x.experts.0.w1", "x.experts.0.w2", "x.experts.0.w3", "x.experts.1.w3"]
    found = joined_weights.groups([*ATTENTION, *mlp, *expert])
    qkv = ["q_proj", "k_proj", "v_proj"]
    assert last(found) == [qkv, qkv, ["up_proj", "gate_proj"], ["w1", "w3"]]
    assert found[1][0] == "model.layers.1.self_attn.q_proj"
    assert joined_weights.groups(["q_proj", "k_proj"]) == [
        ("q_proj", "k_proj")
    ]  # of the model itself
    assert last(joined_weights.groups(["a.q_proj", "a.gate_proj", "a.k_proj"])) == [
        ["q_proj", "gate_proj", "k_proj"]  # attention that has a gate
    ]
    assert joined_weights.groups([*ATTENTION, "a.q", "a.k", "a.gate_proj"], fused=False) == []


def test_patterns_come_before_known_names() -> None:
    names = [*ATTENTION, "h.0.attn.q", "h.0.attn.k", "h.0.attn.out", "h.1.attn.q"]
    assert last(joined_weights.groups(names, ("h.*.attn.[qk]",)))[2:] == [["q", "k"]]
    every = joined_weights.groups(ATTENTION, ("re:.*\\.[kv]_proj",))
    assert last(every) == [["k_proj", "v_proj"]] * 2  # q_proj is left alone
    assert last(joined_weights.groups(["h.0.attn.q", "h.0.attn.out"], ("h.*.attn",))) == [
        ["q", "out"]
    ]


def test_what_a_recipe_says() -> None:
    assert bs.Recipe("nvfp4").fused is True and "fused" not in bs.Recipe("nvfp4").to_dict()
    off, more = bs.Recipe("nvfp4", fused=False), bs.Recipe("nvfp4", fused=["*.[qk]"])
    assert off.to_dict()["fused"] is False and more.to_dict()["fused"] == ["*.[qk]"]
    for recipe in (off, more):
        assert bs.Recipe.from_json(recipe.to_json()) == recipe != bs.Recipe("nvfp4")
        assert hash(bs.Recipe.read(recipe.to_dict())) == hash(recipe)
    assert bs.Recipe("nvfp4", fused=[]) == bs.Recipe("nvfp4")
    assert more.unmatched(["a.v"]) == ("*.[qk]",) and more.unmatched(["a.q"]) == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("*.qkv", r"list of patterns: write \['\*.qkv'\]"),
        (3, "True, False or a list of patterns"),
        ([3], "True, False or a list of patterns"),
        (["op:add"], "names ops, and only layers"),
        (["re:("], "re:"),
    ],
)
def test_mistakes(given: object, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        bs.Recipe("nvfp4", fused=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fmt", "shape", "parts", "why"),
    [
        ("nvfp4", (64, 32), 1, ""),
        ("e2m1:group16:e4m3/inv", (64, 32), 1, ""),
        ("e2m1:group16:(e4m3:block*x*:fp32)", (3, 64, 32), 1, ""),
        ("e2m1:group16:(e4m3:block32x*:fp32)", (3, 64, 32), 2, ""),
        ("uint4:group8:(uint8:tensor:fp16):asym", (64, 32), 1, ""),
        ("mxfp4", (64, 32), 1, "no outer scale"),
        ("int8:tensor:fp32", (64, 32), 1, "no outer scale"),
        ("e2m1:group16:(e4m3:token:fp32)", (64, 32), 1, "not one for all rows"),
        ("e2m1:tile48x16:e4m3", (64, 32), 1, "not one for all rows"),
        ("book4:group16:e4m3", (64, 32), 1, "its table is learned"),
        ("nf4:flat64:(int8:flat256:fp32:full)", (64, 32), 1, "not those of a matrix"),
        ("nvfp4", (64,), 1, "not those of a matrix"),
    ],
)
def test_which_weights_can_share(fmt: str, shape: tuple[int, ...], parts: int, why: str) -> None:
    try:
        format_ = parse(fmt)
    except ValueError:
        pytest.skip("no such format here")
    told = joined_weights.shares(format_, shape, parts)
    assert bool(told) == bool(why) and why in told


@pytest.mark.parametrize(
    "fmt",
    [
        "nvfp4", "e2m1:group16:e4m3/inv", "int4:group8:(uint8:tensor:fp32):asym",
        "ternary:group8:e4m3", "binary:token:e4m3", "e4m3:tile4x8:(e4m3:tensor:bf16)",
        "uint4:group8:(uint8:tensor:fp16):asym", "uint4:group8:(e4m3:tensor:fp32):offset(fp16)",
        "e2m1:group16:(e4m3:block*x1:fp32)",
    ],
)  # fmt: skip
def test_rows_that_stand_for_others(fmt: str) -> None:
    """Below a weight they let it choose the outer scale of all, to the bit."""
    torch.manual_seed(0)
    weights = [torch.randn(8, 32) * size for size in (1.0, 30.0, 0.01)]
    form = parse(fmt)
    tops = [joined_weights.top_of(reference.ranges(w, form), form) for w in weights]
    top = torch.stack(tops).amax(0)
    whole = reference.choose_qparams(torch.cat(weights), form).outer
    assert whole is not None
    for weight in weights:
        rows = joined_weights.standing_rows(top, form, 32)
        chosen = reference.choose_qparams(torch.cat([weight, rows]), form)
        assert torch.equal(chosen.outer, whole)
        assert torch.equal(joined_weights.outer_of(top, form, weight.shape), whole)
        beside = reference.qparams_from_range(*reference.ranges(weight, form), form, whole)
        assert torch.equal(beside.scale, chosen.scale[: len(beside.scale)])


def test_who_shares_with_whom() -> None:
    names = ["a.q_proj", "a.k_proj", "a.v_proj", "b.w1", "b.w3"]
    kinds = {"a.q_proj": "nvfp4", "a.k_proj": "nvfp4", "a.v_proj": "other", "b.w1": "nvfp4"}
    sharing, alone = joined_weights.partners(names, kinds, True)
    assert sharing == dict.fromkeys(("a.q_proj", "a.k_proj"), ("a.q_proj", "a.k_proj"))
    assert (
        alone["a.q_proj"] == "outer scale not shared with v_proj: not quantized in the same format"
    )
    assert alone["a.v_proj"].startswith("outer scale not shared with q_proj, k_proj")
    assert alone["b.w1"].startswith("outer scale not shared with w3") and "b.w3" not in alone
    assert (
        joined_weights.shared_scale_note("a.q_proj", sharing["a.q_proj"])
        == "outer scale shared with k_proj"
    )


# A stack's format gives each matrix the bits that it has by itself.

SPELLINGS = [
    "int8:tensor:fp32",
    "int8_channel",
    "int8:channel1:fp32",
    "int8:channel-1:fp16:asym",
    "int8:token:fp32",
    "int4:group32:fp32",
    "int4:group16:fp32:asym",
    "int4:group3@0:bf16",
    "uint4:tile3x16:fp32:asym",
    "int8:tile4x5:fp32",
    "int8:block*x16:fp32",
    "int8:block6x*:fp32",
    "mxfp4",
    "nvfp4",
    "nf4:group64:fp32",
    "nf4:flat64:fp32",
    "nf4:group64:(int8:group2:fp32)",
    "uint4:group16:(uint8:tensor:fp16):offset(uint8:tensor:fp16)",
    "int8:tensor:(e4m3:tensor:fp32)",
    "ternary",
    "binary",
    "e2m1:group16:e4m3/inv",
    "int8:tensor:fp32:offset(fp32)",
]


def stored(x: torch.Tensor, fmt: Format) -> list[torch.Tensor]:
    q = bs.quantize(x, fmt)
    return [q.packed, *(part for part in q.qparams if part is not None)]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_matrix_is_as_if_alone(spelling: str, parts: int) -> None:
    """Packed codes and every number beside them, matrix by matrix, from parts quantized alone."""
    torch.manual_seed(1)
    rows, columns = 12, 64
    x = torch.randn(3, rows, columns) * torch.tensor([1.0, 37.0, 1e-3]).reshape(3, 1, 1)
    x[:, : rows // 2] *= 5
    x[1, 2] = 0
    fmt = parse(spelling)
    if spelling == "int8:tile4x5:fp32" and parts == 2:
        with pytest.raises(
            ValueError,
            match="int8:tile4x5:fp32: 6 rows of a part of the matrix cannot be divided into",
        ):
            of_stack(fmt, x.shape, parts)
        return
    stack = of_stack(fmt, x.shape, parts)
    assert parse(str(stack)) == stack
    got = stored(x, stack)
    alone = [stored(half, fmt) for matrix in x for half in matrix.chunk(parts)]
    for mine, *others in zip(got, *alone, strict=True):
        assert torch.equal(mine.reshape(-1), torch.cat([each.reshape(-1) for each in others]))
    values = bs.quantize(x, stack).dequantize()
    one_by_one = [bs.quantize(half, fmt).dequantize() for m in x for half in m.chunk(parts)]
    assert torch.equal(values, torch.stack(one_by_one).reshape(x.shape))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_matrix_of_the_stack_has_its_usual_format(spelling: str) -> None:
    """By a name that means the same blocks of a matrix [12, 64]; `tensor` comes back as it was."""
    fmt = parse(spelling)
    back = of_matrix(of_stack(fmt, (3, 12, 64)), (3, 12, 64))
    assert back.stored((12, 64)) == fmt.stored((12, 64))
    if not any(odd in spelling for odd in ("token", "channel-1", "channel1", "@0", "block*")):
        assert back == fmt


def test_a_matrix_keeps_its_format_and_stacks_of_stacks_have_one() -> None:
    """Two dimensions and one part change nothing; more leading dimensions get numbers each."""
    fmt = parse("nvfp4")
    assert of_stack(fmt, (12, 64)) is fmt
    x = torch.randn(2, 3, 4, 32) * torch.arange(1.0, 7).reshape(2, 3, 1, 1)
    got = bs.quantize(x, of_stack(fmt, x.shape))
    assert got.qparams.outer is not None and got.qparams.outer.shape == (2, 3, 1, 1)
    for i in range(2):
        for j in range(3):
            assert torch.equal(got.packed[i, j], bs.quantize(x[i, j], fmt).packed)


@pytest.mark.parametrize(
    ("spelling", "shape", "parts", "says"),
    [
        ("book4:group32:fp32", (2, 4, 32), 1, "one table for a tensor"),
        ("int8:flat48:fp32", (2, 4, 32), 1, "reach from one of the stacked matrices"),
        ("int8:flat32@0:fp32", (2, 4, 32), 1, "use 'group32'"),
        ("int8:tensor:fp32", (2, 5, 32), 2, "5 rows cannot be divided into 2 equal parts"),
        ("int8:tensor:fp32", (32,), 1, "at least 2 dimensions"),
        ("int8:block2x2x2:fp32", (2, 4, 32), 1, "needs dimension -3"),
    ],
)
def test_what_no_stack_can_have(
    spelling: str, shape: tuple[int, ...], parts: int, says: str
) -> None:
    """An error that says why, not numbers shared between matrices."""
    with pytest.raises(ValueError, match=says):
        of_stack(parse(spelling), shape, parts)
