# SPDX-License-Identifier: BSD-3-Clause
"""Choices of the CPU's kernels: they change no bit, and tables of them are read with care."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cpu import _native, tuned
from tests.kernels.cpu.equal import settings
from tests.support import fresh
from tests.support.same import same

BOUNDS = _native.tuning_bounds()
LEAST = {name: least for name, (_, least, _) in BOUNDS.items()}
MOST = {name: most for name, (_, _, most) in BOUNDS.items()}
FORMATS = ("int8", "int8_channel", "mxfp4", "nvfp4", "int8:tile32x32:fp32", "int4:group32@0:fp32")
FLOATS = ("mxfp4", "mxfp8", "int4:group32:fp32")
PAIRS = (("int8_channel", "int8_token"), ("mxint8", "mxint8"), ("int4:group32:fp32", "int8_token"))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = _native.tuning()
    yield
    _native.set_tuning(before)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "some" / "tune.json"
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(path))
    return path


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in _native.isas()[:-1]]


@pytest.mark.parametrize("given", [LEAST, MOST], ids=["least", "most"])
@pytest.mark.parametrize("isa", [*SLOW, _native.isas()[-1]])
def test_the_extremes_change_no_bit_of_a_primitive(isa: str, given: dict) -> None:
    threads = 2 if given is LEAST else 1
    x = torch.randn(3, 64, 320, generator=torch.Generator().manual_seed(0))
    with settings(isa, threads):
        _native.set_tuning(given)
        for fmt in FORMATS:
            q = bs.quantize(x, fmt)
            with bs.use("reference"):
                expected = bs.quantize(x, fmt)
            assert same(q.packed, expected.packed), fmt
            assert same(q.dequantize(), expected.dequantize()), fmt
            with bs.use("reference"):
                fake = bs.fake_quantize(x, fmt)
            assert same(bs.fake_quantize(x, fmt), fake), fmt


def _linear(weight: str, given: str | None, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[-1], 75))
    bs.quantize_(model, bs.Recipe(weight=weight, input=given))
    return model(x).detach()


@pytest.mark.some(3)
@pytest.mark.parametrize("rows", [1, 7, 97, 200])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_extremes_change_no_bit_of_a_product_of_integers(pair: tuple, rows: int) -> None:
    x = torch.randn(rows, 352, generator=torch.Generator().manual_seed(2))
    for isa in _native.isas():
        with settings(isa, threads=1):
            found = []
            for given in ({}, LEAST, MOST):
                _native.set_tuning(given)
                found.append(_linear(*pair, x))
        assert same(found[0], found[1]) and same(found[0], found[2]), isa


@pytest.mark.parametrize("fmt", FLOATS)
def test_products_of_floats_keep_to_their_bound(fmt: str) -> None:
    """Other orders of their sums are within what the op allows; without those no bit changes."""
    x = torch.randn(70, 352, generator=torch.Generator().manual_seed(3))
    exact = [{k: v for k, v in each.items() if not k.endswith("_float")} for each in (LEAST, MOST)]
    with bs.use("cpu"):
        usual = _linear(fmt, None, x)
        for given in exact:
            _native.set_tuning(given)
            assert same(_linear(fmt, None, x), usual)
        for given in (LEAST, MOST):
            _native.set_tuning(given)
            torch.testing.assert_close(_linear(fmt, None, x), usual, rtol=1e-5, atol=1e-4)


def test_what_is_set_is_read_and_unknown_or_excessive_numbers_change_nothing() -> None:
    _native.set_tuning({"weight_bytes": 5})
    now = _native.tuning()
    assert now == {name: usual for name, (usual, _, _) in BOUNDS.items()} | {"weight_bytes": 5}
    for wrong in (
        {"nonsense": 1},
        {"unit_elements": 0},
        {"panel_rows": 31},
        {"few_of_books_float": 65},
    ):
        with pytest.raises(ValueError, match="set_tuning"):
            _native.set_tuning({"rows_bytes": 1} | wrong)
        assert _native.tuning() == now
    _native.set_tuning({})
    assert _native.tuning() == {name: usual for name, (usual, _, _) in BOUNDS.items()}


def test_the_nearest_number_of_threads(mine: Path) -> None:
    at = tuned.key("an instruction set")
    mine.parent.mkdir()
    mine.write_text(json.dumps({at: {"1": {"a": 1}, "8": {"a": 8}}, "other": {}}))
    found = {n: tuned.lookup("an instruction set", n)["a"] for n in (1, 2, 4, 9, 64)}
    assert found == {1: 1, 2: 1, 4: 8, 9: 8, 64: 8}
    assert tuned.lookup("another", 2) == {}


def test_what_is_recorded_holds_at_once_and_wins_over_what_is_shipped(mine: Path) -> None:
    tuned.record(_native, {"weight_bytes": 4096})
    assert _native.tuning()["weight_bytes"] == 4096
    assert tuned.lookup(_native.isa(), torch.get_num_threads()) == {"weight_bytes": 4096}
    _native.set_tuning({})
    tuned.apply(_native)
    assert _native.tuning()["weight_bytes"] == 4096


GARBAGE = (
    "{", "[]", "NaN", '{"KEY": 5}', '{"KEY": {"x": {}}}', '{"KEY": {"0": {}}}',
    '{"KEY": {"1": []}}', '{"KEY": {"1": {"weight_bytes": 1.5}}}',
    '{"KEY": {"1": {"weight_bytes": true}}}', '{"KEY": {"1": {}, "1": {}}}',
    '{"KEY": {"1": {"weight_bytes": -1}}}', '{"KEY": {"1": {"nonsense": 1}}}',
    '{"KEY": {"1": {"weight_bytes": 123456789012345678901234567890}}}',
)  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_a_hostile_table_is_refused_by_name(mine: Path, text: str) -> None:
    mine.parent.mkdir()
    mine.write_text(text.replace("KEY", tuned.key(_native.isa())))
    before = _native.tuning()
    with pytest.raises(ValueError, match=r"tune\.json is not a table of launch choices.*delete it"):
        tuned.apply(_native)
    assert _native.tuning() == before


def test_the_library_reads_the_table_when_it_is_loaded(mine: Path) -> None:
    tuned.record(_native, {"weight_bytes": 12345})
    code = (
        "import sys, torch; torch.set_num_threads(1);"
        "from blockscale.kernels import cpu; cpu.available();"
        "print(cpu._native.tuning()['weight_bytes'], flush=True);"
        "open(sys.argv[1], 'w').write('{'); cpu.available()"
    )
    environment = os.environ | {"BLOCKSCALE_CPU_ISA": _native.isa()}
    done = fresh.run(code, mine, env=environment, ready=fresh.WITH_OURS)
    assert done.stdout.split() == ["12345"] and done.returncode == 1
    assert "tune.json is not a table of launch choices" in done.stderr.splitlines()[-1]


def test_a_home_that_nobody_may_read_has_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOCKSCALE_TUNE_CACHE", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert tuned.lookup("nobody's", 1) == {}


def test_what_is_shipped_is_within_bounds() -> None:
    shipped = json.loads(tuned.SHIPPED.read_text())
    assert shipped
    for at, entries in shipped.items():
        assert at.startswith("cpu|") and at.count("|") == 2
        for choices in entries.values():
            _native.set_tuning(choices)
