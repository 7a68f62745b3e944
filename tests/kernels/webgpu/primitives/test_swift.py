"""What is quantized by the fastest kernels that were measured, and that they are right."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.primitives import choices, pieces, swift, swift_sums
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.primitives.pieces import STEP
from blockscale.kernels.webgpu.primitives.swift import Settings
from blockscale.ops import primitives as P
from tests.kernels.same import same
from tests.kernels.webgpu.equal import hard

FULL, HALF, OTHER = torch.float32, torch.bfloat16, torch.float16
MEASURED = {
    "values": [
        ("mxfp8", FULL, Settings(2, 2)), ("mxfp8", HALF, Settings(2)),
        ("mxfp6", FULL, Settings(2, 2)), ("mxfp6", HALF, Settings(2)),
        ("mxfp4", FULL, Settings(2, 2)), ("mxfp4", HALF, Settings(2)),
        ("mxint8", FULL, Settings(2, 2)), ("mxint8", HALF, Settings(2)),
        ("bfp8", FULL, Settings(4)), ("bfp8", HALF, Settings(2)),
        ("int8:group32:fp32", FULL, Settings(1)), ("int8:group32:fp32", HALF, Settings(2)),
        ("int8:group128:fp32", FULL, Settings(4)), ("int8:group128:fp32", HALF, Settings(2)),
        ("int4:group32:fp32", FULL, Settings(1)), ("int4:group32:fp32", HALF, Settings(2)),
        ("int4", FULL, Settings(4)), ("int4", HALF, Settings(2)),
        ("uint8:group32:fp32:asym", FULL, Settings(2)),
        ("uint8:group32:fp32:asym", HALF, Settings(1, 4)),
    ],
    "codes": [
        ("mxfp8", FULL, Settings(2)), ("mxfp8", HALF, Settings(2)),
        ("mxfp4", FULL, Settings(2)), ("mxfp4", HALF, Settings(2)),
        ("mxint8", FULL, Settings(2)), ("mxint8", HALF, Settings(1, 2)),
        ("bfp8", FULL, Settings(4)), ("bfp8", HALF, Settings(2)),
        ("int8:group32:fp32", FULL, Settings(2)), ("int8:group32:fp32", HALF, Settings(1, 2)),
        ("int8:group128:fp32", FULL, Settings(4)), ("int8:group128:fp32", HALF, Settings(2)),
        ("int4:group32:fp32", FULL, Settings(2)), ("int4:group32:fp32", HALF, Settings(1, 2)),
        ("int4", FULL, Settings(2)), ("int4", HALF, Settings(2)),
        ("uint8:group32:fp32:asym", FULL, Settings(2)),
        ("uint8:group32:fp32:asym", HALF, Settings(1, 4)),
    ],
}  # fmt: skip
EVERY = [(what, *each) for what, all_of_it in MEASURED.items() for each in all_of_it]


def made(x: torch.Tensor, fmt: str, what: str) -> list[torch.Tensor]:
    """What an op makes of numbers."""
    if what == "values":
        return [P.fake_quantize(x, Quantizer(None, None, None, str(parse(fmt))))]
    return P.choose_quantize(x, str(parse(fmt)), None)


def right(x: torch.Tensor, fmt: str, what: str) -> bool:
    """Whether that is what the reference makes of them."""
    with bs.use("reference"):
        expected = made(x, fmt, what)
    with bs.use("webgpu"):
        return all(same(a, b) for a, b in zip(made(x, fmt, what), expected, strict=True))


def unruly(blocks: int, block: int, dtype: torch.dtype) -> torch.Tensor:
    """Blocks [blocks, block] of zeros, tiny, huge and no numbers, one kind each; ties; and all
    of that together."""
    x = hard((blocks, block), dtype)
    plain = torch.randn(block, generator=torch.Generator().manual_seed(2)).to(dtype)
    x[1::8], x[2::16], x[10::16] = plain, 0.0, -0.0
    x[3::8] = (torch.arange(block) % 31 / 4 - 3.75).to(dtype)
    x[4::8] = plain * torch.tensor(1e-30).to(dtype)
    x[5::8] = plain * torch.tensor(1e30).to(dtype)
    x[6::8] = plain * torch.tensor(2e-39).to(dtype)
    x[7::16, block // 2], x[15::16, -1] = torch.inf, torch.nan
    return x


@pytest.fixture(autouse=True)
def _lavapipe_tells_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "_reach", lambda: 8)


def block_of(fmt: str) -> int:
    return geometry((4096,), parse(fmt).block).block


@pytest.mark.some(4)
@pytest.mark.parametrize(("what", "fmt", "dtype", "settings"), EVERY)
def test_what_was_measured(
    what: str, fmt: str, dtype: torch.dtype, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, block = form(str(parse(fmt))), block_of(fmt)
    # blocks that are not finite are found with the rest, or left for the end (swift/choose/float)
    assert lowered(f.format).poisons or lowered(f.format).scale == "fp32"
    monkeypatch.setattr(swift, "_reach", lambda: 32)
    for shape in ((3, 5 * block), (2, 3, 2, 128), (block,), (1, 1, 9 * block)):
        assert swift.settings(f, dtype, shape, what) == settings
    monkeypatch.setattr(swift, "_reach", lambda: 8)
    assert swift.settings(f, dtype, (3, 5 * block), what) in (settings, Settings(4), Settings(4, 2))
    for blocks in (1, 3, 64, 253):
        assert right(unruly(blocks, block, dtype), fmt, what)
    assert right(hard((2, 3, 4, 128), dtype), fmt, what)


def beside_ties(levels: int, block: int, from_zero: bool) -> torch.Tensor:
    """Blocks whose quotients are ties and their neighbours, of steps that are any numbers.

    from_zero: of no numbers below 0 but, in every other block, ties at their lower ends
    """
    made = torch.Generator().manual_seed(3)
    top = torch.rand(96, 1, generator=made) + 1
    step = top / levels
    least = 0 if from_zero else -levels
    half = torch.randint(least, levels, (96, block - 1), generator=made) + 0.5
    if from_zero:
        top[::2] -= step[::2] * 40.5
        half[::2] = half[::2].clamp(max=levels - 42)
        half[::2, 0] = -40.5
    tie = (half.double() * step.double()).float()
    beside = torch.randint(-2, 3, tie.shape, generator=made, dtype=torch.int32)
    return torch.cat([top, (tie.view(torch.int32) + beside).view(torch.float32)], 1)


@pytest.mark.parametrize("what", ["values", "codes"])
@pytest.mark.parametrize(
    ("fmt", "levels"), [("int8:group32:fp32", 127), ("int4", 7), ("uint8:group32:fp32:asym", 255)]
)
def test_divisions_that_are_ulps_off(
    fmt: str, levels: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As WGSL allows; subnormals are flushed, too."""
    monkeypatch.setattr(choices, "on_device", lambda features: {"hardware": "flushing"})
    block = block_of(fmt)
    assert right(unruly(64, block, FULL), fmt, what)
    assert right(beside_ties(levels, block, "asym" in fmt), fmt, what)


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize(("what", "fmt"), [("values", "mxfp8"), ("codes", "mxfp4")])
def test_the_last_workgroup_is_seldom_full(what: str, fmt: str, over: int) -> None:
    assert right(unruly(2 * 128 + over, 32, FULL), fmt, what)


