# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as compressed-tensors' own decompressors read them: the same values to the bit."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_compressed_tensors.schemes import UnsupportedError, scheme
from blockscale.export.to_compressed_tensors.tensors import (
    layer_tensors,
    reciprocal,
    weight_tensors,
    words,
    zero_points,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


def layer(fmt, weight=None, given=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 96, bias=False))
    if weight is not None:
        model[0].weight.data = weight
    if given is None:
        bs.quantize_(model, fmt)
    else:
        batches = [torch.randn(8, 128)]
        bs.calibrate(model, batches, bs.Recipe(fmt, given), "min_max", progress=False)
    return model[0]


def hard():
    """Rows of zeros, subnormals, ties, constants and outliers, in both signs."""
    torch.manual_seed(1)
    w = torch.randn(96, 128)
    w[0] = 0
    w[1] = -0.0
    w[2] *= 2.0**-20
    w[3, 0] = 1000
    w[4] = torch.arange(128) - 64.5
    w[5] = w[5].abs()
    w[6] = 2.5
    return w


FORMATS = (
    *(f"int{b}:group32:fp32" for b in range(2, 9)),
    *(f"uint{b}:group32:fp32:asym" for b in range(2, 9)),
    *(
        "int4:channel0:fp16",
        "int4:group64:bf16",
        "int8:tensor:pow2/nearest",
        "int4:group32:fp32:full",
    ),
    *("int8:channel0:fp32:asym", "uint8:tensor:fp32:asym", "uint4:channel0:fp32", "int8_channel"),
    *("fp8", "e4m3:channel0:fp32", "e4m3:tile32x32:fp32", "e4m3:tile64x64:bf16"),
    *("mxfp4", "mxfp6_e2m3", "mxfp8", "e2m1:group16:e4m3/inv", "int4:group32:fp32:signed"),
)


def decompressed(tensors, found):
    """What the library makes of a layer's tensors, by its own code."""
    pytest.importorskip("compressed_tensors", reason="pip install 'blockscale[compressed-tensors]'")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    reader = BaseCompressor.get_value_from_registry(found.layout)
    weights = QuantizationArgs(**found.weights)
    inputs = None if found.inputs is None else QuantizationArgs(**found.inputs)
    theirs = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    return reader.decompress(dict(tensors), theirs)["weight"]


@pytest.mark.some(4)
@pytest.mark.parametrize("weight", [None, hard()], ids=["normal", "hard"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_their_values_are_ours(fmt, weight):
    linear = layer(fmt, weight)
    found = scheme(linear.weight.format, None, static=False)
    tensors, told = layer_tensors(linear, found)
    theirs = decompressed(tensors, found)
    assert not told
    assert torch.equal(theirs, linear.weight.dequantize().to(theirs.dtype))


def test_codes_for_static_inputs_are_stored_plain():
    linear = layer("int8_channel", given="uint8")
    found = scheme(linear.weight.format, linear.input.format, static=True)
    tensors, _ = layer_tensors(linear, found)
    assert found.layout == "int-quantized"
    assert torch.equal(tensors["weight"], linear.weight.tensor.codes)
    assert torch.equal(tensors["input_scale"], linear.input.scale.reshape(1))
    ours, theirs = linear.input.zero_point.reshape(1), tensors["input_zero_point"]
    assert theirs.dtype == torch.int8 and int(theirs) == int(ours) - 128


def test_any_bits_of_an_nvfp4_weight():
    """Random codes and scales: not what an encoder would write."""
    torch.manual_seed(2)
    linear = layer("e2m1:group16:e4m3/inv")
    codes = torch.randint(0, 256, linear.weight.codes.shape, dtype=torch.uint8)
    scales = torch.randint(0, 127, linear.weight.scale.shape, dtype=torch.uint8)
    linear.weight.codes.copy_(codes)
    linear.weight.scale.copy_(scales)
    found = scheme(linear.weight.format, None, static=False)
    theirs = decompressed(layer_tensors(linear, found)[0], found)
    assert torch.equal(theirs, linear.weight.dequantize().to(theirs.dtype))


def test_plain_nvfp4_says_when_a_step_is_not_exact():
    linear = layer("nvfp4")
    found = scheme(linear.weight.format, None, static=False)
    told, exact = [], []
    for factor in (1.0, 3.0, 0.7, 1.3, 5.1, 9.7):
        linear.qweight.outer.fill_(factor / 2688)
        tensors, note = weight_tensors(linear.weight, found)
        steps = tensors["weight_scale"].float()
        ours = steps * linear.qweight.outer
        equal = torch.equal(steps / tensors["weight_global_scale"], ours)
        told.append(bool(note))
        exact.append(equal)
        torch.testing.assert_close(
            steps / tensors["weight_global_scale"], ours, rtol=2**-22, atol=0
        )
    assert told == [not each for each in exact]


def test_reciprocals():
    scales = torch.arange(1, 126, dtype=torch.uint8)
    assert reciprocal(scales, torch.tensor([[0.25]])) == (4.0, True)
    found, exact = reciprocal(scales, torch.tensor([[1 / 3]]))
    assert not exact and abs(float(found) - 3) < 1e-6


@pytest.mark.parametrize("bits", range(1, 9))
def test_words_are_theirs(bits):
    pytest.importorskip("compressed_tensors", reason="pip install 'blockscale[compressed-tensors]'")
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    codes = torch.randint(0, 2**bits, (3, 45), dtype=torch.int32)
    theirs = pack_to_int32((codes - 2 ** (bits - 1)).to(torch.int8), bits)
    assert torch.equal(words(codes, bits), theirs)


def test_zero_points_that_do_not_fit():
    scale = torch.ones(2, 1)
    assert zero_points(torch.tensor([[0], [15]]), scale, 4, False).tolist() == [[-8], [7]]
    with pytest.raises(UnsupportedError, match="zero points do not fit in 4 bits"):
        zero_points(torch.tensor([[0], [16]]), scale, 4, False)


def test_partial_groups_are_refused():
    model = nn.Sequential(nn.Linear(100, 8))
    bs.quantize_(model, "int4:group32:fp32")
    weight = model[0].weight
    with pytest.raises(
        UnsupportedError, match="100 inputs are not a multiple of its group size, 32"
    ):
        weight_tensors(weight, scheme(weight.format, None, static=False))
