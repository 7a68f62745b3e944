# SPDX-License-Identifier: BSD-3-Clause
"""Compiling what was lowered to "inductor", now and ahead of time."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.lowering import compiled, lower, package
from tests.graph.lowering.programs import layers

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def sixteen_bits():
    """Scales and a model in bfloat16, whose roundings Inductor leaves out by default."""
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).to(torch.bfloat16)
    bs.quantize_(model.eval(), bs.Recipe("int8:channel0:bf16", input="int8:token:bf16"))
    x = torch.randn(4, 64).to(torch.bfloat16)
    return model, torch.export.export(model, (x,)), x


@pytest.mark.slow
def test_roundings_to_16_bits_stay():
    model, program, x = sixteen_bits()
    with bs.use("reference"):
        y = model(x)
    lowered = lower(program, "inductor")
    assert torch.equal(lowered(x), y)
    assert torch.equal(compiled(lowered)(x), y)
    assert not torch.equal(torch.compile(lowered)(x), y), "Inductor rounds now: drop the option"


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


@pytest.mark.parametrize("make", [compiled, lambda graph: package(graph, "nowhere/a.pt2")])
def test_only_what_was_lowered_to_it(make):
    graph, _ = layers("int8 static")
    with pytest.raises(ValueError, match="lowered to 'inductor', found one of stage 'fused': comp"):
        make(graph)
    with pytest.raises(ValueError, match="found one of stage 'lowered' for 'reference'"):
        make(lower(graph, "reference"))


def test_a_package_holds_no_op_of_ours(tmp_path):
    model = nn.Sequential(nn.Linear(64, 8)).eval()
    with bs.use("reference"):
        bs.quantize_(model, bs.Recipe("book4:tensor:fp32"))
    with pytest.warns(UserWarning, match="inductor cannot run these"):
        lowered = lower(torch.export.export(model, (torch.randn(3, 64),)), "inductor")
    with pytest.raises(ValueError, match="linear stayed on the reference and are ops of Python"):
        package(lowered, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_place_for_a_package_is_checked_before_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", None)
    lowered = lower(layers("int8 static")[0], "inductor")
    with pytest.raises(
        ValueError, match=r"a directory: name the file to write, e\.g\. .*model\.pt2"
    ):
        package(lowered, tmp_path)
    with pytest.raises(ValueError, match=r"name ends in \.pt2: write it to .*/model.pt2"):
        package(lowered, str(tmp_path / "model.so"))
    with pytest.raises(ValueError, match="none is not a directory: create it first"):
        package(lowered, tmp_path / "none" / "model.pt2")


def test_freezing_is_said():
    from torch._inductor import config

    lowered = lower(layers("int8 static")[0], "inductor")
    with (
        config.patch(freezing=True),
        pytest.warns(UserWarning, match="it decodes the weights while it compiles"),
    ):
        compiled(lowered)
