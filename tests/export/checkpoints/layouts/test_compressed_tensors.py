# SPDX-License-Identifier: BSD-3-Clause
"""Which group of a configuration a module is of."""

import itertools
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.contents import inspect
from blockscale.export.checkpoints.layouts import LayoutTensors, Weight
from blockscale.export.checkpoints.layouts.compressed_tensors import (
    arguments,
    find_inputs,
    groups_of,
    number,
)
from blockscale.files.metadata import FileError
from tests.export.checkpoints.layouts.compressed_tensors_oracle import (
    E4M3,
    any_bytes,
    any_scales,
    configuration,
    decompressed,
    directory,
    same,
)


def config(**groups):
    keys = ("targets", "weights")
    told = {name: dict(zip(keys, each, strict=True)) for name, each in groups.items()}
    return {"config_groups": told}


def test_names_come_before_classes():
    groups = groups_of(config(
        a=(["Linear"], {"num_bits": 4}), b=(["re:.*down_proj$"], {"num_bits": 8}),
        c=(["model.head"], {"num_bits": 6}),
    ))  # fmt: skip
    assert number(arguments("m.0.down_proj", groups), "num_bits") == [8, 4]
    assert number(arguments("model.head", groups), "num_bits") == [6, 4]
    assert number(arguments("m.0.up_proj", groups), "num_bits") == [4]
    assert number([{"num_bits": True}, {"num_bits": "4"}, {}], "num_bits") == []
    assert groups_of({}) == []


@pytest.mark.parametrize(
    "found", [[], {"a": 3}, {"a": {"targets": 3}}, {"a": {"targets": [], "weights": [1]}}]
)
def test_other_json(found):
    with pytest.raises(FileError, match="of the quantization_config"):
        groups_of({"config_groups": found})


def test_a_pattern_that_takes_for_ever():
    groups = groups_of(config(a=(["re:(a+)+b(?=c)\\1"], {})))
    with pytest.raises(FileError, match="a target of the quantization_config: pattern"):
        arguments("a" * 40, groups)


I32 = torch.int32
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SIZES = [(72, 64, 32), (6, 96, 32), (5, 50, 0), (7, 33, 0), (40, 64, 16)]  # out, in, group


def packed(bits, rows, columns, group, asym=False, dtype=torch.float32):
    """(arguments, what is stored) of any codes, scales and zero points."""
    groups = columns // group if group else 1
    words = any_bytes(rows, math.ceil(columns * bits / 32) * 4).view(I32)
    stored = {"weight_packed": words, "weight_scale": any_scales(rows, groups, dtype=dtype)}
    stored["weight_shape"] = torch.tensor([rows, columns])
    if asym:
        zeros = any_bytes(math.ceil(rows * bits / 32), groups * 4, seed=9).view(I32)
        stored["weight_zero_point"] = zeros
    arguments = {"num_bits": bits, "type": "int", "symmetric": not asym}
    arguments["strategy"] = "group" if group else "channel"
    return arguments | ({"group_size": group} if group else {}), stored


def read(path):
    with bs.checkpoint(path) as model:
        assert model.producer == "compressed-tensors"
        q = model["m.weight"]
        assert str(q.format) == model.stored["m.weight"].format
        return q


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width(bits, tmp_path):
    for sizes, asym, dtype in itertools.product(SIZES, (False, True), FLOATS):
        arguments, stored = packed(bits, *sizes, asym, dtype)
        if asym and stored["weight_zero_point"].shape[0] == 1 < sizes[1] // max(sizes[2], 1):
            continue  # compressed-tensors 0.20 cannot read one row of words itself
        expected = decompressed("pack-quantized", arguments, stored)
        for config in (configuration("pack-quantized", arguments), None):
            q = read(directory(tmp_path / "d", stored, config))
            assert same(q.dequantize(dtype), expected), (sizes, asym, dtype)


def codes_of(words, bits, size):
    """The stream of a row, taken apart as an integer."""
    rows = []
    for row in words.tolist():
        whole = sum((word % 2**32) << 32 * i for i, word in enumerate(row))
        rows.append([whole >> i * bits & 2**bits - 1 for i in range(size)])
    return torch.tensor(rows)


