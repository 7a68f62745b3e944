# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/files/renaming/test_renamed.py: `CASES`."""

import pytest

from tests.support.renaming_hub import MODELS

FORMATS = ["mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32"]


# a format for each model in the fast tests, all of them in the slow ones
FAST = [(name, FORMATS[i % len(FORMATS)]) for i, name in enumerate(MODELS)]


CASES = [pytest.param(*case) for case in FAST] + [
    pytest.param(name, fmt, marks=pytest.mark.slow)
    for name in MODELS
    for fmt in FORMATS
    if (name, fmt) not in FAST
]
