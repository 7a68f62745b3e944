# SPDX-License-Identifier: BSD-3-Clause
"""C files: their bits and no floats, on x86 and on 32-bit Arm; and what is refused."""

import re
import shutil
import subprocess
import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.support.c_handmade import handmade
from tests.support.c_running import (
    ARM,
    SANITIZED,
    STRICT,
    check,
    codes,
    needs_arm,
    needs_gcc,
    run,
)
from tests.support.digit_models import ViT, cnn, digits, resnet, trained
from tests.support.export_c import small
from tests.support.integer_models import INT8, PER_CHANNEL, quantized

ON_ARM = {"gcc": ARM, "emulator": ("qemu-arm", "-L", "/usr/arm-linux-gnueabihf")}
# of gcc's own library for 32-bit Arm: what floats of software would call
SOFT = re.compile(r"__aeabi_([fd]\w+|\w+2[fd]\b)|__\w+[sd]f\d?\b")


def objects(path, gcc="gcc", *flags):
    """What an object file needs from elsewhere, and its instructions."""
    made = path.with_suffix(".o")
    subprocess.run([gcc, *STRICT, "-O2", *flags, "-c", path, "-o", made], check=True)
    tools = gcc.removesuffix("gcc")
    needs = subprocess.run([f"{tools}nm", "-u", made], capture_output=True, text=True, check=True)
    code = subprocess.run([f"{tools}objdump", "-d", made], capture_output=True, text=True,
                          check=True)  # fmt: skip
    return needs.stdout, code.stdout


@pytest.mark.slow
@needs_gcc
def test_a_small_graph(tmp_path):
    """Bits, no float in the text or in the object, the same text again."""
    graph, x = small()
    path = check(graph, tmp_path, (x,), (x.flip(1),), flags=SANITIZED)
    text = path.read_text()
    assert not re.search(r"\b(float|double)\b", text)
    assert re.findall(r"#include .*", text) == ["#include <stdint.h>"]
    needs, code = objects(path, "gcc", "-mgeneral-regs-only")  # floats do not compile with it
    assert set(re.findall(r"U (\w+)", needs)) <= {"memset", "memcpy", "__stack_chk_fail"}
    assert not re.search(r"xmm|\bf(add|mul|ld|st)\w*", code)
    bs.export.c(graph, tmp_path / "again.c")
    assert (tmp_path / "again.c").read_text() == text


@needs_gcc
def test_a_model_of_layers_that_became_integers(tmp_path):
    """What to_integer gives is the graph that C files are made of."""
    torch.manual_seed(0)
    x = torch.randn(2, 1, 6, 6)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    integer = bs.graph.to_integer(quantized(model, x, PER_CHANNEL, INT8), x)
    path = check(integer.steps, tmp_path, (x,), (50 * x,), flags=SANITIZED)
    bs.export.c(integer, tmp_path / "of_the_model.c", (x,), name=path.stem)
    assert "int32_t" in (tmp_path / "of_the_model.c").read_text()


@pytest.mark.slow
@needs_gcc
def test_sizes_that_are_stated_are_those_of_the_object(tmp_path):
    path = check(small()[0], tmp_path, (small()[1],))
    text = path.read_text()
    arena = sum(
        int(n) * int(w) // 8 for w, n in re.findall(r"static int\d+_t arena(\d+)\[(\d+)\]", text)
    )
    assert (
        f"#define MODEL_ARENA_BYTES {arena}\n" in text and f"static memory: {arena} bytes" in text
    )
    object_ = path.with_suffix(".o")
    subprocess.run(["gcc", "-std=c99", "-O0", "-c", path, "-o", object_], check=True)
    found = subprocess.run(["nm", "-S", object_], capture_output=True, text=True, check=True).stdout
    sizes = re.findall(r"^\w+ (\w+) b ", found, re.MULTILINE)
    assert sum(int(each, 16) for each in sizes) == arena