@pytest.mark.parametrize(("bits", "asym"), [(4, False), (3, True), (1, False), (7, False)])
def test_by_hand(bits, asym, tmp_path):
    arguments, stored = packed(bits, 6, 50, 0, asym)
    q = read(directory(tmp_path / "d", stored, configuration("pack-quantized", arguments)))
    codes, middle = codes_of(stored["weight_packed"], bits, 50), 2 ** (bits - 1)
    zeros = torch.full((6, 1), middle)
    if asym:
        zeros = codes_of(stored["weight_zero_point"].mT, bits, 6).mT
    assert same(q.dequantize(), (codes - zeros).float() * stored["weight_scale"])
    assert torch.equal(q.codes.long() + (0 if asym or bits == 1 else middle), codes)


def test_whole_codes_in_each_word(tmp_path):
    """Releases of 2025 left bits of each word unused where a width does not divide 32."""
    codes = torch.randint(0, 8, (4, 320))
    words = torch.zeros(4, 32, dtype=torch.int64)
    for i in range(320):
        words[:, i // 10] |= codes[:, i] << 3 * (i % 10)
    stored = {"weight_packed": words.to(I32), "weight_scale": any_scales(4, 1)}
    stored["weight_shape"] = torch.tensor([4, 320])
    q = read(directory(tmp_path / "d", stored, None))
    assert same(q.dequantize(), (codes - 4).float() * stored["weight_scale"])


def test_a_width_that_shapes_do_not_tell(tmp_path):
    """7 bits of 2025 fill as many words as 8 of today: the configuration decides."""
    arguments, stored = packed(8, 4, 32, 0)
    words = stored["weight_packed"]
    assert read(directory(tmp_path / "d", stored, None)).format.bits == 8
    config = configuration("pack-quantized", arguments | {"num_bits": 7})
    q = read(directory(tmp_path / "d", stored, config))
    codes = torch.stack([words >> 7 * i & 127 for i in range(4)], -1).flatten(-2)
    assert same(q.dequantize(), (codes - 64).float() * stored["weight_scale"])


def test_groups_of_columns_in_another_order(tmp_path):
    arguments, stored = packed(4, 6, 64, 16)
    places = torch.arange(64).remainder(4).to(I32)  # column c is of group c mod 4
    stored["weight_g_idx"] = places
    codes = codes_of(stored["weight_packed"], 4, 64)
    expected = (codes - 8).float() * stored["weight_scale"][:, places.long()]
    path = directory(tmp_path / "d", stored, configuration("pack-quantized", arguments))
    with bs.checkpoint(path) as model:
        order = model.order("m.weight")
        assert torch.equal(model["m.weight"].dequantize(), expected[:, order])
    stored["weight_g_idx"] = torch.arange(64, dtype=I32) // 16
    assert bs.checkpoint(directory(path, stored, None)).order("m.weight") is None
    stored["weight_g_idx"] = torch.full((64,), -1, dtype=I32)
    assert bs.checkpoint(directory(path, stored, None)).order("m.weight") is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight_shape": torch.tensor([6, 640])}, "no width from 1 to 8 bits fills 8 words"),
        ({"weight_shape": torch.tensor([7, 64])}, "its weight_shape does not match"),
        ({"weight_shape": torch.tensor([6, -64])}, "its weight_shape does not match"),
        ({"weight_shape": torch.tensor([6, 2**62])}, "its weight_shape does not match"),
        ({"weight_shape": torch.tensor([6.0, 64.0])}, "its weight_shape does not match"),
        ({"weight_shape": None}, "its weight_shape does not match"),
        ({"weight_scale": torch.ones(6, 5)}, "match no block"),
        ({"weight_scale": torch.ones(6, 4).int()}, "match no block"),
        ({"weight_scale": None}, "match no block"),
        ({"meta": torch.zeros(3).short()}, "marlin-24"),
    ],
)
def test_what_is_no_such_weight(change, reason, tmp_path):
    arguments, stored = packed(4, 6, 64, 16)
    stored = {name: each for name, each in (stored | change).items() if each is not None}
    path = directory(tmp_path / "d", stored, configuration("pack-quantized", arguments))
    with bs.checkpoint(path) as model, pytest.raises(bs.FileError, match=reason):
        model["m.weight"]


