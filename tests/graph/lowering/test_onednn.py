# SPDX-License-Identifier: BSD-3-Clause
"""oneDNN's products beside the reference's."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.graph.lowering import compiled, lower, onednn, package
from blockscale.ops.fused import FUSED
from tests.graph.lowering.programs import layers

needs = pytest.mark.skipif(onednn.unavailable() is not None, reason=str(onednn.unavailable()))
INPUTS = ("uint8:tensor:fp32:asym", "int8", "int8:tensor:fp32:asym", "int8:tensor:bf16")
WEIGHTS = ("int8_channel", "int8", "int8:channel0:bf16")


def value(x, fmt):
    q = bs.quantize(x, fmt)
    return Value(q.codes, q.scale, q.zero_point, None, fmt, x.shape[-1])


def product(rows, n, k, given, weight="int8_channel"):
    return value(torch.randn(*rows, k), given), value(torch.randn(n, k), weight), torch.randn(n)


def both(x, weight, bias, activation, y):
    """The reference's result and oneDNN's."""
    settings = {"bias": bias, "activation": activation}
    with bs.use("reference"):
        expected = FUSED["linear"](x, weight, y=y, **settings)
    args = FUSED["linear"].flatten([x, weight], settings, torch.float32, y)
    return expected, onednn.LINEAR(*args)


def bound(x, weight, bias):
    """What docs/numerics.md, section 7, allows for each result."""
    from blockscale.ops.primitives import dequantize

    a, b = (dequantize(each.operand, torch.float32).abs() for each in (x, weight))
    size = a @ b.T + (0 if bias is None else bias.abs())
    return FUSED["linear"].ulps * 2.0**-24 * size


@pytest.mark.pairs
@needs
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("rows", [(5,), (1,), (2, 3, 4), (0,), (2, 0)])
def test_floats(given, weight, rows):
    x, w, bias = product(rows, 24, 40, given, weight)
    for offset in (bias, None):
        (expected,), (found,) = both(x, w, offset, "", UNQUANTIZED)
        assert found.shape == expected.shape and found.dtype == torch.float32
        assert ((found - expected).abs() <= bound(x, w, offset)).all()


@needs
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_activations(activation):
    x, w, bias = product((64,), 48, 40, INPUTS[0])
    (expected,), (found,) = both(x, w, bias, activation, UNQUANTIZED)
    slack = 0 if activation == "relu" else 2e-6 * expected.abs().amax()  # a gelu of its own
    assert ((found - expected).abs() <= 2 * bound(x, w, bias) + slack).all()


@pytest.mark.pairs
@needs
@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("result", INPUTS[:3])
@pytest.mark.parametrize("given", INPUTS[:2])
def test_codes_differ_by_one_at_most(given, result, activation):
    x, w, bias = product((64,), 48, 40, given)
    (values,), _ = both(x, w, bias, activation, UNQUANTIZED)
    made = bs.quantize(values / 2, result)  # so that some results saturate
    y = Quantizer(made.scale, made.zero_point, None, result)
    (expected,), (found,) = both(x, w, bias, activation, y)
    assert found.dtype == expected.dtype
    apart = (found.to(torch.int32) - expected.to(torch.int32)).abs()
    assert apart.max() <= 1 and (apart > 0).to(torch.float32).mean() < 0.01
    form = parse(result)
    low, high = form.element.limits(form.wide)
    assert low <= found.min() and found.max() <= high  # oneDNN's own int8 goes down to -128


@needs
def test_the_extremes_of_integers():
    """Sums of the largest codes are exact: no 16-bit step in between saturates."""
    k = 512
    codes, zero = torch.full((2, k), 255, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.int32)
    x = Value(codes, torch.ones(1, 1), zero, None, INPUTS[0], k)
    for code in (127, -127):
        weight = torch.full((16, k), code, dtype=torch.int8)
        w = Value(weight, torch.ones(16, 1), None, None, "int8_channel", k)
        (expected,), (found,) = both(x, w, None, "", UNQUANTIZED)
        assert torch.equal(found, expected) and found[0, 0] == 255 * code * k


@needs
def test_a_weight_that_changes():
    x, w, bias = product((3,), 16, 32, "int8")
    both(x, w, bias, "", UNQUANTIZED)
    w.data.neg_()
    (expected,), (found,) = both(x, w, bias, "", UNQUANTIZED)
    assert ((found - expected).abs() <= bound(x, w, bias)).all()


@needs
def test_scales_of_any_rank():
    x, w, bias = product((2, 3), 16, 32, INPUTS[0])
    flat = x._replace(scale=x.scale.reshape(()), zero_point=x.zero_point.reshape(1))
    args = ({"bias": bias, "activation": ""}, torch.float32, UNQUANTIZED)
    results = [onednn.LINEAR(*FUSED["linear"].flatten([v, w], *args))[0] for v in (x, flat)]
    assert torch.equal(*results)


REFUSED = {
    "floats": (("", "int8_channel", "", "", False), "not floats"),
    "per token": (("int8_token", "int8_channel", "", "", False), "with one scale, not int8_token"),
    "16 bits": (("int16:tensor:fp32", "int8_channel", "", "", False), "not int16"),
    "power of two": (("int8:tensor:e8m0", "int8_channel", "", "", False), "not int8:tensor:e8m0"),
    "float weight": (("int8", "", "", "", False), "one scale per row, not floats"),
    "groups": (("int8", "int4:group32:fp32", "", "", False), "one scale per row, not int4"),
    "unsigned weight": (("int8", "uint8:channel0:fp32:asym", "", "", False), "not uint8"),
    "sigmoid": (("int8", "int8_channel", "sigmoid", "", False), "cannot fuse sigmoid"),
    "dynamic": (("int8", "int8_channel", "", "int8", False), "one static scale, not"),
    "result per token": (
        ("int8", "int8_channel", "", "int8_token", True),
        "static scale, not int8_token",
    ),
}


@pytest.mark.parametrize(("formats", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(formats, reason):
    assert reason in onednn.refuses(*formats)


def test_taken():
    assert onednn.refuses("int8", "int8_channel", "relu", "uint8:tensor:fp32:asym", True) is None


def test_a_call_that_it_refuses():
    x, w, _ = product((2,), 16, 32, "int8_token")
    with pytest.raises(ValueError, match="onednn_linear: oneDNN needs activations of 8 bits"):
        onednn.linear(x, w, None, "", torch.float32, UNQUANTIZED)


@pytest.mark.parametrize(
    ("machine", "built", "vnni", "reason"),
    [
        ("aarch64", True, True, "this is a aarch64"),
        ("x86_64", False, True, "built without oneDNN"),
        ("x86_64", True, False, "no VNNI"),
        ("AMD64", True, True, None),
    ],
)
def test_where_it_runs(machine, built, vnni, reason, monkeypatch):
    monkeypatch.setattr(onednn.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: built)
    monkeypatch.setattr(onednn, "is_vnni_supported", lambda: vnni)
    found = onednn.unavailable.__wrapped__()
    assert found is None if reason is None else reason in found


# Compiling what was lowered to "inductor", now and ahead of time.


def sixteen_bits():
    """Scales and a model in bfloat16, whose roundings Inductor leaves out by default."""
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).to(torch.bfloat16)
    bs.quantize_(model.eval(), bs.Recipe("int8:channel0:bf16", input="int8:token:bf16"))
    x = torch.randn(4, 64).to(torch.bfloat16)
    return model, torch.export.export(model, (x,)), x


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_roundings_to_16_bits_stay():
    model, program, x = sixteen_bits()
    with bs.use("reference"):
        y = model(x)
    lowered = lower(program, "inductor")
    assert torch.equal(lowered(x), y)
    assert torch.equal(compiled(lowered)(x), y)
    assert not torch.equal(torch.compile(lowered)(x), y), "Inductor rounds now: drop the option"


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_a_package_runs_without_blockscale(tmp_path):
    graph, _ = layers("mxfp8")
    path = package(lower(graph, "inductor"), tmp_path / "model.pt2")
    x = torch.randn(7, 64)
    with bs.use("reference"):
        torch.save((x, graph(x)), tmp_path / "x.pt")
    code = (
        "import sys, torch\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"  # float sums depend on it
        "x, y = torch.load(sys.argv[2])\n"
        "run = torch._inductor.aoti_load_package(sys.argv[1])\n"
        "assert torch.equal(run(x), y)\n"
        "assert 'blockscale' not in sys.modules\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(path), str(tmp_path / "x.pt")]
    subprocess.run(command, check=True, cwd=tmp_path)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [compiled, lambda graph: package(graph, "nowhere/a.pt2")])
def test_only_what_was_lowered_to_it(make):
    graph, _ = layers("int8 static")
    with pytest.raises(ValueError, match="lowered to 'inductor', found one of stage 'fused': pass"):
        make(graph)
    with pytest.raises(ValueError, match="found one of stage 'lowered' for 'reference'"):
        make(lower(graph, "reference"))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_package_holds_no_op_of_ours(tmp_path):
    model = nn.Sequential(nn.Linear(64, 8)).eval()
    with bs.use("reference"):
        bs.quantize_(model, bs.Recipe("book4:tensor:fp32"))
    with pytest.warns(UserWarning, match="inductor cannot run these"):
        lowered = lower(torch.export.export(model, (torch.randn(3, 64),)), "inductor")
    with pytest.raises(ValueError, match="linear stayed on the reference, whose Python ops"):
        package(lowered, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_place_for_a_package_is_checked_before_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", None)
    lowered = lower(layers("int8 static")[0], "inductor")
    with pytest.raises(
        ValueError, match=r"a directory: name the file to write, e\.g\. .*model\.pt2"
    ):
        package(lowered, tmp_path)
    with pytest.raises(ValueError, match=r"package must end in \.pt2: write it to .*/model.pt2"):
        package(lowered, str(tmp_path / "model.so"))
    with pytest.raises(ValueError, match="none is not a directory: create it first"):
        package(lowered, tmp_path / "none" / "model.pt2")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_freezing_is_said():
    from torch._inductor import config

    lowered = lower(layers("int8 static")[0], "inductor")
    with (
        config.patch(freezing=True),
        pytest.warns(UserWarning, match="it decodes the weights while it compiles"),
    ):
        compiled(lowered)
