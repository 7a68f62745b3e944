"""The torch ops: opcheck, compile, export, gradients, and what torch's wrappers do to them."""

import io
import math

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.ops import conv, embedding, linear  # noqa: F401 - their ops are in OPS
from blockscale.ops import primitives as P
from blockscale.ops.op import OPS
from tests.oracle import Oracle, QParams

K = 36  # divides into no block below, so the last block of a row is partial
FORMATS = (
    "int8:token:fp32",
    "int4:group16:fp16:full:recip",
    "uint4:group16:fp32:asym",
    "uint16:tensor:fp32:asym",
    "int6:group32:e8m0/floor",
    "e2m1:group16:e4m3",
    "e4m3:tile2x16:bf16",
    "e3m2:group8:(uint4:tensor:fp32)",
    "log4:channel0:pow2/nearest",
    "binary:channel1:fp32",
    "ternary:tensor:fp32",
    "int8:group16@0:fp32:stochastic",
)
GRADIENTS = ("fake_quantize", "linear", "conv")


def samples(fmt: str, dtype: torch.dtype = torch.float32) -> dict[str, list[tuple]]:
    """Arguments for each op; with and without what is optional."""
    torch.manual_seed(0)
    x, form = torch.randn(5, K).to(dtype), parse(fmt)
    seed = torch.tensor([3, 4]) if "stochastic" in fmt else None
    scale, outer, zero = P.from_list(P.choose_qparams.reference(x, fmt), form)
    given = (scale, zero, outer)
    packed = P.quantize.reference(x, *given, fmt, seed)
    weight = (packed, *given)
    own = "" if seed is not None else fmt  # ops of layers take no seed for their input
    bias, no, settings = torch.randn(5), (None, None, None), ([2], [1], [1], 1)
    return {
        "choose_qparams": [(x, fmt)],
        "choose_quantize": [(x, fmt, seed)],
        "quantize": [(x, *given, fmt, seed)],
        "dequantize": [(*weight, fmt, K, dtype)],
        "fake_quantize": [(x, *no, fmt, seed), (x, *given, fmt, seed)],
        "straight_through": [(x * 2, x, *no, fmt), (x * 2, x, *given, fmt)],
        "pack": [(P.unpack.reference(packed, fmt, K), fmt)],
        "unpack": [(packed, fmt, K)],
        "linear": [(x, *weight, None, fmt, *no, ""), (x[None], *weight, bias, fmt, *no, own)],
        "conv": [
            (x.reshape(5, 12, 3), *weight, bias, fmt, [5, 12, 3], *settings, *no, own),
            (x.reshape(1, 4, 9, 5)[:, :, :4], *weight, None, fmt, [5, 4, 3, 3], *([1, 1],) * 3, 1,
             *no, ""),
        ],
        "embedding": [(*weight, fmt, K, torch.tensor([[0, 4], [2, 2]]), dtype)],
    }  # fmt: skip


def bits(value) -> list:
    """Dtype, shape and bytes of every tensor: equality that knows NaN and -0."""
    tensors = [t.detach() for t in (value if isinstance(value, list | tuple) else [value])]
    data = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in tensors]
    return [(t.dtype, tuple(t.shape), each) for t, each in zip(tensors, data, strict=True)]


def leaf(arguments: tuple) -> tuple:
    """The arguments with a gradient wanted for the first tensor of floats."""
    first, *rest = arguments
    return (first.clone().requires_grad_() if first.is_floating_point() else first, *rest)


def test_every_op_is_sampled() -> None:
    assert OPS.keys() == samples(FORMATS[0]).keys(), "add the new op to samples()"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fmt", FORMATS)
def test_schema_and_fake(fmt: str, dtype: torch.dtype) -> None:
    for name, many in samples(fmt, dtype).items():
        for args in many:
            wanted = leaf(args) if name in GRADIENTS else args
            utils = ("test_schema", "test_faketensor", "test_autograd_registration")
            torch.library.opcheck(OPS[name].overload, wanted, test_utils=utils)
            with bs.use("reference"):  # tests/kernels compares kernels, some within a tolerance
                assert bits(OPS[name](*args)) == bits(OPS[name].reference(*args)), name


ONCE = [*zip(sorted(OPS), FORMATS, strict=False)]
REST = [(op, fmt) for op in sorted(OPS) for fmt in FORMATS if (op, fmt) not in ONCE]


@pytest.mark.parametrize(
    ("name", "fmt"), [*ONCE, *[pytest.param(*pair, marks=pytest.mark.slow) for pair in REST]]
)
def test_opcheck(name: str, fmt: str) -> None:
    for args in samples(fmt)[name]:
        wanted = leaf(args) if name in GRADIENTS else args
        torch.library.opcheck(OPS[name].overload, wanted)


def check_compile(name: str, fmt: str, backend: str) -> None:
    for args in samples(fmt)[name]:
        torch._dynamo.reset()
        op = OPS[name].overload
        run = torch.compile(lambda *a, op=op: op(*a), fullgraph=True, backend=backend)
        assert bits(run(*args)) == bits(op(*args))


@pytest.mark.parametrize("name", sorted(OPS))
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
        scale, outer, zero = P.from_list(parts, self.form)
        values = P.dequantize(packed, scale, zero, outer, self.fmt, K, torch.float32)
        weight = (packed, scale, zero, outer, None)
        y = P.fake_quantize(x, None, None, None, self.fmt, None)
        return packed, *parts, values, linear.linear(y, *weight, self.fmt, None, None, None, "")