def test_zero_points_of_another_size(tmp_path):
    _, stored = packed(4, 72, 64, 16, asym=True)
    stored["weight_zero_point"] = stored["weight_zero_point"][:5]
    path = directory(tmp_path / "d", stored, None)
    with (
        bs.checkpoint(path) as model,
        pytest.raises(
            bs.FileError,
            match=r"its zero points have shape .5, 4., expected that of the scales, .72, 4.",
        ),
    ):
        model["m.weight"]


PACKED = {"weight_packed": torch.zeros(4, 4, dtype=torch.int32), "weight_scale": torch.ones(4, 1),
          "weight_shape": torch.tensor([4, 32])}  # fmt: skip


def test_evidence(tmp_path):
    found = inspect(directory(tmp_path, PACKED, configuration("pack-quantized", {})))
    assert (found.producer, found.evidence) == (
        "compressed-tensors", "config.json: quant_method compressed-tensors",
    )  # fmt: skip
    assert inspect(directory(tmp_path, PACKED, None)).evidence == "it has m.weight_packed"
    [row] = [each for each in found.rows if each.quantized]
    assert (row.name, row.format, row.bits) == ("m.weight", "int4:channel0:fp32:full", 6.0)


def test_sparse_ones_are_refused(tmp_path):
    """By name, with what to do; bitmasks have no packed weight at all."""
    stored = {"weight.compressed": torch.ones(8), "weight.bitmask": torch.zeros(4, 4).byte()}
    tensors = {f"m.{name}": each for name, each in stored.items()}
    directory(tmp_path, {}, configuration("sparse-24-bitmask", {}))
    save_file(tensors, tmp_path / "model.safetensors")
    with bs.checkpoint(tmp_path) as model:
        assert [name for name, each in model.stored.items() if each.unread]
        with pytest.raises(bs.FileError, match="save it in a dense format"):
            model[next(name for name, each in model.stored.items() if each.unread)]


def test_without_its_configuration_plain_codes_are_others(tmp_path):
    stored = {"weight": torch.zeros(4, 8, dtype=torch.int8), "weight_scale": torch.ones(4, 1)}
    assert bs.checkpoint(directory(tmp_path, stored, None)).producer == "scaled codes"
    config = configuration("int-quantized", {"num_bits": 8})
    assert bs.checkpoint(directory(tmp_path, stored, config)).producer == "compressed-tensors"


def test_a_part_that_is_huge_is_not_read_to_look(tmp_path):
    stored = PACKED | {"weight_g_idx": torch.zeros((1 << 20) + 1, dtype=torch.int8)}
    with bs.checkpoint(directory(tmp_path, stored, None)) as model:
        assert model.order("m.weight") is None


