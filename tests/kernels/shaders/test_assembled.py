# SPDX-License-Identifier: BSD-3-Clause
"""The shaders of many calls, assembled without an adapter: their code is the recorded one."""

import json

import pytest

from tests.kernels.shaders.assemble import RECORDED
from tests.kernels.shaders.device import KINDS
from tests.support import fresh

PROGRAM = "tests.kernels.shaders.assemble"
FEW = ("--cases", "mxfp4", "nvfp4", "int8_channel")


def check(*arguments: str) -> None:
    """Where a change of shaders is meant, `--record` writes their digests anew."""
    code = f"import runpy; runpy.run_module({PROGRAM!r}, run_name='__main__', alter_sys=True)"
    done = fresh.run(code, *arguments, cwd=fresh.ROOT, ready=fresh.WITH_OURS)
    assert done.returncode == 0, done.stderr
    recorded = json.loads(RECORDED.read_text())
    other = [
        (kind, case)
        for kind, cases in json.loads(done.stdout).items()
        for case, digest in cases.items()
        if recorded[kind].get(case) != digest
    ]
    assert not other, (
        f"other shaders than recorded, of {other}: `python -m {PROGRAM} {' '.join(arguments)} "
        f"--texts FOLDER` before and after the change shows them; --record if they are meant"
    )


def test_shaders_of_few_formats_are_the_recorded_ones() -> None:
    check("small", *FEW)


@pytest.mark.slow
def test_shaders_are_the_recorded_ones() -> None:
    check(*KINDS)


def test_every_kind_of_device_is_recorded() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert recorded.keys() == KINDS.keys()
    assert len({tuple(cases) for cases in recorded.values()}) == 1
