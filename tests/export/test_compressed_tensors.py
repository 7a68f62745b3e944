# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors' directories: loaded by transformers, with the same weights."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.layers.store import all_held

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
IDS = torch.arange(24).reshape(2, 12)
EXTENSION = {"program": "pt2", "onnx": "onnx"}
FLOAT = ["lm_head", "model.embed_tokens"]


def llama(dtype=torch.float32, **settings):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes, **heads, **settings)
    return LlamaForCausalLM(config).to(dtype).eval()


def loaded(path, dtype, **settings):
    pytest.importorskip("compressed_tensors", reason="pip install 'blockscale[compressed-tensors]'")
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    if settings:
        settings = {"quantization_config": CompressedTensorsConfig(**settings)}
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **settings).eval()


def check(path, recipe, dtype=torch.float32, **settings):
    """Written, loaded by transformers and run: weights to the bit, and what the model says."""
    model = llama(dtype, tie_word_embeddings=True)
    if recipe.input:
        batches = [{"input_ids": IDS}]
        bs.calibrate(model, batches, recipe, "min_max", progress=False)
    else:
        bs.quantize_(model, recipe)
    bs.export.compressed_tensors(model, path)
    theirs = loaded(path, dtype, **settings)
    with torch.no_grad(), bs.use("reference"):
        ours, y = model(IDS).logits.float(), theirs(IDS).logits.float()
    for name, layer in model.named_modules():
        if isinstance(layer, type(model.model.layers[0].mlp.up_proj)):
            weight = theirs.get_submodule(name).weight
            assert torch.equal(weight, layer.weight.dequantize()), name
    assert torch.nn.functional.cosine_similarity(ours, y, -1).min() > 0.995
    return y, ours


@pytest.mark.slow
def test_int4_is_what_transformers_loads(tmp_path):
    y, ours = check(tmp_path / "out", bs.Recipe("int4:group32:fp32", skip=FLOAT))
    torch.testing.assert_close(y, ours)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "given"),
    [
        ("int8_channel", None),
        ("int8_channel", "int8_token"),
        ("int8_channel", "uint8"),
        ("int3:group32:fp32", None),
        ("fp8", None),
        ("fp8", "fp8"),
        ("e4m3:channel0:fp32", "e4m3:token:fp32"),
        ("e4m3:tile64x64:fp32", "e4m3:group128:fp32"),
    ],
)
def test_every_layout_in_float32(tmp_path, weight, given):
    check(tmp_path / "out", bs.Recipe(weight, given, skip=FLOAT))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "given"),
    [
        ("nvfp4", None),
        ("e2m1:group16:e4m3/inv", None),
        ("mxfp4", None),
        ("mxfp4", "mxfp8"),
        ("mxfp6_e2m3", None),
        ("mxfp8", "mxfp8"),
        ("int4:group128:bf16", None),
    ],
)
def test_every_layout_in_bfloat16(tmp_path, weight, given):
    check(tmp_path / "out", bs.Recipe(weight, given, skip=FLOAT), torch.bfloat16)


@pytest.mark.slow
def test_zero_points_are_loaded_as_floats(tmp_path):
    """transformers' packed route expects another shape of them (compressed-tensors 0.20)."""
    check(tmp_path / "out", bs.Recipe("uint4", skip=FLOAT), dequantize=True)


def mixed():
    model = llama(tie_word_embeddings=False)
    rules = {"*.mlp.*": "int8_channel", "*.self_attn.o_proj": {"weight": None}}
    bs.quantize_(model, bs.Recipe("int4:group32:fp32", rules=rules, skip=FLOAT))
    return model


