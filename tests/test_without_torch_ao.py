# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao, which PyTorch means to delete, is needed by what is about it and by nothing else."""

import ast
import pathlib

import pytest

from tests.support import fresh, syntax

ROOT = pathlib.Path(__file__).parents[1]

# Functions that import it when they are called, and what calls them.
CALLED = {
    "bench/peers/torch_own.py": "measures torch's own dynamic quantization, where torch has it",
    "core/torch_private.py": "graphs of quantize_fx, ExecuTorch's ops, and compat.torch_ao",
    "graph/adoption/quantize_fx.py": "graphs that torch.ao's quantize_fx made",
}

WORDS = ("torch.ao", "torch import ao", "torch.quantization", "torch import quantization")

# A torch whose torch.ao is not there for us; torch itself may go on using what it has.
BLOCKED = """
import sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.ao" or name.startswith(("torch.ao.", "torch.quantization")):
            caller = sys._getframe(1)
            while "importlib" in caller.f_code.co_filename:
                caller = caller.f_back
            if "blockscale" in caller.f_code.co_filename or caller.f_code.co_filename == "<string>":
                raise ModuleNotFoundError(f"no {name}", name=name)
for name in list(sys.modules):
    if name == "torch.ao" or name.startswith(("torch.ao.", "torch.quantization")):
        del sys.modules[name]
del torch.ao
sys.meta_path.insert(0, Refuse())
try:
    import torch.ao
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("torch.ao is not blocked")
"""

MODEL = """
import copy, sys
import blockscale as bs
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
                      nn.Linear(128, 32), nn.Linear(32, 32)).eval()
batches = [torch.randn(4, 3, 4, 4) for _ in range(2)]
static = bs.Recipe(weight="int8_channel", input="int8:tensor:fp32:asym")
"""
MODULES = """
plain, calibrated, rounded, trained = (copy.deepcopy(model) for _ in range(4))
bs.quantize_(plain, "mxfp4")
bs.calibrate(calibrated, batches, static, progress=False)
bs.calibrate(rounded, batches, "int4:group32:fp16", weight="gptq", progress=False)
bs.save(calibrated, sys.argv[1])
bs.load(copy.deepcopy(model), sys.argv[1])
bs.prepare_qat(trained, static)
trained.train()
trained(batches[0]).sum().backward()
trained.eval()
bs.convert(trained)
bs.evaluate(trained, batches, model, kind="outputs")
print("done")
"""
GRAPH = """
prepared = bs.graph.prepare(torch.export.export(model, (batches[0],)), static)
bs.calibrate(prepared, batches, progress=False)
bs.graph.fuse(bs.graph.convert(prepared))(batches[0])
print("done")
"""


def imports(tree: ast.Module) -> list[str]:
    """Modules whose names a file imports, anywhere in it, as "torch.ao" or below."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    return [
        n for n in found if n == "torch.ao" or n.startswith(("torch.ao.", "torch.quantization"))
    ]


def at_import(tree: ast.Module) -> list[str]:
    """Those that are run when the file is imported."""
    outside = [n for n in tree.body if not isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return imports(ast.Module(body=outside, type_ignores=[]))


def test_only_what_is_about_it_names_it():
    found, early = set(), []
    for file in (ROOT / "blockscale").rglob("*.py"):
        name = file.relative_to(ROOT / "blockscale").as_posix()
        text = file.read_text()
        if name.startswith("compat/torch_ao/") or not any(word in text for word in WORDS):
            continue
        tree = syntax.tree(text)
        if imports(tree):
            found.add(name)
        early += [f"{name}: {module}" for module in at_import(tree)]
    assert found == set(CALLED)
    assert early == []


def test_this_check_can_fail():
    tree = ast.parse("import torch.ao.nn\ndef f():\n    from torch import ao\nx = torch.ao.nn.y")
    assert len(imports(tree)) > len(at_import(tree)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("flow", [MODULES, pytest.param(GRAPH, marks=pytest.mark.slow)])
def test_the_main_flows_do_without(flow, tmp_path):
    done = fresh.run(BLOCKED + MODEL + flow, tmp_path / "model.safetensors")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]


@pytest.mark.parametrize("name", ["", ".pt2e", ".observers"])
def test_what_is_about_it_says_what_is_missing(name):
    done = fresh.run(f"{BLOCKED}\nimport blockscale.compat.torch_ao{name}")
    assert done.returncode == 1
    assert "ImportError: blockscale.compat.torch_ao is about torch.ao, which torch" in done.stderr
    assert "use bs.calibrate, bs.prepare_qat or bs.graph" in done.stderr


def test_torchs_own_peers_are_measured_without_it():
    script = """
from blockscale.bench.peers import torch_own
from types import SimpleNamespace
layer = SimpleNamespace(device="cpu", weight=None, module=None)
print([peer.name for peer in torch_own.linear(layer)], list(torch_own.model(None)))
"""
    done = fresh.run(BLOCKED + script, check=True)
    assert done.stdout.strip() == "['torch bf16', 'torch._int_mm'] []"
