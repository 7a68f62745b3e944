# SPDX-License-Identifier: BSD-3-Clause
"""Who computes an op: kernels are asked by name, pinned by `use`, never hidden or swallowed."""

import pathlib
import threading
import warnings

import pytest
import torch

import blockscale as bs
from blockscale import kernels
from blockscale.core.parse import parse
from blockscale.kernels import registry
from blockscale.kernels.registry import ByFormats, find, kernel, use
from blockscale.ops.op import OPS
from tests.support.op_samples import bits, samples

FMT = "int8:token:fp32"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cpu and another backend without kernels, and cuda that cannot run; nothing warned yet."""
    reasons = {"cuda": "torch was built without CUDA"}
    monkeypatch.setattr(registry, "backends", lambda: ("cpu", "cuda", "other"))
    monkeypatch.setattr(registry, "_takes", lambda backend, device: backend in ("other", device))
    monkeypatch.setattr(registry, "_settled", {})
    monkeypatch.setattr(registry, "_known_pairs", set())
    monkeypatch.setattr(registry, "KERNELS", {})
    monkeypatch.setattr(registry, "_warned", set())
    monkeypatch.setattr(registry, "unavailable", reasons.get)


def register(op: str, run, backend: str = "cpu", supports=lambda formats, arguments: True) -> None:
    assert kernel(op, backend=backend, supports=supports)(run) is run


def chosen() -> str:
    return registry.choice().backend


def test_every_op_asks_for_a_kernel_of_its_own_name() -> None:
    """With the op's own arguments and all formats; what it returns is the op's result."""
    for name, many in samples(FMT).items():
        for args in many:
            asked, ran = [], []

            def supports(formats, arguments, asked=asked) -> bool:
                asked.append((formats, arguments))
                return True

            def run(*arguments, name=name, ran=ran):
                ran.append(arguments)
                return OPS[name].reference(*arguments)

            registry.KERNELS.clear()
            register(name, run, supports=supports)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the other ops have no kernel
                result = OPS[name](*args)
            with use("reference"):
                assert bits(result) == bits(OPS[name](*args))
            assert len(asked) == len(ran) == 1, name
            spelled = OPS[name].signature.spellings(*(full := complete(name, args)))
            assert asked[0][0] == tuple(parse(each) for each in spelled if each)
            assert set(asked[0][0]) == {parse(FMT)}
            for seen in (asked[0][1], ran[0]):
                assert same_arguments(seen, full), name


def complete(name: str, args: tuple) -> tuple:
    """The arguments, however few the caller wrote."""
    return (*args, *OPS[name].signature.defaults[len(args) :])


def same_arguments(seen: tuple, expected: tuple) -> bool:
    """Whether they are the same, tensors compared by value, operands by their parts."""
    return len(seen) == len(expected) and all(
        torch.equal(a, b)
        if isinstance(b, torch.Tensor)
        else (same_arguments(a, b) if isinstance(b, tuple) else a == b)
        for a, b in zip(seen, expected, strict=True)
    )


def test_public_functions_use_kernels() -> None:
    called = []
    for name in OPS:

        def run(*arguments, name=name):
            called.append(name)
            return OPS[name].reference(*arguments)

        register(name, run)
    x = torch.randn(2, 8, requires_grad=True)
    q = bs.quantize(x, FMT)
    q.dequantize()
    bs.fake_quantize(x, FMT).sum().backward()
    expected = ["choose_quantize", "dequantize", "fake_quantize", "straight_through"]
    assert called == expected
    with use("reference"):
        bs.quantize(x, FMT).dequantize()
        bs.fake_quantize(x, FMT).sum().backward()
    assert called == expected


def test_the_last_registered_that_supports_it_wins() -> None:
    for n in (1, 2, 3):
        register("pack", lambda *_, n=n: torch.tensor(n), supports=lambda f, a, n=n: n < 3)
    assert bs.ops.primitives.pack(torch.zeros(1, 1, dtype=torch.int8), FMT).item() == 2
    assert find("pack", (FMT,), "cpu", ()) is registry.KERNELS["pack", "cpu"][1]
    with pytest.warns(UserWarning, match="no other kernel runs unpack"):
        assert find("unpack", (FMT,), "other", ()) is None


def test_falling_back_warns_once_for_each_op_and_format() -> None:
    x = torch.randn(2, 8)
    for fmt in (FMT, "int4:token:fp32"):
        with pytest.warns(UserWarning) as caught:
            bs.quantize(x, fmt)
            bs.quantize(x, fmt)
            bs.quantize(x[:1], fmt)
        assert [str(w.message) for w in caught] == [
            f"no cpu kernel runs choose_quantize for {fmt} on these tensors: using the reference, "
            f"which is slow"
        ]
    with pytest.warns(UserWarning, match="runs dequantize for int8"):
        bs.quantize(x, FMT).dequantize()


def test_a_backend_that_cannot_run_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ops and formats; backends that this version does not have are no news."""
    monkeypatch.setattr(registry, "unavailable", lambda backend: "it was not built")
    with pytest.warns(UserWarning) as caught:
        bs.quantize(torch.randn(2, 8), FMT).dequantize()
        bs.quantize(torch.randn(2, 8), "int4:token:fp32")
    assert [str(w.message) for w in caught] == [
        "the slow reference runs instead of cpu kernels: it was not built"
    ]
    for device in ("webgpu", "meta"):
        assert find("pack", (FMT,), device, ()) is None


