# SPDX-License-Identifier: BSD-3-Clause
"""All profiles there are, found by their files: names, errors, and what each result is."""

import math
import pathlib

import pytest
import torch

import blockscale as bs
from blockscale.core import profiles
from blockscale.core.reference import FLOATS
from blockscale.ops import primitives
from tests.support.profile_inputs import KINDS

TESTS = pathlib.Path(__file__).parent / "producers"


def test_names_are_the_producers_own() -> None:
    folder = pathlib.Path(profiles.producers.__file__).parent
    own = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {name.partition(".")[0] for name in profiles.names()} == own
    for name in own:
        assert (TESTS / f"test_{name}.py").is_file()


def chosen(fmt: bs.Format) -> bs.Format:
    """The same with a scale that is chosen, where the format's is only given."""
    return bs.parse(str(fmt).replace("e8m0/given", "e8m0/floor")) if fmt.unchosen else fmt


@pytest.mark.some(4)
@pytest.mark.parametrize("name", profiles.names())
def test_the_result_is_an_ordinary_tensor_of_its_format(name: str) -> None:
    profile = bs.profile(name)
    assert profile.name == name and bs.profile(name, profile.version) == profile
    for dtype in FLOATS:
        x = KINDS["normal"]().to(dtype)
        q = bs.quantize(x, profile)
        fmt = profile.result(dtype)
        assert q.format == fmt and q.shape == x.shape
        parts = zip(fmt.parts, primitives.to_list(q.qparams), strict=True)
        found = {name: (part.dtype, tuple(part.shape)) for name, part in parts}
        assert found == fmt.stored(tuple(x.shape))
        both = (q, bs.quantize(x, chosen(fmt)))
        errors = [float((each.dequantize() - x.float()).norm()) for each in both]
        assert errors[0] <= 2.1 * errors[1]  # cutting digits off doubles the error


@pytest.mark.some(4)
@pytest.mark.parametrize("name", profiles.names())
def test_shapes_at_the_edge(name: str) -> None:
    profile = bs.profile(name)
    for shape in [(0, 256), (1, 256), (2, 3, 256)]:
        q = bs.quantize(torch.randn(shape), profile)
        assert tuple(q.shape) == shape
        assert bool(q.dequantize().isfinite().all())
    x = torch.randn(4, 512)[:, ::2]  # not contiguous
    assert torch.equal(bs.quantize(x, profile).packed, bs.quantize(x.contiguous(), profile).packed)
    with pytest.raises(TypeError, match="expected float32, bfloat16 or float16, found float64"):
        bs.quantize(x.double(), profile)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", profiles.names())
def test_values_that_are_not_finite_are_the_contracts(name: str) -> None:
    profile = bs.profile(name)
    x = torch.randn(4, 256)
    x[0, 3], x[1, 40], x[2, 100] = math.nan, math.inf, -math.inf
    found, plain = bs.quantize(x, profile), bs.quantize(x, chosen(profile.format))
    assert torch.equal(found.dequantize().isnan(), plain.dequantize().isnan())


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        (
            "torchao.int9",
            None,
            r"^unknown profile 'torchao.int9': did you mean torchao.int8, .*\? choose from ",
        ),
        (
            "nobody",
            None,
            r"^unknown profile 'nobody': choose from .*blockscale.int8, .*torchao.nvfp4",
        ),
        ("gguf.q4_k", "0.1", r"unknown version '0.1' of profile gguf.q4_k; choose from 0.19.0"),
        (
            "torchao.int8",
            "0.1",
            r"unknown version '0.1' of profile torchao.int8; choose from 0.18.0",
        ),
        ("blockscale.int8", "1", r"unknown version '1' .*; choose from no version"),
    ],
)
def test_unknown_names_and_versions(name: str, version: str | None, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        bs.profile(name, version)


def test_versions_by_their_beginning() -> None:
    assert bs.profile("torchao.int8", "0.18") == bs.profile("torchao.int8", "0.18.0")
    assert bs.profile("torchao.int8", "0") == bs.profile("torchao.int8")


def test_no_name_no_profile() -> None:
    with pytest.raises(TypeError, match="profile, found an int"):
        bs.profile(8)  # type: ignore[arg-type]


def test_a_profile_takes_no_scale() -> None:
    with pytest.raises(
        ValueError, match=r"profile torchao.int8 chooses the scale itself: leave scale out"
    ):
        bs.quantize(torch.randn(2, 32), bs.profile("torchao.int8"), torch.ones(2, 1))
