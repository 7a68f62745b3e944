# SPDX-License-Identifier: BSD-3-Clause
"""The choice under budgets against every choice there is."""

import itertools
import random
import sys

import pytest

from blockscale.selection.allocation import Budget, Option, allocate


def every(layers, bits, seconds=None):
    """The least damage by trying all."""
    fitting = [
        sum(o.damage for o in taken)
        for taken in itertools.product(*layers)
        if sum(o.bits for o in taken) <= bits
        and (seconds is None or sum(o.seconds for o in taken) <= seconds)
    ]
    return min(fitting, default=None)


def drawn(seed, count=5, options=4, spread=1e6):
    """Layers whose damages are of very different sizes."""
    draw = random.Random(seed)
    return [
        [
            Option(spread ** draw.random(), draw.randint(1, 9), draw.randint(1, 9))
            for _ in range(options)
        ]
        for _ in range(count)
    ]


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(12))
def test_the_best_choice_is_found(seed):
    layers = drawn(seed)
    least = sum(min(o.bits for o in own) for own in layers)
    for bits in (least, least + 3, least + 7, 9 * len(layers)):
        found = allocate(layers, bits)
        assert found.damage == pytest.approx(every(layers, bits), rel=1e-9)
        assert found.bits <= bits
        assert found.gap <= 1e-9
        taken = [own[i] for own, i in zip(layers, found.choices, strict=True)]
        assert found.damage == sum(o.damage for o in taken)
        assert found.bits == sum(o.bits for o in taken)


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(12))
def test_two_budgets(seed):
    layers = drawn(seed)
    bits, seconds = 5.5 * len(layers), 5 * len(layers)
    expected = every(layers, bits, seconds)
    if expected is None:
        with pytest.raises(ValueError, match="no choice of formats fits"):
            allocate(layers, bits, seconds)
    else:
        found = allocate(layers, bits, seconds)
        assert found.damage == pytest.approx(expected, rel=1e-9)
        assert found.seconds <= seconds
        assert found.bits <= bits


def test_small_damages_beside_large_ones():
    """The solver's own tolerances are absolute: what remains must be chosen as exactly."""
    layers = [[Option(1e9, 1), Option(1e-6, 2), Option(1e-9, 3)] for _ in range(6)]
    assert allocate(layers, 18).damage == pytest.approx(6e-9)
    assert allocate(layers, 15).damage == pytest.approx(3e-6 + 3e-9)
    assert allocate(layers, 12).damage == pytest.approx(6e-6)


@pytest.mark.parametrize("seed", range(4))
def test_damages_that_are_all_small(seed):
    layers = [
        [Option(1e-12 * o.damage, o.bits) for o in own] for own in drawn(seed, 6, 5, spread=100)
    ]
    for bits in (25, 30, 35):
        if (least := every(layers, bits)) is not None:
            assert allocate(layers, bits).damage == pytest.approx(least, rel=1e-9)


def test_a_budget_that_is_met_exactly():
    layers = [[Option(2.0, 4.25), Option(1.0, 4.5)]] * 3
    assert allocate(layers, 3 * 4.5).choices == (1, 1, 1)
    assert allocate(layers, 3 * 4.25).choices == (0, 0, 0)


def test_no_damage_at_all():
    assert allocate([[Option(0.0, 4), Option(0.0, 3)]], 5).bits == 3


def test_what_cannot_be_kept_is_said():
    with pytest.raises(ValueError, match="budget of 3 bits: the candidates need at least 4"):
        allocate([[Option(1.0, 4), Option(0.5, 8)]], 3)
    with pytest.raises(ValueError, match=r"budget of 1 seconds: "):
        allocate([[Option(1.0, 4, 2.0)]], 8, 1.0)
    with pytest.raises(ValueError, match="no layer to choose formats"):
        allocate([], 3)


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(RuntimeError, match=r"pip install 'blockscale\[search\]'"):
        allocate([[Option(1.0, 4)]], 8)


# Budgets by name.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (4.5, ("bits", 4.5)),
        (6, ("bits", 6.0)),
        ("4.5", ("bits", 4.5)),
        ({"size": 2e7}, ("size", 2e7)),
        ("size=20MB", ("size", 2e7)),
        ("size = 3 MiB", ("size", 3 * 2.0**20)),
        ("size=1000", ("size", 1000.0)),
        ("latency=5ms", ("latency", 0.005)),
        ("latency=2", ("latency", 2.0)),
        ("quality=0.99", ("quality", 0.99)),
        (Budget("size", 5.0), ("size", 5.0)),
    ],
)
def test_what_is_read(given, expected):
    found = Budget.read(given)
    assert (found.name, found.value) == expected
    assert Budget.read(str(found)) == found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("many", "'many' is not a budget: pass bits per weight"),
        ("speed=3", "'speed=3' is not a budget"),
        ("size=3.3.3", "is not a budget"),
        ("size=4 parsecs", "unknown unit 'parsecs' of a size; choose from B, kB, MB"),
        ("latency=4MB", "unknown unit 'MB' of a latency; choose from s, ms, us"),
        (0, "above 0 and finite, got bits=0"),
        (-2.0, "above 0"),
        (float("inf"), "finite"),
        (True, "is not a budget"),
        (None, "is not a budget"),
        ({"size": "20MB"}, "is not a budget"),
        ({"size": 1.0, "bits": 2.0}, "a budget must have exactly one bound, got 2"),
    ],
)
def test_what_is_no_budget(given, told):
    with pytest.raises(ValueError, match=told):
        Budget.read(given)
