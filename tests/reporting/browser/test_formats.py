# SPDX-License-Identifier: BSD-3-Clause
"""What a page is told of formats."""

import json
import pathlib
import shutil
import subprocess

import pytest

from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.reporting import browser
from blockscale.reporting.browser.formats import refusal, shaders, told

SCRIPT = pathlib.Path(browser.__file__).parent / "shaders.js"


def of(fmt):
    return told("a", fmt, {})


def test_blocks_of_a_matrix():
    assert of(parse("int8:tensor:fp32"))["block"] == [None, None]
    assert of(parse("int8:channel0:fp32"))["block"] == [1, None]
    assert of(parse("int8:tile4x8:fp32"))["block"] == [4, 8]
    assert of(parse("mxfp4"))["block"] == [1, 32]
    flat = of(parse("nf4:flat64:fp32"))
    assert (flat["flat"], flat["block"]) == (True, [64, 64])


def test_bits_beside_codes():
    nvfp4 = of(parse("nvfp4"))
    assert (nvfp4["bits"], nvfp4["overhead"], nvfp4["once"]) == (4, 8, 32)
    uint4 = of(parse("uint4"))
    assert (uint4["overhead"], uint4["once"], uint4["asym"]) == (64, 0, True)


@pytest.mark.parametrize(
    ("spelling", "why"),
    [
        ("int8:tensor:fp32:stochastic", "chance"),
        ("e4m3:group32:e8m0/given", "must be supplied"),
        ("int4:group32:(uint6:group8:fp32)", "one outer scale"),
        ("int4:flat64@0:fp32", "lie together"),
    ],
)
def test_what_a_page_cannot_show(spelling, why):
    assert why in refusal(parse(spelling))
    with pytest.raises(ValueError, match=why):
        of(parse(spelling))


def test_declarations_are_those_that_shaders_call():
    texts = {}
    codes = told("a", parse("mxfp4"), texts)["shaders"]["codes"]
    few = "\n".join(texts)
    assert "fn main" in few and "//# kernels/boxes/codes" in few
    assert "boxes/mean" not in few
    assert "CODEBOOK" not in codes["constants"] and codes["tables"] == {}
    before = len(texts)
    told("b", parse("mxfp4"), texts)
    assert len(texts) == before  # what formats have in common is there once
    told("c", parse("ternary"), texts)
    assert "//# boxes/mean" in "\n".join(texts)


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="NO NODE HERE: what the page composes is not compared")
def test_the_page_composes_what_kernels_are_made_of():
    """The page's JavaScript gives the text that Python gives, for every step of a format."""
    texts, names = {}, ("mxfp4", "nvfp4", "ternary", "nf4", "uint4", "log8:token:fp32")
    formats = [told(name, parse(name), texts) for name in names]
    sizes = ["rows", "columns", "across"]
    data = json.dumps({"formats": formats, "declarations": list(texts)})
    script = f"""
      const PAGE = {data};
      {SCRIPT.read_text()}
      const each = (format) => Object.values(format.shaders).map((s) => composed(s, {sizes}));
      console.log(JSON.stringify(PAGE.formats.map(each)));"""
    done = subprocess.run([NODE], input=script, capture_output=True, text=True, check=True)
    for name, found in zip(names, json.loads(done.stdout), strict=True):
        for shader, made in zip(shaders(parse(name)), found, strict=True):
            right = source(shader, tuple(sizes), None)
            assert (made["text"], made["bindings"]) == (right.text, list(right.bindings)), name
