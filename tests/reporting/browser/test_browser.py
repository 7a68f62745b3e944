# SPDX-License-Identifier: BSD-3-Clause
"""What a page is told of formats."""

import base64
import json
import pathlib
import re
import shutil
import struct
import subprocess

import pytest
import torch
from safetensors.torch import save

import blockscale as bs
from blockscale.core.parse import formats as catalogue
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.reporting import browser
from blockscale.reporting.browser import (
    COLUMNS,
    ROWS,
    check,
    format_data,
    numbers,
    page,
    refusal,
    shaders,
)
from tests.reporting.browser.chromium import CHROMIUM, WITHOUT_GPU, opened

SCRIPT = pathlib.Path(browser.__file__).parent / "shaders.js"


def of(fmt):
    return format_data("a", fmt, {})


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
    codes = format_data("a", parse("mxfp4"), texts)["shaders"]["codes"]
    few = "\n".join(texts)
    assert "fn main" in few and "//# kernels/boxes/codes" in few
    assert "boxes/mean" not in few
    assert "CODEBOOK" not in codes["constants"] and codes["tables"] == {}
    before = len(texts)
    format_data("b", parse("mxfp4"), texts)
    assert len(texts) == before  # what formats have in common is there once
    format_data("c", parse("ternary"), texts)
    assert "//# boxes/mean" in "\n".join(texts)


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="NO NODE HERE: what the page composes is not compared")
def test_the_page_composes_what_kernels_are_made_of():
    """The page's JavaScript gives the text that Python gives, for every step of a format."""
    texts, names = {}, ("mxfp4", "nvfp4", "ternary", "nf4", "uint4", "log8:token:fp32")
    formats = [format_data(name, parse(name), texts) for name in names]
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


MORE = (
    "int4:group32:fp32:offset",
    "iq4_nl:group32:fp16",
    "int8:tile4x8:bf16:recip",
    "nf4:flat64:fp32",
)
FEW = ("int8", "mxfp4", "nvfp4", "ternary")
CHECKED = "document.documentElement.dataset.checked"
SAID = "find('message').textContent"
pytestmark = pytest.mark.xdist_group("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="NO CHROMIUM HERE: the page is not tested in a browser (apt install chromium)",
)


def made(*names: str) -> str:
    return page({name: parse(name) for name in names}, "0.0.test")


def test_names_end_no_script_and_add_no_element():
    odd = "</script><img src=x onerror=alert(1)><!--<script>"
    text = page({odd: parse("int8")}, odd)
    assert odd not in text and "<img" not in text and "<!--" not in text
    assert "&lt;/script&gt;&lt;img" in text  # the version, in the foot
    told = re.search(r"const PAGE = (.*);</script>", text)
    assert json.loads(told[1])["formats"][0]["name"] == odd


@needs_chromium
@pytest.mark.slow
def test_every_format_has_the_references_bits_in_a_browser(tmp_path):
    """Through Tint and SwiftShader, which nothing else of ours has been through."""
    shown = [name for name, fmt in catalogue().items() if refusal(fmt) is None]
    assert len(shown) == len(catalogue())
    script = f"return {{ checked: {CHECKED}, said: {SAID} }};"
    found = opened(made(*shown, *MORE), script, tmp_path)
    count = len(shown) + len(MORE)
    assert found == {"checked": f"{count}/{count}", "said": ""}


@needs_chromium
def test_a_page_checks_itself_and_shows_a_result(tmp_path):
    script = """
      return {
        checked: document.documentElement.dataset.checked, gpu: find("gpu").textContent,
        format: find("format").value, sqnr: find("sqnr").textContent,
        bits: find("bits").textContent, element: find("element").textContent,
        pixels: [find("values").width, find("values").height], quiet: find("message").hidden,
      };"""
    found = opened(made(*FEW), script, tmp_path)
    assert found["checked"] == f"{len(FEW)}/{len(FEW)}"
    assert "swiftshader" in found["gpu"].lower()
    assert found["format"] == "mxfp4"
    assert found["bits"] == "4.250"
    assert 15 < float(found["sqnr"].removesuffix(" dB")) < 22
    assert found["pixels"] == [128, 48]
    assert found["element"].startswith("element[0, 0]")
    assert found["quiet"]


@needs_chromium
def test_dropped_files_are_quantized_as_the_reference_does(tmp_path):
    x = torch.randn(8, 96, generator=torch.Generator().manual_seed(3))
    files = {
        "x.npy": b"\x93NUMPY\x01\x00" + _npy_header(x.shape) + x.numpy().tobytes(),
        "x.safetensors": save({"w": x, "empty": torch.zeros(0)}),
        "x.bin": x.numpy().tobytes(),
    }
    script = f"""
      const seen = {{}};
      find("format").value = "int8";
      for (const [name, bytes] of Object.entries({_listed(files)})) {{
        const given = new DataTransfer();
        given.items.add(new File([new Uint8Array(bytes)], name));
        find("title").textContent = "";
        const dropped = {{ dataTransfer: given, cancelable: true }};
        document.dispatchEvent(new DragEvent("drop", dropped));
        await until(() => find("title").textContent);
        const {{ codes, steps }} = View.shown.found;
        seen[name] = {{ title: find("title").textContent, codes: [...codes], step: steps[0] }};
      }}
      return seen;"""
    seen = opened(made(*FEW), script, tmp_path)
    q = bs.quantize(x, "int8")
    codes = q.codes.to(torch.int32).bitwise_and(255).flatten().tolist()
    step = struct.unpack("<I", struct.pack("<f", float(q.scale)))[0]
    assert [seen[name]["codes"] == codes for name in files] == [True] * 3
    assert [seen[name]["step"] for name in files] == [step] * 3
    assert "x.npy [8, 96]" in seen["x.npy"]["title"]
    assert "3 × 256" in seen["x.bin"]["title"]  # without a shape: as many columns as fit