def test_a_pinned_backend_does_not_fall_back() -> None:
    x = torch.randn(2, 8)
    register("choose_quantize", lambda *_: None, supports=lambda formats, arguments: False)
    with (
        use("cpu"),
        pytest.raises(RuntimeError, match=r"use\('cpu'\): no cpu kernel runs choose_q"),
    ):
        bs.quantize(x, FMT)
    with use("other"), pytest.raises(RuntimeError, match=f"no other kernel runs .* for {FMT}"):
        bs.quantize(x, FMT)
    with use("cpu"), use("reference"):
        assert bs.quantize(x, FMT).shape == x.shape


def test_a_preferred_backend_falls_back() -> None:
    """To the kernels of the device, then to the reference; each with one warning."""
    x, ran = torch.randn(2, 8), []

    def run(name: str):
        return lambda *args: ran.append(name) or OPS["choose_quantize"].reference(*args)

    register("choose_quantize", run("other"), "other", lambda formats, _: formats[0].bits == 8)
    register("choose_quantize", run("cpu"))
    with use("other", fallback=True):
        bs.quantize(x, FMT)
        with pytest.warns(UserWarning) as caught:
            bs.quantize(x, "int4:token:fp32")
            bs.quantize(x, "int4:token:fp32")
    assert ran == ["other", "cpu", "cpu"]
    assert [str(w.message) for w in caught] == [
        "no other kernel runs choose_quantize for int4:token:fp32 on these tensors: using "
        "'auto' instead"
    ]
    with use("cpu", fallback=True), pytest.warns(UserWarning) as caught:
        bs.fake_quantize(x, FMT)
    assert [str(w.message) for w in caught] == [
        f"no cpu kernel runs fake_quantize for {FMT} on these tensors: using the reference, which "
        f"is slow"
    ]
    with (
        pytest.warns(UserWarning, match="cannot use 'cuda': torch was built without CUDA"),
        use("cuda", fallback=True),
    ):
        bs.quantize(x, FMT)
    assert ran[3:] == ["cpu"]


def test_a_preferred_backend_is_not_given_what_lies_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_takes", lambda backend, device: backend == device)
    register("pack", lambda *_: pytest.fail("a tensor of another device"), "other")
    register("pack", lambda *_: torch.tensor(7))
    with use("other", fallback=True):
        assert bs.ops.primitives.pack(torch.zeros(1, 1, dtype=torch.int8), FMT).item() == 7


def test_kernels_that_look_at_formats_alone_are_asked_once() -> None:
    asked = []

    def supports(formats) -> bool:
        asked.append(formats)
        return formats[0].bits == 8

    register("pack", lambda *_: torch.tensor(1), supports=ByFormats(supports))
    codes = torch.zeros(1, 1, dtype=torch.int8)
    for _ in range(3):
        assert bs.ops.primitives.pack(codes, FMT).item() == 1
    assert asked == [(parse(FMT),)]
    with pytest.warns(UserWarning, match="no cpu kernel runs pack for int4"):
        bs.ops.primitives.pack(codes, "int4:token:fp32")
    assert len(asked) == 2
    register("pack", lambda *_: torch.tensor(2))  # later ones come first, also for what was settled
    assert bs.ops.primitives.pack(codes, FMT).item() == 2