@pytest.mark.parametrize("what", ["values", "codes"])
@pytest.mark.parametrize(
    ("fmt", "shape", "dtype"),
    [
        ("mxfp8", (4, 64), OTHER),  # not measured: these six
        ("e2m3:group32:e8m0/floor", (4, 64), HALF),
        ("int8:group32:bf16", (4, 64), FULL),
        ("e4m3:group32:e8m0/floor:stochastic", (4, 64), FULL),
        ("e5m2:group32:e8m0/floor", (4, 64), FULL),
        ("e4m3:group16:e8m0/floor", (4, 64), FULL),
        ("mxfp8", (4, 60), FULL),  # cut off
        ("mxfp8", (60,), FULL),
        ("mxfp8", (1,), FULL),
        ("mxfp8", (16,), FULL),
        ("mxfp4", (3, 24), HALF),
    ],
)
def test_all_else_stays_where_it_was(
    what: str, fmt: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert swift.settings(form(str(parse(fmt))), dtype, shape, what) is None


def test_given_scales_and_nothing() -> None:
    x = hard((4, 64), FULL)
    by = P.from_list(P.choose_qparams(x, "mxfp8"), parse("mxfp8"))
    by = Quantizer(by.scale + 1, None, None, str(parse("mxfp8")))
    with bs.use("reference"):
        expected = P.fake_quantize(x, by), P.quantize(x, by)
    with bs.use("webgpu"):
        assert same(P.fake_quantize(x, by), expected[0]) and same(P.quantize(x, by), expected[1])
    assert right(torch.ones(0, 32), "mxfp8", "values") and right(
        torch.ones(0, 32), "mxfp8", "codes"
    )


@pytest.mark.parametrize("what", ["values", "codes"])
def test_tensors_in_pieces(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "largest", lambda bits, step=STEP: STEP // step * step)
    x = hard((2, STEP + 512), FULL)
    assert swift.settings(form("mxfp8"), FULL, tuple(x.shape), what) is not None
    assert right(x, "mxfp8", what)


def test_a_team_is_within_reach_however_many_blocks_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f, shape = form("int8:group128:fp32"), (4, 256)
    for units, blocks, fits in ((2, 1, False), (2, 2, False), (2, 4, False), (4, 2, True)):
        monkeypatch.setitem(
            swift._SETTINGS["codes"], ("int8:group128:fp32", FULL), Settings(units, blocks)
        )
        found = swift.settings(f, FULL, shape, "codes")
        assert found == (Settings(units, blocks) if fits else Settings(4))


def test_a_device_has_to_have_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    f, shape = form("mxfp8"), (4, 64)
    assert swift.settings(f, FULL, shape, "codes") is not None
    monkeypatch.setattr(swift, "_reach", lambda: 2)
    assert swift.settings(f, FULL, shape, "codes") is None
    assert swift.settings(f, FULL, shape, "values") is not None
    with monkeypatch.context() as without:
        without.setattr(gpu(), "features", frozenset())
        assert swift.settings(f, FULL, shape, "values") is None
    with monkeypatch.context() as without:
        without.setattr(swift_sums, "refusal", lambda: "left out")
        assert swift.settings(f, FULL, shape, "values") is None
    with monkeypatch.context() as without:
        without.setattr(swift, "largest", lambda bits, step: 0)
        assert swift.settings(f, FULL, shape, "values") is None
    monkeypatch.setenv(ARITHMETIC, "native")
    assert swift.settings(f, FULL, shape, "values") is None


def test_neighbours_of_a_subgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 4 <= swift._reach() <= 32
