# SPDX-License-Identifier: BSD-3-Clause
"""A worker answers each line with a case, and nothing else comes between."""

import io
import json

from blockscale.bench.worker import serve


def test_it_answers_line_by_line():
    told = {"device": "cpu", "quick": True, "peers": False, "only": "overhead/*/int8/*",
            "formats": ["int8"], "tiny": True}  # fmt: skip
    asked = [{"case": "overhead/quantize/int8/2x64", "seconds": 0.0}] * 2
    answers = io.StringIO()
    serve(told, io.StringIO("".join(json.dumps(each) + "\n" for each in asked)), answers)
    about, *records = map(json.loads, answers.getvalue().splitlines())
    assert about["package"].endswith("blockscale/__init__.py")
    assert "overhead/quantize/int8/2x64" in about["cases"]
    assert [record["name"] for record in records] == ["overhead/quantize/int8/2x64"] * 2
    assert all(line["seconds"] > 0 for record in records for line in record["contestants"])
