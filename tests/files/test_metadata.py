# SPDX-License-Identifier: BSD-3-Clause
"""A header that is damaged, of another version or of no format is refused, and nothing changes."""

import json
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import blockscale as bs
from tests.support.saved import GONE, IDS, Net, bits, put, quantized, refused, rewrite


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model"
    bs.save(quantized(), path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def expected() -> torch.nn.Module:
    return quantized()


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_header_is_refused_or_harmless(tmp_path, whole, expected, data) -> None:
    raw = bytearray(whole)
    header = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 2))):
        raw[data.draw(st.integers(0, header - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path, model = tmp_path / "damaged.safetensors", Net().eval()
    path.write_bytes(raw)
    before = bits(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bs.load(model, path)
    except bs.FileError:
        assert bits(model) == before
    else:
        assert bits(model) == bits(expected)
        assert torch.equal(model(IDS), expected(IDS))


HEAD, LAYER = ("tensors", "head.weight"), ("layers", "head")


DAMAGE = [
    (
        put("version", 2),
        "version 2 of the file format, and this blockscale reads version 1: install a newer",
    ),
    (put("version", "1"), "version '1' of the file format"),
    (put("version", GONE), "metadata is damaged .*: copy the file again"),
    (put("tensors", GONE), "metadata is damaged"),
    (put("tensors", 5), "metadata is damaged"),
    (put("tensors", {}), r"it lacks .*weight.*it has|no quantized weight"),
    (put("layers", []), "metadata is damaged"),
    (put("aliases", 5), "metadata is damaged"),
    (
        put("format", "int99:tensor:fp32", *HEAD),
        "tensor 'head.weight': .*unknown element 'int99'; choose from",
    ),
    (put("format", 5, *HEAD), "damaged"),
    (put("format", "int8:channel5:fp32", *HEAD), "head.weight.*channel5|channel5.*head.weight"),
    (put("format", "mxint8", *HEAD), r"head.weight.codes should be torch.int8 \(64, 64\), but is"),
    (put("format", "e2m1:group16:e5m2:asym", *HEAD), "asym"),
    (put("layout", "sideways", *HEAD), "unknown layout 'sideways'; choose from plain, transposed"),
    (put("layout", ["plain"], *HEAD), "layout|damaged"),
    (
        put("layout", "transposed_channels_last:1", *HEAD),
        "unknown layout 'transposed_channels_last:1'",
    ),
    (
        put("layout", "transposed_channels_last:3", *HEAD),
        "64 inputs cannot be divided into 3 equal groups",
    ),
    (put("shape", [64, "64"], *HEAD), "head.weight"),
    (put("shape", [], *HEAD), "head.weight"),
    (put("shape", [-64, 64], *HEAD), "head.weight"),
    (put("shape", None, *HEAD), "damaged"),
    (put("colour", "red", *HEAD), "damaged"),
    (put("input", None, *LAYER), "damaged"),
    (
        put("colour", "int8", *LAYER),
        "layer 'head': unknown part 'colour'; choose from input, output",
    ),
    (put("haed", {"input": "int8"}, "layers"), "haed"),
    (put("dtype", "int8", *HEAD), "'int8' is not a float dtype"),
    (put("dtype", "nn", *HEAD), "'nn' is not a float dtype"),
    (put("dtype", 5, *HEAD), "damaged"),
    (put("shape", [True, 64], *HEAD), "is not a shape"),
    (put("version", True), "version True of the file format"),
    (put("head.weight", 5, "aliases"), "damaged"),
    (put("input", 5, *LAYER), "damaged"),
    (put("head", [["input", "int8"]], "layers"), "damaged"),
    (lambda data: f'{json.dumps(data)[:-1]}, "version": 1}}', "the key 'version' appears twice"),
    (lambda data: "{", "metadata is damaged"),
    (lambda data: "null", "metadata is damaged"),
    (lambda data: "[" * 20_000, "metadata is damaged"),  # deeper than the parser goes
]


@pytest.mark.parametrize(("change", "words"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_metadata(change, words: str, path) -> None:
    rewrite(path, change)
    refused(path, words)
