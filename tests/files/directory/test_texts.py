"""The ledger says what is needed to quantize again, and sums up every file."""

import hashlib
import json

from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.directory.texts import as_json


def test_what_the_ledger_says_of_the_run(model, tmp_path):
    out = tmp_path / "out"
    quantize_directory(model, out, "nvfp4", seed=3)
    told = json.loads((out / "blockscale_ledger.json").read_text())
    assert told["seed"] == 3 and told["source"] == str(model)
    files = {each.relative_to(out).as_posix(): each for each in out.rglob("*") if each.is_file()}
    del files["blockscale_ledger.json"]
    assert told["files"] == {
        name: {
            "bytes": each.stat().st_size,
            "sha256": hashlib.sha256(each.read_bytes()).hexdigest(),
        }
        for name, each in files.items()
    }
    assert {name: each["bytes"] for name, each in told["sources"].items()} == {
        each.name: each.stat().st_size for each in model.glob("*.safetensors")
    }


def test_json_ends_with_a_line():
    assert as_json({"a": 1}) == b'{\n  "a": 1\n}\n'
