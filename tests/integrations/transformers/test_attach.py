# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers that blockscale itself quantized or loaded."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import blockscale as bs
from blockscale.integrations.transformers.attach import attach
from tests.support import fresh
from tests.support.transformers_models import gpt2, llama, same_bits


def loaded(path: Path) -> Any:
    model = llama()
    bs.quantize_(model, "mxfp4")
    bs.save(model, path / "file.safetensors")
    return bs.load(llama(), path / "file.safetensors")


def trained(path: Path) -> Any:
    del path
    model = llama()
    bs.prepare_qat(model, "mxfp4")
    return bs.convert(model)


@pytest.mark.parametrize("make", [loaded, trained])
def test_saved_as_from_pretrained_reads(make: Callable[[Path], Any], tmp_path: Path) -> None:
    model = make(tmp_path)
    model.save_pretrained(tmp_path / "out")
    same_bits(model, type(model).from_pretrained(tmp_path / "out"))


def test_only_what_holds_codes_and_once() -> None:
    model: Any = gpt2()
    attach([model], None)
    assert getattr(model, "hf_quantizer", None) is None
    bs.quantize_(model, "int8")
    assert model.hf_quantizer.quantization_config.recipe == bs.Recipe("int8")
    assert model.transformer.hf_quantizer is not None
    first = model.hf_quantizer
    attach([model], bs.Recipe("int4"))
    assert model.hf_quantizer is first
    same_bits(model, deepcopy(model))


QUANTIZE = """
import sys
import blockscale as bs, torch
model = torch.nn.Sequential(torch.nn.Linear(32, 8))
bs.quantize_(model, "int8")
assert not [name for name in sys.modules if name.partition(".")[0] == "transformers"]
"""


@pytest.mark.slow
def test_nothing_is_imported_for_other_models() -> None:
    fresh.run(QUANTIZE, check=True)
