# SPDX-License-Identifier: BSD-3-Clause
"""Each open set takes one new file: the examples, put where they go in a copy of the package.

No other file of the copy is edited. What each then gets by itself is used in a process of its own,
and the tests that enumerate what there is are run in the copy (slow).
"""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import fresh
from tests.support.some import crossed

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "extending"

# What a user does with it, in a process that imports the copy. Warnings are errors there.
USES = {
    "named_format": """
        assert str(bs.parse("int6")) == "int6:group64:fp32" == str(bs.formats()["int6"])
        x = torch.randn(3, 100)
        q = bs.quantize(x, "int6")
        assert q.packed.shape == (3, 75) and q.scale.shape == (3, 2)
        assert torch.equal(q.dequantize(), bs.fake_quantize(x, "int6:group64:fp32"))
        shown = CliRunner().invoke(app, ["formats", "--json"])
        assert "int6" in [row["name"] for row in json.loads(shown.stdout)]
        """,
    "element": """
        x = torch.tensor([[-1.0, -0.5, -0.25, 0.0, 0.2, 0.26, 0.75, 1.0]])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            q = bs.quantize(x, "levels5:group8:fp32")
            words = "no cpu kernel runs choose_quantize for levels5:group8:fp32 on these tensors"
            assert [str(each.message).startswith(words) for each in caught] == [True]
            assert q.codes.tolist() == [[0, 1, 2, 2, 2, 3, 4, 4]]  # ties to even: -0.5, 1.5 steps
            assert q.dequantize().tolist() == [[-1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0]]
            assert q.packed.shape == (1, 3)  # three bits each
            for fmt in ("levels255:channel0:e8m0", "levels11:tile2x2:e4m3", "levels7:tensor:bf16"):
                y = bs.quantize(torch.randn(5, 9), fmt)
                again = bs.quantize(y.dequantize(), fmt, y.scale, seed=None)
                assert torch.equal(again.codes, y.codes)
            model = torch.nn.Sequential(torch.nn.Linear(64, 8))
            bs.quantize_(model, bs.Recipe("levels11:group32:fp32", input="levels255:token:fp32"))
            bs.save(model, "model.safetensors")
            other = bs.load(torch.nn.Sequential(torch.nn.Linear(64, 8)), "model.safetensors")
            x = torch.randn(3, 64)
            assert torch.equal(other(x), model(x))
        """,
    "observer": """
        assert "trimmed" in bs.observers.names()
        x = torch.randn(64, 8)
        observer = bs.observers.make("trimmed:0.5", "int8")
        half = bs.observers.make("min_max", "int8")
        observer.observe(x), half.observe(x / 2)
        assert torch.equal(observer.qparams().scale, half.qparams().scale)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4))
        bs.calibrate(model, [x], bs.Recipe("int8_channel", input="int8"), observer="trimmed:0.5")
        assert torch.equal(model[0].input.scale, observer.qparams().scale)
        expect(ValueError, "above 0 and at most 1", bs.observers.make, "trimmed:2", "int8")
        """,
    "profile": """
        profile = bs.profile("acme.int8:group4", "2")
        x = torch.tensor([[1.0, 0.999, -0.5, 0.1]])
        q = bs.quantize(x, profile)
        assert str(q.format) == "int8:group4:fp16"
        assert q.codes.tolist() == [[127, 126, -63, 12]]
        assert q.scale.item() == torch.tensor(1 / 127).half().item()
        expect(ValueError, "acme.int8; choose from 2.1", bs.profile, "acme.int8", "3")
        expect(ValueError, "did you mean acme.int8", bs.profile, "acme.int4")
        """,
    "weight_algorithm": """
        weight = torch.randn(8, 64)
        weight[0, 0] = 8.0  # all the others share its scale
        plain = torch.nn.Sequential(torch.nn.Linear(64, 8))
        plain[0].weight.data.copy_(weight)
        model = copy.deepcopy(plain)
        bs.quantize_(plain, bs.Recipe("int4:tensor:fp32"))
        recipe = bs.Recipe("int4:tensor:fp32")
        ledger = bs.calibrate(model, [torch.randn(2, 64)], recipe, weight="saturate")
        errors = [(m[0].dequantize_weight() - weight).square().sum() for m in (model, plain)]
        assert errors[0] < errors[1], errors
        assert ledger.quantized[0].weight == "int4:tensor:fp32"
        """,
    "exporter": """
        model = torch.nn.Sequential(torch.nn.Linear(64, 8))
        bs.quantize_(model, bs.Recipe("mxfp4"))
        bs.export.npz(model, "model.npz")
        arrays, state = numpy.load("model.npz"), model.state_dict()
        assert set(arrays) == set(state)
        assert all(torch.equal(torch.from_numpy(arrays[name]), state[name]) for name in state)
        [target] = [each for each in bs.export.targets() if each.name == "npz"]
        assert target.about.startswith("Write every tensor") and target.unavailable is None
        expect(ValueError, "bfloat16, which numpy lacks", bs.export.npz, model.bfloat16(), "b.npz")
        assert not os.path.exists("b.npz")
        """,
    "reader": """
        codes = torch.randint(-127, 128, (8, 64), dtype=torch.int8)
        scale, bias = torch.rand(8) + 0.5, torch.randn(8)
        arrays = {"0.weight.int8": codes, "0.weight.scale": scale, "0.bias": bias}
        numpy.savez("m.npz", **{name: each.numpy() for name, each in arrays.items()})
        values = codes * scale[:, None]
        with bs.checkpoint("m.npz") as found:
            assert found.producer == "numpy" and list(found) == ["0.weight", "0.bias"]
            assert torch.equal(found["0.weight"].dequantize(), values)
        model = bs.load(torch.nn.Sequential(torch.nn.Linear(64, 8)), "m.npz")
        assert torch.equal(model[0].qweight.codes, codes)
        assert torch.equal(model[0].dequantize_weight(), values)
        assert torch.equal(model[0].bias, bias)
        shown = CliRunner().invoke(app, ["inspect", "m.npz"]).stdout
        assert shown.startswith("numpy: its name ends in .npz"), shown
        done = CliRunner().invoke(app, ["convert", "m.npz", "ours", "--to", "blockscale"])
        assert done.exit_code == 0, done.stderr
        again = bs.load(torch.nn.Sequential(torch.nn.Linear(64, 8)), "ours")
        assert torch.equal(again[0].dequantize_weight(), values)
        """,
    "command": """
        run = lambda *args: CliRunner().invoke(app, ["spell", *args])
        assert run("mxfp4").stdout == "e2m1:group32:e8m0/floor" + chr(10)
        assert json.loads(run("bfp8", "--json").stdout)["spelling"] == "int8:group64:e8m0/floor"
        failed = run("mxfp5")
        assert failed.exit_code == 1 and "unknown format 'mxfp5'" in failed.stderr
        assert "  spell " in CliRunner().invoke(app, ["--help"]).stdout
        """,
    "op": """
        from blockscale.core.operand import Operand
        from blockscale.ops.op import OPS

        warnings.filterwarnings("ignore", "no cpu kernel runs largest")  # it has none
        x = torch.randn(5, 40)
        q = bs.quantize(x, "mxfp4")
        weight = Operand(q.packed, q.qparams.scale, None, None, str(q.format), q.size)
        expected = q.dequantize().abs().amax(-1)
        assert torch.equal(OPS["largest"](weight), expected)
        flat = torch.ops.blockscale.largest
        arguments = (q.packed, q.qparams.scale, None, None, "mxfp4", 40)
        assert torch.equal(flat(*arguments), expected)
        run = torch.compile(lambda *each: flat(*each), fullgraph=True, backend="aot_eager")
        assert torch.equal(run(*arguments), expected)
        """,
    "kernel": """
        from blockscale.kernels import registry

        asked = []
        bs.quantize(torch.randn(2, 8), "int8").dequantize()  # loads the kernels
        mine = registry.KERNELS["dequantize", "cpu"][-1]
        assert mine.run.__name__ == "dequantize_bytes"
        object.__setattr__(mine, "run", lambda *each, run=mine.run: asked.append(1) or run(*each))
        for dtype in (torch.float32, torch.bfloat16):
            for fmt in ("int8", "uint8:tensor:bf16", "int8_channel", "mxint8", "uint8"):
                q = bs.quantize(torch.randn(4, 64), fmt)
                before, y = len(asked), q.dequantize(dtype)
                assert (len(asked) > before) == (fmt in ("int8", "uint8:tensor:bf16")), fmt
                with bs.use("reference"):
                    assert torch.equal(y, q.dequantize(dtype))
        """,
    "backend": """
        from blockscale.ops.op import OPS

        assert bs.hardware().backends["numpy_arrays"] is None
        shown = CliRunner().invoke(app, ["hardware"])
        assert "numpy_arrays  runs" in shown.stdout
        codes = torch.arange(-4, 4, dtype=torch.int8)
        with bs.use("numpy_arrays"):
            assert torch.equal(OPS["pack"](codes, "int8"), codes)
            expect(RuntimeError, "no numpy_arrays kernel runs pack", OPS["pack"], codes, "int4")
        expected = OPS["pack"](codes, "int4")
        warnings.simplefilter("ignore")
        with bs.use("numpy_arrays", fallback=True):
            assert torch.equal(OPS["pack"](codes, "int4"), expected)
        """,
}
START = """
import copy, json, os, warnings
import numpy, torch
from typer.testing import CliRunner
import blockscale as bs
from blockscale.cli.app import app

def expect(kind, words, call, *args):
    try:
        call(*args)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")

assert bs.__file__ == os.path.join(os.getcwd(), "blockscale", "__init__.py"), bs.__file__
torch.manual_seed(0)
warnings.simplefilter("error")
"""