@needs_chromium
def test_wrong_files_get_a_sentence(tmp_path):
    wrong = {
        "cut.npy": b"\x93NUMPY\x01\x00" + _npy_header((99, 99)) + b"0000",
        "other.npy": b"PK\x03\x04 and so on",
        "odd.bin": b"12345",
        "no.safetensors": struct.pack("<Q", 1 << 40),
    }
    script = f"""
      const said = {{}};
      for (const [name, bytes] of Object.entries({_listed(wrong)})) {{
        const given = new DataTransfer();
        given.items.add(new File([new Uint8Array(bytes)], name));
        find("message").textContent = "";
        const dropped = {{ dataTransfer: given, cancelable: true }};
        document.dispatchEvent(new DragEvent("drop", dropped));
        await until(() => find("message").textContent);
        said[name] = find("message").textContent;
      }}
      return said;"""
    said = opened(made(*FEW), script, tmp_path)
    expected = {
        "cut.npy": "is cut off",
        "other.npy": "does not begin as .npy files do",
        "odd.bin": "has 5 bytes; float32 numbers have four each",
        "no.safetensors": "is no .safetensors file",
    }
    assert {name: text in said[name] for name, text in expected.items()} == dict.fromkeys(
        wrong, True
    )


@needs_chromium
def test_keys_move_the_cursor_and_painting_changes_numbers(tmp_path):
    script = """
      const grid = document.querySelector(".grid");
      grid.focus();
      for (const key of ["ArrowRight", "ArrowRight", "ArrowDown"]) {
        grid.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
      }
      const moved = find("element").querySelector("dd").textContent;
      find("clear").click();
      await until(() => find("title").textContent.startsWith("Drawn"));
      find("brush").value = 3;
      const place = grid.getBoundingClientRect();
      const [clientX, clientY] = [place.left + place.width / 2, place.top + place.height / 2];
      grid.dispatchEvent(new PointerEvent("pointerdown", { buttons: 1, clientX, clientY }));
      await until(() => View.shown.values.some((each) => each !== 0));
      const painted = [...View.shown.x].filter((each) => each === 3).length;
      return { moved, painted, values: [...new Set(View.shown.values)] };"""
    found = opened(made("int8", "mxfp4"), script, tmp_path)
    assert found["moved"] == "[1, 2]"
    assert found["painted"] == 21
    assert sorted(found["values"]) == [0, 3]


@needs_chromium
def test_a_planted_bug_is_seen_by_the_page(tmp_path):
    """A code of one check is changed: the page says so, and which format."""
    html = made("int8")
    data = json.loads(re.search(r"const PAGE = (\{.*?\});</script>", html)[1].replace("<\\/", "</"))
    codes = data["checks"][0]["codes"]
    other = ("B" if codes[0] != "B" else "C") + codes[1:]
    broken = html.replace(codes, other)
    script = f"return {{ checked: {CHECKED}, said: {SAID} }};"
    found = opened(broken, script, tmp_path)
    assert found["checked"] == "0/1"
    assert "int8: codes" in found["said"]


@needs_chromium
def test_a_browser_without_webgpu_is_told(tmp_path):
    script = f"return {{ checked: {CHECKED}, said: {SAID}, shown: !find('message').hidden }};"
    found = opened(made("int8"), script, tmp_path, flags=WITHOUT_GPU)
    assert found["checked"] == "none"
    assert found["shown"]
    assert "WebGPU" in found["said"]


def test_a_page_needs_a_format():
    with pytest.raises(ValueError, match="has no formats: name at least one"):
        page({}, "1")


def test_a_page_is_one_file():
    html = made(*FEW)
    assert not re.search(r"(src|href)=\"(?!data:)", html)
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert html.count("<script>") == html.count("</script>")


def _listed(files: dict[str, bytes]) -> str:
    return json.dumps({name: list(content) for name, content in files.items()})


def _npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("name", catalogue())
def test_they_ask_something(name):
    """Several codes are in use, and subnormals, zeros of both signs and ties are there."""
    found = check(name, parse(name))
    codes = torch.frombuffer(bytearray(base64.b64decode(found["codes"])), dtype=torch.int32)
    assert codes.shape == (ROWS * COLUMNS,)
    assert len(codes.unique()) >= 2
    x = numbers(parse(name))
    assert (x[4].abs() < 2**-126).all()
    assert x[3].signbit().any()
    assert (x == 0).any()


def test_numbers_that_are_not_finite_come_where_they_do_not_poison():
    assert not numbers(parse("int8")).isfinite().all()
    assert numbers(parse("mxfp8")).isfinite().all()
