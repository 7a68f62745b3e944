# SPDX-License-Identifier: BSD-3-Clause
"""Formats as quantization arguments, and reasons for those that have none."""

import pytest

import blockscale as bs
from blockscale.export.to_compressed_tensors.schemes import UnsupportedError, input_note, scheme


@pytest.mark.parametrize(
    ("weight", "given", "static", "layout", "strategies"),
    [
        ("int4", None, False, "pack-quantized", ("group", None)),
        ("int8_channel", None, False, "pack-quantized", ("channel", None)),
        ("int8_channel", "int8_token", False, "int-quantized", ("channel", "token")),
        ("int4", "int8_token", False, "pack-quantized", ("group", "token")),
        ("int8", "uint8", True, "int-quantized", ("tensor", "tensor")),
        ("e4m3:channel0:fp32", "e4m3:token:fp32", False, "float-quantized", ("channel", "token")),
        ("e4m3:tile64x64:fp32", "e4m3:group64:fp32", False, "float-quantized", ("block", "group")),
        ("fp8", None, False, "naive-quantized", ("tensor", None)),
        ("nvfp4", None, False, "nvfp4-pack-quantized", ("tensor_group", None)),
        ("mxfp4", "mxfp8", False, "mxfp4-pack-quantized", ("group", "group")),
        ("mxfp8", "mxfp8", False, "mxfp8-quantized", ("group", "group")),
    ],
)  # fmt: skip
def test_layouts(weight, given, static, layout, strategies):
    found = scheme(bs.parse(weight), bs.parse(given) if given else None, static)
    inputs = found.inputs
    assert found.layout == layout
    assert (found.weights["strategy"], inputs and inputs["strategy"]) == strategies
    if inputs:
        assert inputs["dynamic"] is not static


@pytest.mark.parametrize(
    ("weight", "given", "reason"),
    [
        ("int16", None, "integers must have 1 to 8 bits, got 16"),
        ("fp8_e5m2", None, "unknown element of compressed-tensors; choose from"),
        ("nf4", None, "unknown element of compressed-tensors; choose from"),
        ("mxfp6", None, "unknown element of compressed-tensors; choose from"),
        ("bfp8", None, "scales of this element must be floats, got e8m0/floor"),
        ("mxint8", None, "scales of this element must be floats"),
        ("int8:channel1:fp32", None, "must be tensor, channel0, groupN or tileRxC"),
        ("int4:tile32x32:fp32", None, "tiles need elements of 8 bits"),
        ("uint4:group32:fp32:offset", None, "offsets and"),
        ("e2m1:group16:(e4m3:tensor:fp16)", None, "e4m3 with one float32"),
        ("int8_channel", "nvfp4", "outer scale must be static"),
        ("int8_channel", "mxfp4", "inputs of 4 bits need weights of the same format"),
        ("nvfp4", "mxfp4", "inputs of 4 bits need weights of the same format"),
        ("mxfp4", "nf4:token:fp32", "inputs must be integers of at most 8 bits, e4m3, nvfp4 with"),
        ("int8_channel", "int8:channel-1:fp32", "must be tensor, token or groupN"),
    ],
)
def test_what_has_no_place(weight, given, reason):
    with pytest.raises(UnsupportedError, match=reason):
        scheme(bs.parse(weight), bs.parse(given) if given else None, static=False)


def test_the_library_takes_every_description():
    pytest.importorskip("compressed_tensors", reason="pip install 'blockscale[compressed-tensors]'")
    from compressed_tensors.quantization import QuantizationArgs

    for weight in ("int4", "uint4", "nvfp4", "mxfp4", "mxfp8", "fp8", "e4m3:tile128x128:fp32"):
        found = scheme(bs.parse(weight), bs.parse("int8_token"), static=False)
        for arguments in (found.weights, found.inputs):
            theirs = QuantizationArgs(**arguments).model_dump(mode="json")
            told = {key: theirs[key] for key in arguments}
            assert told == arguments


def test_what_vllm_does_with_inputs_that_stay_in_float() -> None:
    told = {
        fmt: input_note(scheme(bs.parse(fmt), None, static=False))
        for fmt in ("mxfp8", "mxfp4", "int4")
    }
    assert "vLLM (0.32) quantizes the inputs of mxfp8" in told["mxfp8"]
    assert "as well where a GPU" in told["mxfp4"] and not told["int4"]
    assert not input_note(scheme(bs.parse("mxfp8"), bs.parse("mxfp8"), static=False))
