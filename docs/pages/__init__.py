# SPDX-License-Identifier: BSD-3-Clause
"""The generated pages of the documentation, one file each: what they say, from what was run."""

from pathlib import Path

DOCS = Path(__file__).parents[1]