# The tests that enumerate a registry, and so hold for what is added to it. Patterns of paths.
GENERIC = {
    "named_format": ["tests/cli/commands/test_formats.py", "tests/bench/test_requests.py"],
    "element": ["tests/core/elements/test_*.py"],
    "observer": ["tests/calibration/observers/test_[de]*.py"],
    "profile": ["tests/core/profiles/test_every_profile.py"],
    "weight_algorithm": ["tests/calibration/algorithms/test_[er]*.py"],
    "exporter": ["tests/export/test_targets.py"],
    "reader": ["tests/export/checkpoints/test_opening.py"],
    "command": ["tests/cli/test_app.py"],
    "op": ["tests/ops/test_op.py", "tests/kernels/test_registry.py"],
    "kernel": ["tests/kernels/cpu/test_primitives.py"],
    "backend": ["tests/kernels/test_hardware.py"],
}

# Where tests ask a file's own test for something: that test.
TESTS = {
    "element": {
        "tests/core/elements/test_levels.py": """
            import re
            from dataclasses import dataclass
            from fractions import Fraction

            import torch

            from blockscale.core.elements import read_element
            from tests.support.oracle_elements import Integer


            @dataclass(frozen=True)
            class Levels(Integer):  # its codes count from the smallest value
                @property
                def codes(self):
                    return range(2 * self.qmax + 1)

                def decode(self, code):
                    return float(code - self.qmax)

                def encode(self, *args):
                    return super().encode(*args) + self.qmax


            def exact(name, options):
                count = re.fullmatch("levels([0-9]+)", name)
                if count is None:
                    return None
                top = int(count[1]) // 2
                bits, mbits = (2 * top).bit_length(), top.bit_length() - 1
                return Levels(bits, mbits, -top, top, Fraction(top), 0)


            def test_five_levels():
                values = read_element("levels5").decode(torch.arange(5, dtype=torch.uint8))
                assert values.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
            """,
    },
    "profile": {
        "tests/core/profiles/producers/test_acme.py": """
            import torch

            import blockscale as bs


            def test_codes_are_cut():
                q = bs.quantize(torch.tensor([[127.0, 1.9, -1.9]]), bs.profile("acme.int8"))
                assert q.codes.tolist() == [[127, 1, -1]]
            """,
    },
    "op": {
        "tests/ops/test_largest.py": """
            def samples(made):
                return {"largest": [(made.packed,)]}
            """,
    },
}


