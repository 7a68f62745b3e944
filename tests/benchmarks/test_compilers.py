# SPDX-License-Identifier: BSD-3-Clause
"""The comparison of compilers, without compiling: which there are, and what is a finding."""

from pathlib import Path

import pytest

from benchmarks import compilers

TURNS = {
    "quantize/int4": [
        {"g++-12": 0.4, "g++-13": 0.45, "clang++-16": 0.5},
        {"g++-12": 0.8, "g++-13": 0.9, "clang++-16": 1.0},  # at half the speed
        {"g++-12": 0.4, "g++-13": 0.9, "clang++-16": 0.9},  # which changed here
    ],
    "dequantize/int4": [{"g++-12": 0.2, "g++-13": 1.8, "clang++-16": 0.2}],
}
RATIOS = {
    "quantize/int4": {"g++-12": 1.0, "g++-13": 1.125, "clang++-16": 1.25},
    "dequantize/int4": {"g++-12": 1.0, "g++-13": 9.0, "clang++-16": 1.0},
}


def test_each_compiler_counts_once(tmp_path: Path) -> None:
    """The plain names are links to one of the others, or compilers of their own."""
    for name in ("g++-12", "clang++-16"):
        (tmp_path / name).touch()
    (tmp_path / "g++").symlink_to("g++-12")

    def which(name: str) -> str | None:
        return str(tmp_path / name) if (tmp_path / name).exists() else None

    found = compilers.contestants(which)
    assert list(found) == ["g++-12", "g++-12 hardened", "clang++-16"]
    assert found["g++-12"] == (str(tmp_path / "g++-12"), "")
    assert "-D_FORTIFY_SOURCE=3" in found["g++-12 hardened"][1]
    assert list(compilers.contestants(which, ["clang++-16"])) == ["clang++-16"]
    (tmp_path / "g++").unlink()
    (tmp_path / "g++").touch()
    assert list(compilers.contestants(which, ["g++"])) == ["g++", "g++ hardened"]


def test_libraries_are_compared_within_a_turn() -> None:
    found = compilers.ratios(TURNS)
    assert {case: pytest.approx(each) for case, each in RATIOS.items()} == found
    assert compilers.least(TURNS)["quantize/int4"] == {
        "g++-12": 0.4,
        "g++-13": 0.45,
        "clang++-16": 0.5,
    }


def test_findings_are_what_takes_far_longer_than_the_fastest() -> None:
    found = compilers.findings(RATIOS)
    assert [(each["case"], each["library"], each["ratio"]) for each in found] == [
        ("dequantize/int4", "g++-13", 9.0),
        ("quantize/int4", "clang++-16", 1.25),
    ]
    assert found[0]["fastest"] == "g++-12"
    assert compilers.findings({"a": {"x": 1.0, "y": 1.15}}) == []  # more than that is one


def test_means_are_geometric() -> None:
    assert compilers.means({"a": {"x": 1.0, "y": 4.0}, "b": {"x": 1.0, "y": 1.0}}) == {
        "x": 1.0,
        "y": 2.0,
    }
    assert list(compilers.means(RATIOS)) == ["g++-12", "clang++-16", "g++-13"]


def test_the_set_whose_primitives_run() -> None:
    assert compilers.primitives_of("x86_64", "AVX512") == "avx512"
    assert compilers.primitives_of("x86_64", "AVX2") == "avx2"
    assert compilers.primitives_of("x86_64", "DEFAULT") == "baseline"
    assert compilers.primitives_of("aarch64", "DEFAULT") == "neon"


@pytest.mark.parametrize("fmt", ["int3:group32:fp32", "uint4:group32:fp32:asym", *compilers.MORE])
def test_every_primitive_is_called(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "ROWS", 16)
    monkeypatch.setattr(compilers, "COLUMNS", 64)
    monkeypatch.setattr(compilers, "CALLS", 1)
    found = {op: compilers.timed(call) for op, call in compilers.calls_of(fmt)}
    assert list(found) == list(compilers.OPS)
    assert all(each >= 0 for each in found.values())


@pytest.mark.slow
def test_a_compiler_that_fails_is_told(tmp_path: Path) -> None:
    wanted = {"no++": (str(tmp_path / "no++"), "")}
    libraries, failed = compilers.built(wanted, tmp_path, "baseline")
    assert libraries == {} and "no++ does not build the library" in failed["no++"]


def test_libraries_take_turns() -> None:
    order = []

    class Told:
        def __init__(self, name: str, figure: float) -> None:
            self.name, self.figure = name, figure

        def times(self, fmt: str) -> dict[str, float]:
            order.append(self.name)
            return {f"pack/{fmt}": self.figure}

    workers = {"x": Told("x", 1.0), "y": Told("y", 2.0)}
    found = compilers.race(workers, ["int4"], 2)  # type: ignore[arg-type]
    assert order == ["x", "y", "y", "x"]
    assert found == {"pack/int4": [{"x": 1.0, "y": 2.0}, {"x": 1.0, "y": 2.0}]}
