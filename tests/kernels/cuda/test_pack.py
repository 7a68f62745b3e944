# SPDX-License-Identifier: BSD-3-Clause
"""Packing and unpacking by the ops' own entries: of nothing at all, and of each family."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.kernels.cuda import pack as kernels
from blockscale.kernels.cuda.primitives.form import form
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("fmt", ["int4:tensor:fp32", "binary:tensor:fp32", "int8:tensor:fp32"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (1,), (3, 5)], ids=str)
def test_there_and_back(fmt: str, shape: tuple[int, ...]) -> None:
    element = parse(fmt).element
    patterns = torch.randint(0, 2**element.bits, shape).to(torch.uint8)
    codes = element.from_bits(patterns).to(DEVICE)
    with bs.use("cuda"):
        packed = P.pack(codes, fmt)
        assert torch.equal(P.unpack(packed, fmt, shape[-1]), codes)
    with bs.use("reference"):
        assert torch.equal(P.pack(codes, fmt), packed)


def test_how_a_bit_pattern_is_read_is_asked_of_its_family() -> None:
    kinds = {"int4": "signed", "uint4": "plain", "e2m1": "plain", "binary": "binary"}
    for name, kind in kinds.items():
        assert kernels._kind(form(f"{name}:tensor:fp32")) == kind
    known = form("int4:tensor:fp32")
    element = replace(known.spec.element, family="unheard")
    unknown = SimpleNamespace(spec=replace(known.spec, element=element), format=known.format)
    with pytest.raises(TypeError, match="unpacks elements of the family 'unheard'"):
        kernels._kind(unknown)