def example(name: str) -> Path:
    """The file of an example, or its folder."""
    file = EXAMPLES / f"{name}.py"
    return file if file.exists() else EXAMPLES / name


def goes_to(path: Path) -> str:
    """What the example itself says of its place in the tree."""
    source = path if path.is_file() else path / "__init__.py"
    return re.search(r"^# Goes to: +(blockscale/[\w/]+(?:\.py)?)", source.read_text(), re.M)[1]


def put(name: str, tree: Path) -> None:
    """Put an example in its place in a copy of the package."""
    source, target = example(name), tree / goes_to(example(name))
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    elif "\nLINE = " in source.read_text():  # one more line of a table of a file that is there
        line = source.read_text().partition('LINE = """\n')[2].partition('"""')[0]
        table = re.search(r"as one more line of (\w+)\.", source.read_text())[1]
        text = target.read_text()
        end = text.index("\n}\n", text.index(f"\n{table}: ")) + 1
        target.write_text(text[:end] + line + text[end:])
    else:
        assert not target.exists(), f"{target} is there: the example has lost its name"
        shutil.copy(source, target)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package; with what Python has compiled of it, which saves seconds."""
    shutil.copytree(ROOT / "blockscale", tmp_path / "blockscale", ignore=ignored)
    return tmp_path


def ignored(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(".")]


def test_every_example_is_used_and_says_where_it_goes() -> None:
    files = {path.stem for path in EXAMPLES.iterdir() if path.stem != "__pycache__"}
    assert files == USES.keys() == GENERIC.keys()
    for name in USES:
        source = example(name)
        head = (source if source.is_file() else source / "__init__.py").read_text()
        assert re.search(
            r'^# SPDX-.*\n"""[^"]+"""\n\n# Goes to:  .*\n(#  .*\n)*# Its test: ', head
        ), name
        place = ROOT / goes_to(source)
        assert place.parent.is_dir(), place


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("name", crossed(3, USES))
def test_an_example_works_in_its_place(name: str, tree: Path) -> None:
    put(name, tree)
    script = START + textwrap.dedent(USES[name])
    fresh.run(script, cwd=tree, check=True)


@pytest.mark.parametrize("name", USES)
def test_without_the_example_its_use_fails(name: str) -> None:
    """Twin of the above, in this process: none of the names that the examples add is there."""
    place = ROOT / goes_to(example(name))
    if name == "named_format":
        assert "int6" not in place.read_text()
    else:
        assert not place.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_what_enumerates_takes_it_in(name: str, tree: Path) -> None:
    for folder in ("tests", "docs"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)
    put(name, tree)
    for path, text in TESTS.get(name, {}).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(textwrap.dedent(text))
    tests = [str(path) for pattern in GENERIC[name] for path in sorted(tree.glob(pattern))]
    assert tests, GENERIC[name]
    reference = "ignore:no cpu kernel runs:UserWarning"  # what has no kernel says so, once
    options = ["-x", "--every-case", "-p", "no:cacheprovider", "-W", reference]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
