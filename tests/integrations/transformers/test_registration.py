"""What a fresh Python has to import, and what transformers says without it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from transformers.quantizers import auto

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig, BlockscaleQuantizer, register

Checkpoints = Callable[[str], tuple[type, Path]]
LOAD = """
{}
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({!r})
print("LOADED", type(model.lm_head).__name__)
"""


def test_registering_again_changes_nothing() -> None:
    tables = auto.AUTO_QUANTIZER_MAPPING["blockscale"], auto.AUTO_QUANTIZATION_CONFIG_MAPPING
    before = auto.AutoQuantizationConfig.from_dict
    register()
    assert tables[0] is BlockscaleQuantizer
    assert tables[1]["blockscale"] is BlockscaleConfig
    assert auto.AutoQuantizationConfig.from_dict is before


def test_method_is_quant_method() -> None:
    ours = BlockscaleConfig("int8")
    assert auto.AutoQuantizationConfig.from_dict(ours.to_dict()) == ours
    assert auto.AutoHfQuantizer.supports_quant_method(ours.to_dict())
    with pytest.raises(ValueError, match="no `quant_method`"):
        auto.AutoQuantizationConfig.from_dict({"method": "another"})


@pytest.mark.slow
@pytest.mark.parametrize("line", ["import blockscale.integrations.transformers", ""])
def test_one_line_in_a_fresh_python(line: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    _, path = checkpoints("llama")
    bs.quantize_directory(path, tmp_path / "out", "mxfp4")
    script = LOAD.format(line, str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if line:
        assert "LOADED QLinear" in done.stdout, done.stderr
    else:  # refused: nothing is filled with random numbers
        assert done.returncode != 0
        assert "no `quant_method`" in done.stderr.splitlines()[-1]


def test_a_directory_says_it_as_before(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=BlockscaleConfig("mxfp4")
    )
    model.save_pretrained(tmp_path / "a")
    bs.quantize_directory(path, tmp_path / "b", "mxfp4")
    told = [json.loads((tmp_path / each / "config.json").read_text()) for each in "ab"]
    assert told[0]["quantization_config"] == told[1]["quantization_config"]
    assert type(model) is kind
