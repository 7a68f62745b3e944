# SPDX-License-Identifier: BSD-3-Clause
"""bs.quantize_ with a profile: every layer has the producer's codes, and runs on our kernels."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.conversion import convert_checkpoint


def model() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64, bias=False))
    layers.register_parameter("prompt", nn.Parameter(torch.randn(4, 256)))
    return layers


@pytest.mark.parametrize("name", ["gguf.q4_k", "gguf.q8_0", "mlx.affine4", "modelopt.nvfp4"])
def test_layers_have_the_producers_codes(name: str) -> None:
    plain, quantized = model(), model()
    ledger = bs.quantize_(quantized, bs.profile(name))
    for layer in ("0", "2"):
        q = bs.quantize(plain.get_submodule(layer).weight, bs.profile(name))
        assert torch.equal(quantized.get_submodule(layer).qweight.tensor.packed, q.packed)
        assert ledger[layer].weight == str(q.format)
        plain.get_submodule(layer).weight.data = q.dequantize()
    assert "prompt" in ledger["prompt"].reason  # left in float, and said
    x = torch.randn(3, 256)
    torch.testing.assert_close(quantized(x), plain(x), rtol=1e-4, atol=1e-4)


def test_scales_in_the_dtype_of_a_weight() -> None:
    quantized = model()
    quantized[2].bfloat16()
    ledger = bs.quantize_(quantized, bs.profile("quanto.qint8"))
    found = [str(ledger[layer].weight) for layer in ("0", "2")]
    assert found == ["int8:channel0:fp32:full", "int8:channel0:bf16:full"]


def test_tied_weights_are_coded_once() -> None:
    layers = nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 32, bias=False))
    layers[1].weight = layers[0].weight
    bs.quantize_(layers, bs.profile("gguf.q8_0"))
    assert layers[0].qweight is layers[1].qweight


def test_a_weight_that_the_producer_refuses_is_named() -> None:
    layers = model().append(nn.Linear(256, 8)).append(nn.Linear(8, 8))
    before = dict(layers.named_parameters())
    with pytest.raises(ValueError, match=r"^4: profile gguf.q4_k: rows of 256 do not divide"):
        bs.quantize_(layers, bs.profile("gguf.q4_k"))
    assert dict(layers.named_parameters()).keys() == before.keys()
    fmt = bs.profile("gguf.q4_k").format
    weights = {"0": bs.quantize(layers[0].weight, bs.profile("gguf.q4_k"))}
    skip = ["2", "3", "4", "prompt"]
    bs.quantize_(layers, bs.Recipe(fmt, skip=skip), weights=weights)
    assert torch.equal(layers[0].qweight.tensor.packed, weights["0"].packed)


@pytest.mark.parametrize("spelled", [True, False])
def test_rows_that_are_no_whole_blocks(spelled: bool) -> None:
    layers = nn.Sequential(nn.Linear(256, 384), nn.Linear(384, 8))
    before, profile = layers[1].weight.detach().clone(), bs.profile("gguf.q6_k")
    ledger = bs.quantize_(layers, "profile:gguf.q6_k" if spelled else profile)
    assert [str(ledger[name].weight) for name in "01"] == [
        str(bs.profile(f"gguf.{name}").format) for name in ("q6_k", "q8_0")
    ]
    assert not spelled or "rows of 384 do not divide into blocks of 256" in ledger["1"].details
    expected = bs.quantize(before, bs.profile("gguf.q8_0"))
    assert torch.equal(layers[1].qweight.tensor.packed, expected.packed)


def test_nothing_else_makes_codes() -> None:
    with pytest.raises(
        ValueError, match=r"profile gguf.q8_0: it quantizes the original.*and before"
    ):
        bs.quantize_(model(), bs.profile("gguf.q8_0"), weights={})


def test_a_recipe_with_a_profile_makes_the_codes_itself() -> None:
    layers, profile = model(), bs.profile("gguf.q8_0")
    weights = {"0": bs.quantize(layers[0].weight, profile)}
    with pytest.raises(ValueError, match=r"weights\['0'\]: the recipe's profile gguf.q8_0 chooses"):
        bs.quantize_(layers, bs.Recipe(profile, skip=["prompt"]), weights=weights)
    bs.quantize_(layers, bs.Recipe(profile.format, skip=["prompt"]), weights=weights)


def test_tied_weights_by_two_profiles_of_one_format_are_not_shared() -> None:
    layers = nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 32, bias=False))
    layers[1].weight = layers[0].weight
    recipe = bs.Recipe("profile:mlx.mxfp8", rules={"1": bs.profile("mlx.mxfp8").format})
    with pytest.warns(UserWarning, match="cannot share its codes"):
        bs.quantize_(layers, recipe)
    bs.quantize_(layers, bs.Recipe("profile:mlx.mxfp8", rules={"1": "profile:mlx.mxfp8"}))
    assert layers[0].qweight is layers[1].qweight


def test_flows_that_cannot_take_one_name_the_rule() -> None:
    layers, batches = model(), [torch.randn(2, 256)]
    del layers.prompt
    recipe = bs.Recipe("int8", rules={"2": "profile:gguf.q8_0"})
    program = torch.export.export(layers, (batches[0],))
    told = "the recipe: rule '2' has the profile gguf.q8_0: "
    with pytest.raises(ValueError, match=f"{told}gptq chooses or changes weights"):
        bs.calibrate(layers, batches, recipe, weight="gptq", progress=False)
    with pytest.raises(ValueError, match=f"{told}smoothquant chooses or changes weights"):
        bs.calibrate(layers, batches, recipe, transform="smoothquant", progress=False)
    with pytest.raises(ValueError, match=f"{told}mse chooses or changes weights"):
        bs.graph.prepare(program, recipe, weight="mse")
    with pytest.raises(
        ValueError, match=f"{told}profiles are not supported in training: use a plain"
    ):
        bs.graph.prepare(program, recipe, qat=True)
    with pytest.raises(
        ValueError, match=f"{told}profiles are not supported in training: use a plain"
    ):
        bs.prepare_qat(layers, recipe)
    with pytest.raises(ValueError, match=f"{told}torchao's prepared graph"):
        bs.graph.pt2e_quantizer(recipe)
    with pytest.raises(ValueError, match=f"{told}requantizing needs a plain"):
        convert_checkpoint("in", "out", "gguf", requantize=recipe)
    assert type(layers[2]) is nn.Linear


@pytest.mark.slow
def test_calibrated_and_in_a_graph() -> None:
    layers, batches = model(), [torch.randn(2, 256)]
    del layers.prompt
    recipe = bs.Recipe("profile:gguf.q8_0", input="int8")
    wanted = bs.quantize(layers[2].weight, bs.profile("gguf.q8_0")).dequantize()
    prepared = bs.graph.prepare(torch.export.export(layers, (batches[0],)), recipe)
    bs.calibrate(prepared, batches, progress=False)
    converted = bs.graph.convert(prepared)
    ledger = bs.calibrate(layers, batches, recipe, progress=False)
    assert torch.equal(layers[2].qweight.tensor.dequantize(), wanted)
    for told in (ledger, bs.graph.ledger(converted)):
        assert told["2"].details == "weight by profile gguf.q8_0 0.19.0, static input by mse"
    torch.testing.assert_close(converted(*batches), layers(*batches))