def test_groups_of_layers(tmp_path):
    """Two formats are two groups, by name; what is in float is named, too."""
    model = mixed()
    bs.export.compressed_tensors(model, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    found = config["quantization_config"]
    groups = {g["weights"]["num_bits"]: g["targets"] for g in found["config_groups"].values()}
    assert groups[8] == [f"model.layers.0.mlp.{n}_proj" for n in ("gate", "up", "down")]
    assert len(groups[4]) == 3 and found["format"] == "pack-quantized"
    assert found["ignore"] == ["model.layers.0.self_attn.o_proj", "lm_head"]
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "float32"
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["lm_head.weight"].dtype == torch.float32
    assert not [n for n in tensors if n.endswith((".codes", ".scale"))]


@pytest.mark.slow
def test_two_formats_in_one_model(tmp_path):
    model = mixed()
    bs.export.compressed_tensors(model, tmp_path / "out")
    theirs = loaded(tmp_path / "out", torch.float32)
    with torch.no_grad(), bs.use("reference"):
        torch.testing.assert_close(theirs(IDS).logits, model(IDS).logits)


def test_biases_and_a_model_without_config(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    recipe = bs.Recipe("int8_channel", "int8", bias="int32")
    bs.calibrate(model, [torch.randn(4, 64)], recipe, "min_max", progress=False)
    bs.export.compressed_tensors(model, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(tensors["0.bias"], model[0].bias.dequantize())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert list(config) == ["quantization_config"]


def test_what_has_no_place_is_named_before_anything_is_written(tmp_path):
    model = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 100), nn.Linear(100, 64))
    bs.quantize_(model, bs.Recipe("int4:group32:fp32", rules={"1": "nf4"}))
    with pytest.raises(ValueError, match=r"nn\.Linear, found QEmbedding") as error:
        bs.export.compressed_tensors(model, tmp_path / "out")
    assert "\n  1: nf4:" in str(error.value) and "skip" in str(error.value)
    model[0], model[1] = nn.Embedding(16, 64), nn.Linear(64, 100)
    with pytest.raises(ValueError, match="\n  2: 100 inputs are not a multiple"):
        bs.export.compressed_tensors(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


MOE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
       "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts_per_tok": 2,
       "use_cache": False}  # fmt: skip


def mixture(kind):
    import transformers

    torch.manual_seed(0)
    own = {"num_experts": 4, "moe_intermediate_size": 64, "head_dim": 16}
    own = own if kind == "Qwen3Moe" else {"num_local_experts": 4}
    config = getattr(transformers, f"{kind}Config")(**MOE, **own)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Qwen3Moe", "Mixtral"])
def test_experts_are_written_one_by_one(tmp_path, kind):
    """And loaded by transformers with the same weights; the router stays in float."""
    model = mixture(kind)
    rules = {} if kind == "Mixtral" else {"*self_attn*": "int8_channel"}
    bs.quantize_(model, bs.Recipe("int4:group32:fp32", rules=rules, skip=FLOAT))
    bs.export.compressed_tensors(model, tmp_path / "out")
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert len([name for name in names if name.endswith("weight_packed")]) == 4 + 4 * 3
    assert not [name for name in names if "_extra_state" in name or name.endswith(".codes")]
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.mlp.gate" in config["ignore"] and "lm_head" in config["ignore"]
    with bs.checkpoint(tmp_path / "out") as ours:
        formats = {str(each.format) for name, each in ours.stored.items() if ".experts." in name}
    assert {each.partition(":")[0] for each in formats} == {"int4"}
    theirs = loaded(tmp_path / "out", torch.float32)
    for name, weight in all_held(model):
        assert torch.equal(theirs.get_parameter(name), weight.dequantize()), name
    with torch.no_grad(), bs.use("reference"):
        torch.testing.assert_close(theirs(IDS).logits, model(IDS).logits, atol=1e-5, rtol=1e-5)


def test_experts_that_transformers_reads_wrongly(tmp_path):
    model = mixture("Mixtral")
    bs.quantize_(model, bs.Recipe("uint4:group32:fp32:asym", skip=[*FLOAT, "*self_attn*"]))
    with pytest.warns(
        UserWarning, match=r"experts\.\d\.w\d and 11 more: .* ignores the zero points"
    ):
        bs.export.compressed_tensors(model, tmp_path / "out")


class Kinds(nn.Module):
    """A parameter by itself, a bag of rows, a weight that is computed at each call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(64, 64))
        self.bag = nn.EmbeddingBag(64, 64)
        self.attention = nn.MultiheadAttention(64, 4)
        self.computed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
        self.plain = nn.Linear(64, 64)

    def forward(self, ids):
        x = self.plain(self.bag(ids) @ self.matrix)
        return self.computed(self.attention(x, x, x, need_weights=False)[0])


def test_every_quantized_parameter_has_a_place_or_is_named(tmp_path):
    model = Kinds()
    ledger = bs.quantize_(model, "int4:group32:fp32")
    done = {entry.name for entry in ledger.quantized}
    with pytest.raises(ValueError, match="cannot store these layers") as error:
        bs.export.compressed_tensors(model, tmp_path / "out")
    lines = [line.strip() for line in str(error.value).splitlines() if line.startswith("  ")]
    refused = {line.partition(": ")[0]: line for line in lines}
    assert "a parameter of Kinds" in refused["matrix"]
    assert "QEmbeddingBag" in refused["bag"]
    assert "a parameter of MultiheadAttention" in refused["attention.in_proj_weight"]
    assert not list(tmp_path.iterdir())
    bs.quantize_(model := Kinds(), bs.Recipe("int4:group32:fp32", skip=[*refused, "attention*"]))
    bs.export.compressed_tensors(model, tmp_path / "out")
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    packed = {name.removesuffix(".weight_packed") for name in names if name.endswith("_packed")}
    assert packed == done - {name for name in done if name in refused or "attention" in name}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["program", pytest.param("onnx", marks=pytest.mark.slow)])
def test_graphs_hold_the_codes_of_every_parameter(target, tmp_path):
    """What a directory of layers has no place for, a graph has: its ops read any parameter."""
    model = Kinds().eval()
    ledger = bs.quantize_(model, "int4:group32:fp32")
    names = {entry.name for entry in ledger.quantized}
    assert {"matrix", "bag", "attention.in_proj_weight", "computed"} <= names
    getattr(bs.export, target)(model.eval(), tmp_path / "model", torch.arange(32).reshape(4, 8))
    found = bs.export.audit((tmp_path / "model").rename(tmp_path / f"model.{EXTENSION[target]}"))
    assert {entry.name for entry in found.quantized} == names


def test_other_models(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(TypeError, match="expected a model, found int"):
        bs.export.compressed_tensors(3, out)
    with pytest.raises(ValueError, match="nothing in the model is quantized"):
        bs.export.compressed_tensors(nn.Sequential(nn.Linear(4, 4)), out)
    model = nn.Sequential(nn.Linear(4, 4))
    bs.prepare_qat(model, "int8_channel")
    with pytest.raises(ValueError, match="0 is a layer for training"):
        bs.export.compressed_tensors(model, out)
    single = nn.Sequential(nn.Linear(4, 4))
    bs.quantize_(single, "int8_channel")
    with pytest.raises(ValueError, match="wrap it in a model"):
        bs.export.compressed_tensors(single[0], out)
    with pytest.raises(ValueError, match="holds no data"):
        bs.export.compressed_tensors(single.to("meta"), out)
    rotated = nn.Sequential(nn.Linear(64, 64))
    recipe = bs.Recipe("int8_channel", output="int8_token")
    bs.quantize_(rotated, recipe)
    with pytest.raises(ValueError, match="0: vLLM does not support quantized outputs"):
        bs.export.compressed_tensors(rotated, out)


def test_it_warns_of_what_readers_need(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 64))
    bs.quantize_(model, "mxfp4")
    with pytest.warns(UserWarning, match="0 and 1 more: transformers decodes .* bfloat16"):
        bs.export.compressed_tensors(model, tmp_path / "a")
    model = nn.Sequential(nn.Linear(64, 32))
    bs.quantize_(model, "uint4:group32:fp32:asym")
    with pytest.warns(UserWarning, match="packed zero points only with"):
        bs.export.compressed_tensors(model, tmp_path / "b")