@pytest.mark.parametrize("fmt", ["e2m1:group16:e4m3", "int8:tile2x16:e8m0/tosa"])
def test_one_graph_for_every_number_of_rows(fmt: str) -> None:
    torch._dynamo.reset()
    counter, module = CompileCounterWithBackend("aot_eager"), Everything(fmt)
    run = torch.compile(module.forward, fullgraph=True, backend=counter, dynamic=True)
    for rows in (40, 17, 64):  # two blocks of rows or more: torch specializes sizes of 1
        assert bits(run(x := torch.randn(rows, K))) == bits(module(x))
    assert counter.frame_count == 1


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


# (format, stored scale, outer, zero point) of a static scale of [1, 1]
GIVEN = [
    ("int8:tensor:fp32", [0.1], None, None),
    ("int4:tensor:fp32:full:toward_zero", [0.3], None, None),
    ("uint8:tensor:bf16:asym:nearest_away", [0.125], None, [100]),
    ("int3:tensor:fp32:asym:up", [1.7], None, [-3]),
    ("int8:tensor:e8m0/floor", [120], None, None),
    ("e4m3:tensor:fp32", [0.013], None, None),
    ("e5m2:tensor:pow2/ceil:down", [0.5], None, None),
    ("e2m1:tensor:e4m3:recip", [0x3C], [0.7], None),
    ("log4:tensor:fp32", [0.9], None, None),
    ("binary:tensor:fp32", [0.35], None, None),
    ("ternary:tensor:fp16:stochastic", [0.25], None, None),
]


def boundaries(oracle: Oracle, step: float, zero: int) -> Tensor:
    """Numbers on, just inside and just outside every place where the mask may change."""
    edges = [s * (float(oracle.levels) + n) - zero for s in (1, -1) for n in (-1, 0, 1)]
    steps = [e + d / 4 for e in edges for d in range(-7, 8)]
    steps += [e * (1 + d / 32) for e in edges for d in range(-12, 13)]
    x = (torch.tensor(steps, dtype=torch.float64) * step).float()
    ulps = [torch.nextafter(x, torch.tensor(s * math.inf)) for s in (1, -1)]
    odd = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 3e38, 1e-45])
    return torch.cat([x, *ulps, odd])[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("fmt", "scale", "outer", "zero"), GIVEN)
def test_gradient(fmt: str, scale, outer, zero, dtype: torch.dtype) -> None:
    """numerics.md, section 5, from the rational oracle: for a given and for a chosen scale."""
    oracle, form = Oracle(fmt), parse(fmt)
    given = QParams(scale, outer, zero)
    x = boundaries(oracle, oracle.steps(given, (1, 1))[0], zero[0] if zero else 0).to(dtype)
    for values, chosen in ((x, given), (x, None), (x[x.float().abs() < 1e30][None], None)):
        flat, shape = values.double().flatten().tolist(), tuple(values.shape)
        parts = chosen or oracle.choose(flat, shape)
        mask = torch.tensor(oracle.in_range(flat, shape, parts)).reshape(shape)
        stored = [None, None, None]
        if chosen:
            stored[0] = torch.tensor([scale]).to(form.scale.dtype)
            stored[1] = None if zero is None else torch.tensor([zero], dtype=torch.int32)
            stored[2] = None if outer is None else torch.tensor([outer])
        wanted, seed = values.clone().requires_grad_(), torch.tensor(9)
        gradient = torch.randn(shape).to(dtype)
        P.fake_quantize(wanted, *stored, fmt, seed).backward(gradient)
        assert bits(wanted.grad) == bits(torch.where(mask, gradient, 0.0))


@pytest.mark.parametrize("fmt", FORMATS)
def test_strides_change_nothing(fmt: str) -> None:
    wide = torch.randn(2 * K, 10)
    for x in (wide[::2, ::2].t(), wide[:, 3:8].t()[:, :K], wide[:1, :5].t().expand(5, K)):
        seed, plain = torch.tensor([1, 2]), x.contiguous()
        assert bits(P.choose_quantize(x, fmt, seed)) == bits(P.choose_quantize(plain, fmt, seed))
        grads = []
        for each in (x, plain):
            (wanted,) = leaf((each,))
            P.fake_quantize(wanted, None, None, None, fmt, seed).backward(wide.t()[:5, :K])
            grads.append(wanted.grad)
        assert bits(grads[0]) == bits(grads[1])


def test_torch_wrappers() -> None:
    """Autocast casts nothing, checkpoint draws the same numbers, vmap takes each sample alone."""
    x = torch.randn(4, 3, K, requires_grad=True)
    for fmt in ("int8:token:fp32", "e2m1:group16:e4m3", FORMATS[-1]):
        plain = bs.fake_quantize(x, fmt, seed=3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert bits(bs.fake_quantize(x, fmt, seed=3)) == bits(plain)
        grads = []
        for run in (lambda f, v: f(v), lambda f, v: checkpoint(f, v, use_reentrant=False)):
            torch.manual_seed(5)
            y = run(lambda v, fmt=fmt: v * bs.fake_quantize(v, fmt), x)
            grads.append(torch.autograd.grad(y.sum(), x)[0])
        assert bits(grads[0]) == bits(grads[1]), fmt
    each = torch.stack([bs.fake_quantize(v, "int8") for v in x])
    assert bits(torch.func.vmap(lambda v: bs.fake_quantize(v, "int8"))(x)) == bits(each)
    with pytest.raises(RuntimeError, match=r"[Bb]atching rule"):
        torch.func.vmap(lambda v: bs.quantize(v, "int8").dequantize())(x)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda v: bs.fake_quantize(v, "int8").sum())(x)
