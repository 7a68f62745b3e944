# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/export/checkpoints/gguf/test_reading.py: `SMALL`.
"""

from pathlib import Path

RECORDED = Path(__file__).parents[1] / "recorded"


SMALL, SPLIT = RECORDED / "small.gguf", RECORDED / "split-00001-of-00002.gguf"
