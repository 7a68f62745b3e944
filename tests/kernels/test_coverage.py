# SPDX-License-Identifier: BSD-3-Clause
"""Which formats run on kernels: what is said is what the registry then does."""

import pytest

from blockscale.core.parse import CATALOG, parse
from blockscale.kernels import coverage as module
from blockscale.kernels.coverage import OPS, coverage
from blockscale.kernels.registry import KERNELS, ByFormats, Kernel, supporting, unavailable


@pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
def test_the_cpu():
    found = coverage("cpu")
    assert tuple(each.op for each in found) == OPS
    for each in found:
        assert {*each.runs, *each.by_call, *each.reference} == set(CATALOG)
        for name in each.runs:
            assert supporting(each.op, "cpu", (str(parse(name)),), ()) is not None
        for name in each.reference:
            assert supporting(each.op, "cpu", (str(parse(name)),), ()) is None


def test_reasons(monkeypatch):
    plain = Kernel("quantize", "cpu", ByFormats(lambda formats: formats[0].bits == 4), print)
    asks = Kernel("linear", "cpu", lambda formats, arguments: False, print)
    monkeypatch.setattr(module, "unavailable", lambda backend: None)
    kernels = {("quantize", "cpu"): [plain], ("linear", "cpu"): [asks]}
    monkeypatch.setattr(module, "KERNELS", kernels)
    found = {each.op: each for each in coverage("cpu")}
    assert "mxfp4" in found["quantize"].runs
    told = found["quantize"].reference
    assert told["mxfp8"] == "no cpu kernel of quantize takes its elements"
    assert set(found["linear"].by_call) == set(CATALOG)
    assert set(found["conv"].reference.values()) == {"no cpu kernel computes conv"}
    assert KERNELS is not kernels


def test_a_backend_that_cannot_run():
    assert coverage("no such backend") == ()
