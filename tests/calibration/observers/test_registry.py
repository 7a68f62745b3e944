# SPDX-License-Identifier: BSD-3-Clause
"""Observers are found by their names, with their settings; what there is not is an error."""

import pathlib

import pytest

import blockscale as bs


def test_every_file_has_an_observer():
    folder = pathlib.Path(bs.observers.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    names = bs.observers.names()
    assert files == set(names) - {"moving_average"}  # which lies beside min_max
    known = {"min_max", "moving_average", "percentile", "entropy", "mse", "mean", "adaptive"}
    assert known <= set(names) and list(names) == sorted(names)


def test_specs():
    make = bs.observers.make
    assert make("percentile:99.5", "int8").percentile == 99.5
    assert make("moving_average:0.5", "int8").constant == 0.5
    assert make("mse:weighted", "int8").weighted
    assert make("adaptive:min_max+percentile:99", "int8").tried == ["min_max", "percentile:99"]
    assert make(type(make("mse", "int8")), bs.parse("int8")).name == "mse"
    assert make(lambda fmt: make("percentile:99", fmt), "int8").percentile == 99
    assert str(make("mse", "mxfp4").format) == "e2m1:group32:e8m0/floor"


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (
            "median",
            ValueError,
            "unknown observer 'median'; choose from adaptive, .*entropy, .*min_max",
        ),
        ("min_max:3", ValueError, "'min_max' takes no setting, got '3'"),
        ("percentile:many", ValueError, "the percentile must be a number, got 'many'"),
        ("percentile:101", ValueError, "above 0 and at most 100, got 101"),
        ("percentile:0", ValueError, "above 0 and at most 100, got 0"),
        ("percentile:nan", ValueError, "above 0 and at most 100, got nan"),
        ("moving_average:0", ValueError, "constant must be above 0 and at most 1, got 0"),
        ("mse:heavy", ValueError, "the only one is 'mse:weighted'"),
        ("adaptive:mse", ValueError, r"two or more observers to choose from, got \['mse'\]"),
        (3, TypeError, "expected the name of an observer .* found 3"),
        (lambda fmt: None, TypeError, "expected the name of an observer"),
    ],
)
def test_specs_that_do_not_exist(spec, error, words):
    with pytest.raises(error, match=words):
        bs.observers.make(spec, "int8")


def test_formats_that_do_not_fit():
    for spec in ("min_max", "percentile", "entropy"):
        with pytest.raises(ValueError, match=r"ternary element is a mean.*'mean' or"):
            bs.observers.make(spec, "ternary")
    with pytest.raises(ValueError, match="comes from a range"):
        bs.observers.make("mean", "int8")
    assert len(bs.observers.make("adaptive", "mxfp4").tried) == 4