def test_what_is_refused(tmp_path):
    graph, x = small()
    out = tmp_path / "model.c"
    with pytest.raises(
        ValueError,
        match=(
            r"bytes of constants \(the largest is integer_conv_default.*at its peak in "
            r"integer_linear"
        ),
    ):
        bs.export.c(graph, out, x, max_bytes=200)
    with pytest.raises(ValueError, match="'3d' is not a C identifier"):
        bs.export.c(graph, out, x, name="3d")
    with pytest.raises(ValueError, match="cannot be called with the example"):
        bs.export.c(graph, out, x.flatten())
    next(iter(graph.graph.nodes)).meta["val"] = None
    with pytest.raises(ValueError, match="sizes of the input x are not known: pass an example"):
        bs.export.c(graph, out)
    odd = handmade({"x": x}, [(torch.ops.aten.cumsum.default, ["x", 1])])
    with pytest.raises(bs.graph.NotIntegerError, match=r"cumsum.*\(cumsum_default\).* no C form"):
        bs.export.c(odd, out, x)
    assert list(tmp_path.iterdir()) == []
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="exists: remove it, or pass overwrite=True"):
        bs.export.c(graph, out, x)
    assert out.read_text() == "mine"


@pytest.mark.slow
def test_a_model_whose_scales_are_no_powers_of_two(tmp_path):
    x = torch.randn(2, 8)
    program = torch.export.export(nn.Linear(8, 3).eval(), (x,))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "uint8:tensor:fp32:asym"))
    bs.calibrate(prepared, [(x,)], progress=False)
    with pytest.raises(bs.graph.NotIntegerError, match="power-of-two scale"):
        bs.export.c(bs.graph.convert(prepared), tmp_path / "model.c")
    assert list(tmp_path.iterdir()) == []


@needs_arm
@pytest.mark.slow
def test_on_arm(tmp_path):
    """Bits, and no call of its float routines where floats would be software."""
    graph, x = small()
    path = check(graph, tmp_path, (x,), (x.flip(1),), **ON_ARM)
    needs, code = objects(path, ARM, "-march=armv7-a+fp")
    assert not re.search(r"\bv(add|sub|mul|div|cvt|mla|neg)\S*\.[fF](32|64)", code)
    software = ("-march=armv7-a", "-mfloat-abi=soft", "-ffreestanding")
    needs, _ = objects(path, ARM, *software)
    assert not SOFT.search(needs), needs
    planted = tmp_path / "planted.c"
    planted.write_text("int f(int x);\nint f(int x)\n{\n    return (int)(x * 0.3f);\n}\n")
    needs, _ = objects(planted, ARM, *software)
    assert SOFT.search(needs), needs


def test_what_software_floats_call():
    for name in ("__aeabi_fadd", "__aeabi_dmul", "__aeabi_i2f", "__aeabi_l2d", "__mulsf3"):
        assert SOFT.search(name), name
    for name in ("__aeabi_ldivmod", "__aeabi_idiv", "__aeabi_lmul", "__aeabi_memset"):
        assert not SOFT.search(name), name


@needs_gcc
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "steps"), [(cnn, 60), (resnet, 30), (ViT, 60)])
def test_digits(make, steps, tmp_path):
    """All images that the networks were not trained on; on Arm where there is one to emulate."""
    torch.manual_seed(0)
    model = trained(make(), steps)
    x, _, tests, _ = digits()
    program = torch.export.export(model, (x[:64],), dynamic_shapes=({0: torch.export.Dim("n")},))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        prepared = bs.graph.prepare(program, bs.graph.integer_recipe(program))
        bs.calibrate(prepared, [(x[:256],)], progress=False)
        graph = bs.graph.lower(bs.graph.fuse(bs.graph.convert(prepared)), "integer")
    with pytest.raises(ValueError, match=r"sizes of the input \w+ are not known"):
        bs.export.c(graph, tmp_path / "written.c")
    path = tmp_path / "written.c"
    bs.export.c(graph, path, tests[:1])
    (inside,), (expected,) = codes(graph, tests)
    ways = [(SANITIZED, {}), (["-O2"], {})]
    if shutil.which(ARM) and shutil.which("qemu-arm"):
        ways.append(([], ON_ARM))
    for flags, how in ways:
        (found,) = run(path, [(each,) for each in inside], *flags, **how)
        assert torch.equal(found, expected.flatten(1))