POWERS = any_bytes(16, 2, seed=3) % 255
FOUR = {"num_bits": 4, "type": "float", "symmetric": True}
MX = {"type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
PACKED_of_floats = {
    "nvfp4-pack-quantized": (
        FOUR | {"strategy": "tensor_group", "group_size": 16},
        {"weight_packed": any_bytes(16, 32), "weight_scale": any_bytes(16, 4, seed=3).view(E4M3),
         "weight_global_scale": torch.tensor([123.456])},
    ),
    "mxfp4-pack-quantized": (
        MX | {"num_bits": 4}, {"weight_packed": any_bytes(16, 32), "weight_scale": POWERS},
    ),
    "mxfp6-pack-quantized": (
        MX | {"num_bits": 6}, {"weight_packed": any_bytes(16, 48), "weight_scale": POWERS},
    ),
    "mxfp8-quantized": (
        MX | {"num_bits": 8}, {"weight": any_bytes(16, 64).view(E4M3), "weight_scale": POWERS},
    ),
}  # fmt: skip
FORMATS = {
    "nvfp4-pack-quantized": "e2m1:group16:e4m3/inv",
    "mxfp4-pack-quantized": "e2m1:group32:e8m0/given",
    "mxfp6-pack-quantized": "e2m3:group32:e8m0/given",
    "mxfp8-quantized": "e4m3:group32:e8m0/given",
}
BLOCKS = [
    ("tensor", (1,), {}), ("channel", (8, 1), {}), ("group", (8, 4), {"group_size": 16}),
    ("block", (2, 2), {"block_structure": [4, 32]}),
]  # fmt: skip


def read_in_layout(path, layout=None):
    with bs.checkpoint(path) as model:
        assert layout is None or model.stored["m.weight"].kind == layout
        return model["m.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", PACKED_of_floats)
def test_blocks(layout, tmp_path):
    arguments, stored = PACKED_of_floats[layout]
    expected = decompressed(layout, arguments, stored)
    path = directory(tmp_path / "d", stored, configuration(layout, arguments))
    q = read_in_layout(path, layout)
    assert str(q.format) == FORMATS[layout]
    assert same(q.dequantize(expected.dtype), expected)
    if layout.endswith("pack-quantized"):  # told by names and shapes alone
        q = read_in_layout(directory(tmp_path / "d", stored, None), layout)
        assert same(q.dequantize(expected.dtype), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int", "float"])
def test_one_code_an_element(kind, tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        for strategy, shape, more in BLOCKS:
            codes = any_bytes(8, 64).view(torch.int8 if kind == "int" else E4M3)
            stored = {"weight": codes, "weight_scale": any_scales(*shape, dtype=dtype)}
            arguments = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy}
            for zeros in (None, any_bytes(*shape, seed=4).view(torch.int8)):
                if zeros is not None and kind == "int":
                    stored["weight_zero_point"] = zeros
                    arguments["symmetric"] = False
                layout = f"{kind}-quantized"
                expected = decompressed(layout, arguments | more, stored)
                config = configuration(layout, arguments | more)
                q = read_in_layout(directory(tmp_path / "d", stored, config), layout)
                assert same(q.dequantize(dtype), expected), (strategy, dtype)


def test_nvfp4_divides_by_its_global_scale(tmp_path):
    _, stored = PACKED_of_floats["nvfp4-pack-quantized"]
    q = read_in_layout(directory(tmp_path / "d", stored, None))
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    codes = stored["weight_packed"]
    values = table[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
    step = stored["weight_scale"].float() / stored["weight_global_scale"]
    assert same(q.dequantize(), values * step.repeat_interleave(16, 1))
    assert q.qparams.outer.item() == stored["weight_global_scale"].item()


@pytest.mark.parametrize(
    ("layout", "change", "reason"),
    [
        ("nvfp4-pack-quantized", {"weight_global_scale": None}, "of an unknown format"),
        ("nvfp4-pack-quantized", {"weight_scale": torch.ones(15, 4).to(E4M3)}, "match no block"),
        ("mxfp4-pack-quantized", {"weight_scale": None}, "match no block"),
        ("mxfp4-pack-quantized", {"weight_scale": POWERS[:, :0]}, "match no block"),
        ("mxfp8-quantized", {"weight_scale": torch.ones(16, 2).double()}, "match no block"),
    ],
)
def test_what_is_no_weight_of_floats(layout, change, reason, tmp_path):
    arguments, stored = PACKED_of_floats[layout]
    stored = {name: each for name, each in (stored | change).items() if each is not None}
    path = directory(tmp_path / "d", stored, configuration(layout, arguments))
    with bs.checkpoint(path) as model, pytest.raises(bs.FileError, match=reason):
        model["m.weight"]


INPUTS_MARK = pytest.mark.filterwarnings("ignore:.*(transformers|reciprocal|vLLM)")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj = nn.Linear(64, 64), nn.Linear(64, 64)
        self.k_proj.weight.data *= 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x) * self.k_proj(x)


def model() -> nn.Module:
    return nn.Sequential(Attention(), nn.Linear(64, 8)).eval()


BATCHES = [torch.randn(6, 64, generator=torch.Generator().manual_seed(i)) for i in range(2)]


@INPUTS_MARK
@pytest.mark.parametrize(
    ("weight", "given", "read"),
    [
        ("e2m1:group16:e4m3/inv", "e2m1:group16:e4m3/inv/given", "e2m1:group16:e4m3/inv/given"),
        ("nvfp4", "e2m1:group16:e4m3/given", "e2m1:group16:e4m3/inv/given"),
        ("mxfp4", "mxfp4", "e2m1:group32:e8m0/floor"),
        ("mxfp8", "mxfp8", "e4m3:group32:e8m0/floor"),
    ],
)
def test_there_and_back(weight: str, given: str, read: str, tmp_path: Path) -> None:
    ours = model()
    ledger = bs.calibrate(ours, BATCHES, bs.Recipe(weight, given, skip=["1"]), progress=False)
    bs.export.compressed_tensors(ours, tmp_path / "out")
    back = bs.load(model(), tmp_path / "out")
    assert str(back[0].q_proj.input.format) == read
    x = torch.randn(5, 64)
    if weight != "nvfp4":  # whose outer scales are written as reciprocals
        assert torch.equal(back(x), ours(x))
    torch.testing.assert_close(back(x), ours(x), rtol=0.1, atol=0.1)
    if "given" in given:
        outer = float(ours[0].q_proj.input.outer)
        largest = max(float(batch.abs().max()) for batch in BATCHES)
        expected = 2688 / largest if "inv" in given else largest / 2688
        assert outer == pytest.approx(expected, rel=1e-6)
        assert outer == float(ours[0].k_proj.input.outer)
        assert "static outer scale of its input by min_max" in ledger["0.q_proj"].details


@INPUTS_MARK
def test_what_the_directory_says(tmp_path: Path) -> None:
    ours = model()
    recipe = bs.Recipe("nvfp4", input="e2m1:group16:e4m3/given", skip=["1"])
    bs.calibrate(ours, BATCHES, recipe, "percentile", progress=False)
    bs.export.compressed_tensors(ours, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    told = config["config_groups"]["group_0"]["input_activations"]
    assert (told["dynamic"], told["strategy"], told["group_size"]) == ("local", "tensor_group", 16)
    from safetensors.torch import load_file

    divisor = load_file(tmp_path / "out" / "model.safetensors")["0.q_proj.input_global_scale"]
    largest = max(float(batch.abs().max()) for batch in BATCHES)
    assert tuple(divisor.shape) == (1,) and float(divisor) == pytest.approx(448 * 6 / largest)


@INPUTS_MARK
def test_other_inputs_stay_in_float_and_a_warning_says_so(tmp_path: Path) -> None:
    """Static scales are no tensors of the model: such directories could not be loaded at all."""
    ours = model()
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32", skip=["1"])
    bs.calibrate(ours, BATCHES, recipe, progress=False)
    bs.export.compressed_tensors(ours, tmp_path / "out")
    with pytest.warns(UserWarning, match="inputs of 0.k_proj and 1 more"):
        back = bs.load(model(), tmp_path / "out")
    assert back[0].q_proj.input is None


@INPUTS_MARK
def test_weights_alone_have_no_warning(tmp_path: Path) -> None:
    ours = model()
    bs.quantize_(ours, bs.Recipe("int4:group32:fp32", skip=["1"]))
    bs.export.compressed_tensors(ours, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bs.load(model(), tmp_path / "out")


@INPUTS_MARK
@pytest.mark.parametrize(
    "told",
    [
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},  # no scale
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "dynamic": True},
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True},
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "dynamic": False},
        {},
    ],
)
def test_what_is_not_read(told: dict[str, object]) -> None:
    found = LayoutTensors({"a.weight": Weight("any", (2, 32), {})})
    config = {"config_groups": {"g": {"targets": ["Linear"], "input_activations": told or None}}}
    find_inputs(found, {}, config)
    assert not found.inputs and len(found.warnings) == bool(told)