def test_backends_are_the_folders_that_exist(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.undo()
    assert set(registry.backends()) == {
        p.parent.name for p in pathlib.Path(kernels.__file__).parent.glob("*/__init__.py")
    }
    folder = tmp_path / "abacus"
    folder.mkdir()
    (folder / "__init__.py").write_text("def available():\n    return 'its beads are lost'\n")
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(tmp_path)])
    registry.backends.cache_clear()
    try:
        assert "abacus" in registry.backends()
        with (
            pytest.raises(RuntimeError, match="cannot use 'abacus': its beads are lost"),
            use("abacus"),
        ):
            pass
    finally:
        monkeypatch.undo()
        registry.backends.cache_clear()


def test_impossible_and_unknown_backends() -> None:
    for backend in ("gpu", "", "CPU", "torch"):
        words = f"unknown backend {backend!r}; choose from auto, reference, cpu, cuda, other"
        with pytest.raises(ValueError, match=words), use(backend):
            pass
    with (
        pytest.raises(RuntimeError, match="cannot use 'cuda': torch was built without"),
        use("cuda"),
    ):
        pass
    with pytest.raises(ValueError, match="unknown backend 'vulkan'; choose from cpu, cuda, other"):
        kernel("pack", backend="vulkan", supports=lambda *_: True)
    assert chosen() == "auto"


def test_use_nests_and_is_restored_by_exceptions() -> None:
    with pytest.raises(KeyError), use("cpu"):
        with use("reference"):
            assert chosen() == "reference"
            with use("auto"):
                assert chosen() == "auto"
            assert chosen() == "reference"
        assert chosen() == "cpu"
        with pytest.raises(ValueError, match="unknown backend"), use("nonsense"):
            pass
        assert chosen() == "cpu"
        raise KeyError
    assert chosen() == "auto"

    @use("reference")
    def decorated() -> str:
        return chosen()

    assert [decorated(), decorated(), chosen()] == ["reference", "reference", "auto"]


def test_threads_choose_for_themselves() -> None:
    """A `with` speaks of its own thread: no other one is switched under its feet."""
    inside, done, seen = threading.Event(), threading.Event(), {}

    def other() -> None:
        seen["at start"] = chosen()
        with use("cpu"):
            inside.set()
            assert done.wait(10)
            seen["pinned"] = chosen()
        seen["after"] = chosen()

    with use("reference"):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        assert chosen() == "reference"
        done.set()
        thread.join()
        assert chosen() == "reference"
    assert seen == {"at start": "auto", "pinned": "cpu", "after": "auto"}


def test_exceptions_of_kernels_are_not_swallowed() -> None:
    def broken(*arguments):
        raise ZeroDivisionError("a bug in the kernel")

    for op in ("choose_quantize", "fake_quantize"):
        register(op, broken)
    x = torch.randn(2, 8)
    for choice in ("auto", "cpu"):
        for function in (bs.quantize, bs.fake_quantize):
            with use(choice), pytest.raises(ZeroDivisionError, match="a bug in the kernel"):
                function(x, FMT)
    registry.KERNELS.clear()
    register("choose_quantize", lambda *_: [], supports=broken)
    with pytest.raises(ZeroDivisionError):
        bs.quantize(x, FMT)


def test_shapes_are_the_reference_even_where_a_backend_is_pinned() -> None:
    """Meta tensors and tracing hold no data that a kernel could read."""
    for name in OPS:
        register(name, lambda *_: pytest.fail("a kernel was given a tensor without data"))
    with use("cpu"):
        q = bs.quantize(torch.empty(3, 8, device="meta"), FMT)
        assert q.dequantize().shape == (3, 8)
        with torch._subclasses.FakeTensorMode():
            assert bs.fake_quantize(torch.empty(3, 8), FMT).shape == (3, 8)
