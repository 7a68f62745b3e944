"""Calls that are repeated give the bits of calls that are not: in Triton's interpreter, which here
stands in for compiled kernels that are given addresses."""

import ast
import ctypes
import gc
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels import registry
from blockscale.ops import primitives as P
from tests.kernels.cuda.equal import DEVICE
from tests.kernels.same import same

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(DEVICE != "cpu", reason="tests/gpu/test_replay.py does this on a GPU"),
]


class Compiled:
    """What Triton would have compiled: runs the interpreter on what lies at addresses."""

    packed_metadata = (4, 1, 0)

    def __init__(self, kernel: Any, options: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        self.kernel, self.function, self.options = kernel, id(self), options
        self.sizes = [_extent(each) for each in arguments]

    def run(self, *given: Any) -> None:
        grid, (stream, function, metadata, *hooks), arguments = given[:3], given[3:9], given[9:]
        assert (stream, function, metadata) == (7, self.function, self.packed_metadata)
        assert hooks == [None, None, None]
        there = [_at(*each) for each in zip(arguments, self.sizes, strict=True)]
        self.kernel[grid](*there, **self.options)


def _extent(argument: Any) -> tuple[int, torch.dtype] | None:
    if not isinstance(argument, Tensor):
        return None
    storage = argument.untyped_storage()
    return storage.nbytes() - (argument.data_ptr() - storage.data_ptr()), argument.dtype


def _at(argument: Any, extent: tuple[int, torch.dtype] | None) -> Any:
    """The numbers that begin at an address."""
    if extent is None:
        return argument
    size, dtype = extent
    memory = (ctypes.c_byte * (size - size % dtype.itemsize)).from_address(argument)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Any]:
    """A kernel of the CUDA backend by its op's name; CPU tensors count as a GPU's."""
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "tune.json"))
    assert registry.unavailable("cuda") is None
    from blockscale.kernels.cuda.replay import direct, recording, replay

    def start(self: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        names = self.kernel.arg_names[len(arguments) :]
        rest = [named.pop(name) for name in names]
        with _disable_current_modes():  # the interpreter itself uses tensors
            self.kernel[grid](*arguments, *rest, **named)
        replay.triton.knobs.runtime.launch_enter_hook(None)  # as Triton does where it compiles
        if direct.watch.by is not None:
            every = (*arguments, *rest)
            compiled = Compiled(self.kernel, named, every)
            direct.watch.by.launched(compiled, (*grid, 1, 1)[:3], every)

    def take(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = torch.empty_strided(shape, stride, dtype=dtype)
        found.untyped_storage().fill_(0x5A)  # nobody may count on zeros
        return found

    monkeypatch.setattr(direct.Direct, "_start", start)
    monkeypatch.setattr(recording, "take", take)
    monkeypatch.setattr(recording, "current_device", lambda: 0)
    monkeypatch.setattr(recording, "current_stream", lambda device: 7)
    monkeypatch.setattr(Tensor, "get_device", lambda tensor: 0)
    replay.forget()
    yield lambda name: registry.KERNELS[name, "cuda"][-1].run
    replay.forget()


def flat(result: Any) -> list[Tensor]:
    return result if isinstance(result, list) else [result]


def outcomes(op: Any) -> list[str]:
    """What became of each kind of call: "Recording", or why there is none."""
    return [each if isinstance(each, str) else type(each).__name__ for each in op.known.values()]


def check(op: Any, first: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    """Whether another call of the kind of the first comes out as one that is not repeated."""
    op.known.clear()
    for _ in range(2):
        op(*first)
    assert all(map(same, flat(op(*other)), flat(op.run(*other))))
    assert len(op.known) == 1
    return outcomes(op)[0]


def operand(codes: Tensor, qparams: QParams, fmt: str, size: int) -> Operand:
    return Operand(codes, qparams.scale, qparams.zero_point, qparams.outer, fmt, size)


def stored(x: Tensor, fmt: str) -> tuple[Tensor, QParams]:
    codes, *rest = P.choose_quantize.reference(x, fmt, None)
    return codes, P.from_list(rest, parse(fmt))


@pytest.mark.parametrize(
    "fmt",
    [
        *("mxfp4", "nvfp4", pytest.param("int8:token:fp32", marks=pytest.mark.slow)),
        pytest.param("int6:group7:e8m0/tosa", marks=pytest.mark.slow),
        pytest.param("uint4:group32:fp16:asym", marks=pytest.mark.slow),
    ],
)
def test_primitives(cuda: Callable[..., Any], fmt: str) -> None:
    fmt = str(parse(fmt))
    a, b, c = torch.randn(3, 2, 64).unbind()
    assert check(cuda("choose_quantize"), (a, fmt, None), (b, fmt, None)) == "Recording"
    assert check(cuda("choose_qparams"), (a, fmt), (b, fmt)) == "Recording"
    chosen = Quantizer(None, None, None, fmt)
    assert check(cuda("fake_quantize"), (a, chosen), (b, chosen)) == "Recording"
    assert check(cuda("straight_through"), (a, b, chosen), (b, c, chosen)) == "Recording"
    (p, u), (q, v) = stored(a, fmt), stored(b, fmt)
    assert check(cuda("quantize"), (a, quantizer(u, fmt)), (c, quantizer(v, fmt))) == "Recording"
    first, second = operand(p, u, fmt, 64), operand(q, v, fmt, 64)
    assert (
        check(cuda("dequantize"), (first, torch.bfloat16), (second, torch.bfloat16)) == "Recording"
    )
    assert check(cuda("unpack"), (p, fmt, 64), (q, fmt, 64)) == "Recording"


@pytest.mark.parametrize(
    ("m", "fmt", "input_fmt"),
    [
        (1, "int8:channel0:fp32", ""),
        (1, "nvfp4", ""),
        (18, "int4:group32:fp32", ""),
        (18, "mxfp4", "mxfp8"),
        (1, "mxfp4", "int8:token:fp32"),
        (18, "int8:channel0:fp32", "int8:token:fp32"),
        (3, "int8:tensor:fp32", "int8:tensor:fp32"),
    ],
)
def test_linear(cuda: Callable[..., Any], m: int, fmt: str, input_fmt: str) -> None:
    fmt, input_fmt = str(parse(fmt)), str(parse(input_fmt)) if input_fmt else ""
    calls = []
    for _ in range(2):
        x, w = torch.randn(m, 1, 128).bfloat16(), torch.randn(12, 128)
        codes, q = stored(w, fmt)
        bias = torch.randn(12).bfloat16()
        by = Quantizer(None, None, None, input_fmt)
        calls.append((x, operand(codes, q, fmt, 128), bias, by))
    assert check(cuda("linear"), *calls) == "Recording"


def rounded(x: Tensor) -> tuple[Any, ...]:
    return x, Quantizer(None, None, None, str(parse("mxfp4")))


class Counting:
    """In place of a kernel's function: how often Python was asked."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.calls = run, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.run(*arguments)


class Passing(TorchDispatchMode):
    """Sees every operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.fixture
def counted(cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Counting]:
    """fake_quantize, whose calls with [4, 96] float32 are recorded, and its function."""
    op = cuda("fake_quantize")
    op.known.clear()
    for _ in range(2):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["Recording"]
    counting = Counting(op.run)
    monkeypatch.setattr(op, "run", counting)
    return op, counting


@pytest.mark.parametrize(
    ("x", "asked"),
    [
        (torch.randn(4, 96), 0),
        (torch.randn(8, 96)[4:], 0),
        (nn.Parameter(torch.randn(4, 96), requires_grad=False), 0),
        (torch.randn(4, 96).bfloat16(), 1),
        (torch.randn(2, 2, 96), 1),
        (torch.randn(8, 96), 1),
        (torch.randn(96, 4).t(), 1),
        (torch.randn(4, 192)[:, :96], 1),
        (torch.randn(385)[1:].view(4, 96), 1),  # begins at 4 bytes
    ],
)
def test_what_is_of_another_kind(counted: tuple[Any, Counting], x: Tensor, asked: int) -> None:
    op, counting = counted
    expected = counting.run(*rounded(x))
    assert same(op(*rounded(x)), expected)
    assert counting.calls == asked


def test_other_arguments_are_other_kinds(counted: tuple[Any, Counting]) -> None:
    op, counting = counted
    x = torch.randn(4, 96)
    for i, fmt in enumerate(("mxint8", "int8:token:fp32")):
        op(x, Quantizer(None, None, None, str(parse(fmt))))
        assert counting.calls == i + 1
    scale = P.choose_qparams.reference(x, str(parse("mxfp4")))[0]
    op(x, Quantizer(scale, None, None, str(parse("mxfp4"))))
    assert counting.calls == 3


def test_those_who_watch_see_everything(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's hooks, of both kinds of knobs, and torch's modes."""
    from blockscale.kernels.cuda.replay import replay

    op, counting = counted
    x = torch.randn(4, 96)
    hooks = replay.triton.knobs.runtime.launch_enter_hook
    hooks.add(print)
    op(*rounded(x))
    hooks.remove(print)
    assert counting.calls == 1
    monkeypatch.setattr(replay.triton.knobs.runtime, "launch_exit_hook", print)
    op(*rounded(x))
    assert counting.calls == 2
    monkeypatch.setattr(replay.triton.knobs.runtime, "launch_exit_hook", None)
    with Passing():
        op(*rounded(x))
    assert counting.calls == 3
    op(*rounded(x))
    assert counting.calls == 3


def test_one_tensor_twice_is_no_recording(cuda: Callable[..., Any]) -> None:
    """Of x as its own gradient nobody could tell which of the two a kernel reads."""
    op = cuda("straight_through")
    op.known.clear()
    by = Quantizer(None, None, None, str(parse("mxfp4")))
    a, b = torch.randn(2, 4, 96).mul(4).unbind()
    for _ in range(3):
        assert same(op(a, a, by), op.run(a, a, by))
    assert outcomes(op) == ["called once"]
    for _ in range(3):
        assert same(op(a, b, by), op.run(a, b, by))
    assert outcomes(op) == ["Recording"]


def test_what_cannot_be_repeated_says_why(cuda: Callable[..., Any]) -> None:
    """Products in float32 ask torch's flags; rows of nothing; numbers that the host reads."""
    x, (codes, q) = torch.randn(2, 20), stored(torch.randn(7, 20), "int8:group5:fp32")
    call = (x, operand(codes, q, "int8:group5:fp32", 20), None, UNQUANTIZED)
    assert "mm" in check(cuda("linear"), call, call)
    nothing = rounded(torch.ones(0, 96))
    assert "empty" in check(cuda("fake_quantize"), nothing, nothing)


def test_a_kernel_that_went_another_way(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton starts past `direct` would be missing."""
    from blockscale.kernels.cuda.replay import replay

    op, counting = counted
    run = counting.run

    def stray(*arguments: Any) -> Tensor:
        result = run(*arguments)
        replay.triton.knobs.runtime.launch_enter_hook(None)
        return result

    monkeypatch.setattr(counting, "run", stray)
    op.known.clear()
    for _ in range(2):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["a launch that went past `direct`"]
    assert not replay.triton.knobs.runtime.launch_enter_hook.calls


def test_all_kernels_are_started_by_direct() -> None:
    """kernel[grid](…) stands nowhere else."""
    from blockscale.kernels import cuda

    found = []
    for file in sorted(Path(cuda.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                by = node.func.value
                if not (isinstance(by, ast.Call) and getattr(by.func, "id", "") == "direct"):
                    found.append(f"{file.name}: {ast.unparse(node.func)}")
    assert found == ["direct.py: found[whole]", "direct.py: self.kernel[grid]"]


def test_an_error_while_recording_leaves_no_trace(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockscale.kernels.cuda.replay import direct, replay

    op, counting = counted
    run = counting.run

    def failing(*arguments: Any) -> Tensor:
        run(*arguments)
        if counting.calls == 2:
            raise torch.OutOfMemoryError("planted")
        return run(*arguments)

    monkeypatch.setattr(counting, "run", failing)
    op.known.clear()
    op(*rounded(torch.randn(4, 96)))
    with pytest.raises(torch.OutOfMemoryError):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["called once"]
    assert direct.watch.by is None
    assert not replay.triton.knobs.runtime.launch_enter_hook.calls
    for _ in range(2):
        x = torch.randn(4, 96)
        assert same(op(*rounded(x)), run(*rounded(x)))
    assert outcomes(op) == ["Recording"]
    assert counting.calls == 3


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.new_empty(x.shape).copy_(x if x.sum().item() > 0 else -x),
        lambda x: x,
        lambda x: x[1:],
        lambda x: torch.full_like(x, 2.0).bernoulli_(0.0),
        lambda x: KEPT + x,
        lambda x: x.add_(1),
    ],
)
def test_what_no_kernel_may_do(cuda: Callable[..., Any], run: Callable[..., Any]) -> None:
    """Look at numbers, hand back what it was given or change it, draw, use what is not its own."""
    from blockscale.kernels.cuda.replay.replay import Replayed

    op = Replayed(run)
    for i in range(4):
        x = torch.full((4,), float(i))
        assert same(op(x), run(torch.full((4,), float(i))))
    assert outcomes(op) not in (["Recording"], ["called once"])


KEPT = torch.ones(4)


def test_operations_of_torch_are_repeated(cuda: Callable[..., Any]) -> None:
    """Also into memory of which the result is a view, and views that share it."""
    from blockscale.kernels.cuda.replay.replay import Replayed

    def run(x: Tensor, w: Tensor) -> list[Tensor]:
        y = torch.empty(6, 4, dtype=torch.bfloat16)
        torch.mm(x.view(6, 8), w.t(), out=y)
        z = torch.zeros_like(y).copy_(y[:, :1].expand(6, 4))
        halves = torch.empty(8, dtype=torch.bfloat16).copy_(z[0, 0].expand(8))
        bits = w[1:, 2:].view(torch.int16).t().to(torch.float32)
        both = torch.empty(8, dtype=torch.bfloat16).copy_(z[0, 1].expand(8).contiguous())
        zeros = torch.zeros([2, 3], dtype=torch.int32, device=x.device)
        views = [halves[4:], halves.view(2, 4)[:1], both.view(2, 4), both.view(4, 2)]
        return [y.reshape(2, 3, 4), z, bits, zeros, *views]

    calls = [(torch.randn(2, 3, 8).bfloat16(), torch.randn(4, 8).bfloat16()) for _ in range(2)]
    assert check(Replayed(run), *calls) == "Recording"


def test_memory_is_given_back_as_in_the_call_itself(
    cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of a large weight, one after another, take no more than two at once."""
    from blockscale.kernels.cuda.replay import recording
    from blockscale.kernels.cuda.replay.replay import Replayed

    def run(x: Tensor) -> Tensor:
        y = x.new_empty(x.shape)
        for i in range(8):
            piece = torch.empty(64, 64, dtype=torch.bfloat16).copy_(x[i].expand(64, 64))
            torch.mm(piece, piece.t(), out=y[i].expand(64, 64).clone()).view(-1)
            y[i : i + 1].copy_(piece[0])
        return y

    taken, take, held, most = [], recording.take, set(), [0]

    def watched(*arguments: Any) -> Tensor:
        found = take(*arguments)
        taken.append(found.shape)
        held.add(id(found))
        weakref.finalize(found, held.discard, id(found))
        most[0] = max(most[0], len(held))
        return found

    monkeypatch.setattr(recording, "take", watched)
    calls = [(torch.randn(8, 64).bfloat16(),) for _ in range(2)]
    assert check(Replayed(run), *calls) == "Recording"
    assert len(taken) == 9
    assert most == [2]  # the result, and a piece


def test_memory_is_given_back_while_it_is_recorded(cuda: Callable[..., Any]) -> None:
    """Otherwise that one call would take more than there is."""
    from blockscale.kernels.cuda.replay.replay import Replayed

    alive: set[int] = set()
    most = []

    def run(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for i in range(8):
            piece = x.new_empty(64, 64).copy_(x[i].expand(64, 64))
            alive.add(i)
            weakref.finalize(piece, alive.discard, i)
            most.append(len(alive))
            y[i : i + 1].copy_(piece[0])
            del piece
        return y

    assert check(Replayed(run), (torch.randn(8, 64),), (torch.randn(8, 64),)) == "Recording"
    assert max(most) == 1


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_at_once_lies_apart(seed: int) -> None:
    from blockscale.kernels.cuda.replay.recorder import Recorder
    from blockscale.kernels.cuda.replay.recording import Memory

    some = random.Random(seed)
    recorder, last = Recorder([]), {}
    for n in range(12):
        recorder.made[n] = Memory((some.randrange(1, 3000),), (1,), torch.uint8)
        recorder.born[n] = n // 2
        last[n] = n // 2 + some.randrange(4)
    lent, scratch = recorder._lent({3}, last)
    assert [n for n, _ in lent] == [n for n in range(12) if n != 3]
    assert all(at % 512 == 0 and at + recorder.made[n].nbytes <= scratch for n, at in lent)
    for n, at in lent:
        for m, other in lent:
            if n < m and recorder.born[m] <= last[n]:
                apart = at + recorder.made[n].nbytes <= other
                assert apart or other + recorder.made[m].nbytes <= at
    assert scratch < sum(-(-each.nbytes // 512) * 512 for each in recorder.made.values())


def test_recordings_keep_no_memory(cuda: Callable[..., Any]) -> None:
    op = cuda("linear")
    op.known.clear()
    codes, q = stored(torch.randn(24, 128), "int4:group32:fp32")
    call = torch.randn(3, 128), operand(codes, q, "int4:group32:fp32", 128)
    for _ in range(3):
        op(*call, None, UNQUANTIZED)
    assert outcomes(op) == ["Recording"]
    gone = [weakref.ref(each) for each in (call[0], codes, q.scale)]
    del call, codes, q
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_memory_is_bounded(cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.kernels.cuda.replay import replay

    monkeypatch.setattr(replay, "_MOST", 3)
    op = cuda("fake_quantize")
    for rows in range(1, 9):
        op(*rounded(torch.randn(rows, 32)))
        assert len(op.known) <= 3


def test_measured_choices_are_taken_at_once(counted: tuple[Any, Counting]) -> None:
    from blockscale.kernels.cuda import tables as tune

    op, counting = counted
    tune.record({"weight|x|y|3.6": {"1,2,3": ["dense"]}})
    op(*rounded(torch.randn(4, 96)))
    assert counting.calls == 1


def test_choices_that_are_measured_during_a_call(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided before is not kept."""
    from blockscale.kernels.cuda.replay import replay

    op, counting = counted
    run = counting.run

    def measuring(*arguments: Any) -> Tensor:
        replay.forget()
        return run(*arguments)

    op.known.clear()
    op(*rounded(torch.randn(4, 96)))
    monkeypatch.setattr(counting, "run", measuring)
    op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == []


def test_an_error_is_raised_each_time_and_leaves_no_trace(cuda: Callable[..., Any]) -> None:
    op = cuda("quantize")
    op.known.clear()
    x, wrong = torch.randn(4, 96), torch.zeros(4, 2, dtype=torch.uint8)
    for _ in range(4):
        with pytest.raises(ValueError, match=r"expected torch.uint8 of shape \(4, 3\)"):
            op(x, Quantizer(wrong, None, None, str(parse("mxfp4"))))
    assert outcomes(op) == ["called once"]


def test_how_float8_is_summed_is_asked_each_time(
    cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = cuda("linear")
    op.known.clear()
    fmt, input_fmt = "e4m3:channel0:fp32", "e4m3:token:fp32"
    codes, q = stored(torch.randn(16, 32), fmt)
    call = torch.randn(2, 32).bfloat16(), operand(codes, q, fmt, 32), None
    for i, exact in enumerate(("exact", "", "exact")):
        monkeypatch.setenv("BLOCKSCALE_FLOAT8_SUMS", exact)
        op(*call, Quantizer(None, None, None, input_fmt))
        assert len(op.known) == min(i + 1, 2)


def test_what_other_threads_do_is_not_recorded(cuda: Callable[..., Any]) -> None:
    """Neither their operations nor their launches, which do not count as strays, either."""
    from blockscale.kernels.cuda.replay import direct, replay

    seen = []

    def other() -> None:
        seen.append(direct.watch.by)
        replay.triton.knobs.runtime.launch_enter_hook(None)
        torch.randn(3).sum().item()

    def run(x: Tensor) -> Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return x.mul(2)

    op = replay.Replayed(run)
    assert check(op, (torch.ones(4),), (torch.randn(4),)) == "Recording"
    assert set(seen) == {None}
