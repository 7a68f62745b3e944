# SPDX-License-Identifier: BSD-3-Clause
"""Every op as torch sees it: opcheck, compile, export; calls are in tests/support/op_samples.py."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.ops import linear
from blockscale.ops import primitives as P
from blockscale.ops.op import OPS, _remembering
from tests.support.op_samples import FORMATS, K, bits, samples
from tests.support.some import crossed

# A new op has no kernel yet, and says so: here it is the op that is tested.
pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")

GRADIENTS = ("fake_quantize", "linear", "conv", "conv_transpose")


def leaf(arguments: tuple) -> tuple:
    """The arguments with a gradient wanted for the first, if it is a tensor of floats."""
    first, *rest = arguments
    floats = isinstance(first, Tensor) and first.is_floating_point()
    return (first.clone().requires_grad_() if floats else first, *rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "dtype"), crossed(3, FORMATS, [torch.float32, torch.bfloat16, torch.float16]), ids=str
)
def test_schema_and_fake(fmt: str, dtype: torch.dtype) -> None:
    for name, many in samples(fmt, dtype).items():
        for args in many:
            wanted = leaf(args) if name in GRADIENTS else args
            utils = ("test_schema", "test_faketensor", "test_autograd_registration")
            flat = OPS[name].flatten(*wanted)
            torch.library.opcheck(OPS[name].overload, flat, test_utils=utils)
            with bs.use("reference"):  # tests/kernels compares kernels, some within a tolerance
                assert bits(OPS[name](*args)) == bits(OPS[name].reference(*args)), name


def told(value: object) -> object:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return [told(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.slow
@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_shapes_that_are_asked_twice(fmt: str) -> None:
    for name, many in samples(fmt).items():
        for args in many:
            expected = told(OPS[name].reference(*args))
            flat = OPS[name].flatten(*args)
            for _ in range(2):  # each of a mode of its own
                mode = FakeTensorMode()
                fakes = pytree.tree_map_only(Tensor, mode.from_tensor, flat)
                with mode:
                    found = OPS[name].overload(*fakes)
                assert told(found) == expected, name
                assert all(e.fake_mode is mode for e in pytree.tree_leaves(found)), name


def test_a_shape_is_remembered_by_all_that_it_depends_on() -> None:
    remembered, mode, runs = _remembering(), FakeTensorMode(), []

    def ask(x: Tensor, *more: object, error: bool = False) -> object:
        def run() -> Tensor:
            runs.append(x)
            if error:
                raise ValueError("no shape")
            return x.new_empty(x.shape, dtype=torch.int8)

        return told(remembered((x, *more), run))

    with mode:
        x = torch.empty(4, 6)
        others = [
            torch.empty(6, 4),
            torch.empty(6, 4).t(),
            x.half(),
            torch.empty(4, 6, device="meta"),
        ]
    for _ in range(2):
        assert ask(x, "int8", 1) == ((4, 6), (6, 1), torch.int8, torch.device("cpu"))
    assert len(runs) == 1
    for args in [*((each, "int8", 1) for each in others), (x, "int4", 1), (x, "int8", True),
                 (x, "int8", 1, None), (x, "int8", [1])]:  # fmt: skip
        before = len(runs)
        ask(*args)
        assert len(runs) == before + 1, args
    with pytest.raises(ValueError, match="no shape"):
        ask(x, "error", error=True)
    ask(x, "error")  # is asked again
    before = len(runs)
    for _ in range(2):
        ask(torch.empty(4, 6))  # a tensor with numbers
    assert len(runs) == before + 2


def test_a_free_size_is_not_remembered() -> None:
    remembered, runs = _remembering(), []
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(
        torch.empty(4, 6), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    )
    for _ in range(2):
        remembered((x,), lambda: runs.append(x))
    assert len(runs) == 2


ONCE = [*zip(sorted(OPS), FORMATS, strict=False)]
REST = [(op, fmt) for op in sorted(OPS) for fmt in FORMATS if (op, fmt) not in ONCE]


@pytest.mark.slow
@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("name", "fmt"), [*ONCE, *[pytest.param(*pair, marks=pytest.mark.slow) for pair in REST]]
)
def test_opcheck(name: str, fmt: str) -> None:
    for args in samples(fmt)[name]:
        wanted = leaf(args) if name in GRADIENTS else args
        torch.library.opcheck(OPS[name].overload, OPS[name].flatten(*wanted))


def check_compile(name: str, fmt: str, backend: str) -> None:
    for args in samples(fmt)[name]:
        torch._dynamo.reset()
        op = OPS[name]
        flat = op.flatten(*args)
        overload = op.overload
        run = torch.compile(lambda *a, op=overload: op(*a), fullgraph=True, backend=backend)
        assert bits(run(*flat)) == bits(op(*args))


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("name", crossed(2, sorted(OPS)))
def test_compile(name: str) -> None:
    for fmt in (FORMATS[2], FORMATS[5]):
        check_compile(name, fmt, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPS))
def test_compile_by_inductor(name: str) -> None:
    with torch._inductor.utils.fresh_cache():  # its key does not know our shape rules
        check_compile(name, FORMATS[7], "inductor")


class Everything(nn.Module):
    def __init__(self, fmt: str):
        super().__init__()
        self.fmt, self.form = fmt, parse(fmt)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        packed, *parts = P.choose_quantize(x, self.fmt, None)
        scale, outer, zero = P.from_list(parts, self.form)[:3]
        weight = Operand(packed, scale, zero, outer, self.fmt, K)
        values = P.dequantize(weight, torch.float32)
        y = P.fake_quantize(x, Quantizer(None, None, None, self.fmt, None))
        return packed, *parts, values, linear.linear(y, weight)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["e2m1:group16:e4m3", "int8:tile2x16:e8m0/tosa"])
def test_one_graph_for_every_number_of_rows(fmt: str) -> None:
    torch._dynamo.reset()
    counter, module = CompileCounterWithBackend("aot_eager"), Everything(fmt)
    run = torch.compile(module.forward, fullgraph=True, backend=counter, dynamic=True)
    for rows in (40, 17, 64):  # two blocks of rows or more: torch specializes sizes of 1
        assert bits(run(x := torch.randn(rows, K))) == bits(module(x))
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt", ["e2m1:group16:e4m3", "uint4:channel1:fp32:asym", "int8:tile2x16:bf16"]
)
def test_export_save_load(fmt: str) -> None:
    """For any number of rows, also where blocks run along them (attention over a cache)."""
    module, file = Everything(fmt), io.BytesIO()
    rows = torch.export.Dim("rows", min=17, max=99)
    program = torch.export.export(module, (torch.randn(40, K),), dynamic_shapes={"x": {0: rows}})
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for count in (17, 40, 96):
        x = torch.randn(count, K)
        assert bits(loaded(x)) == bits(module(x))
