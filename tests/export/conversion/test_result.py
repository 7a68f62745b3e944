# SPDX-License-Identifier: BSD-3-Clause
"""A result is plain data, and says whether it is lossless."""

import json
from dataclasses import replace

from blockscale.export.conversion.result import Conversion, Converted

ONE = Converted("a", "b", (2, 3), "exact", "Q8_0", "int8", "int8", "codes", 6, 7)


def test_lossless() -> None:
    done = Conversion("x", "y", "gguf", [ONE, replace(ONE, how="copied")])
    assert done.lossless and done.of("exact") == [ONE]
    done.tensors.append(replace(ONE, how="requantized", relative=0.1))
    assert not done.lossless
    assert json.loads(json.dumps(done.to_dict()))["tensors"][2]["relative"] == 0.1
