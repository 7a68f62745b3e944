# SPDX-License-Identifier: BSD-3-Clause
"""What `blockscale eval` opens: models of every form, tokenizers, and what it refuses."""

import sys

import pytest
import torch

import blockscale as bs
from blockscale.cli.evaluating import about_of, open_model, tasks_of, tokenizer_of
from blockscale.evaluation.texts import Text
from blockscale.layers.layer import QLayer
from tests.support.cli_model_directory import tiny, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tokenizer(tiny(tmp_path_factory.mktemp("models") / "tiny"))


def test_a_float_and_a_quantized_directory(model, tmp_path):
    assert not any(isinstance(m, QLayer) for m in open_model(model, "cpu").modules())
    bs.quantize_directory(model, tmp_path / "q", "mxint8")
    network = open_model(tmp_path / "q", "cpu")
    assert any(isinstance(m, QLayer) for m in network.modules())
    assert not network.training and network.device.type == "cpu"


def test_a_device_that_is_not_here(model):
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"):
        open_model(model, "nowhere")


def test_a_directory_that_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        open_model(tmp_path, "cpu")


def test_tokens_have_no_marks_of_beginning_and_end(model):
    assert list(tokenizer_of(model)("the a on")) == [3, 4, 5]


def test_no_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer: name a directory that has, with --tok"):
        tokenizer_of(tmp_path)


def test_what_it_says_of_itself(tmp_path):
    about = about_of(tmp_path, None, Text("t", "abc"), torch.zeros(2, 3))
    assert about["sequences"] == 2 and about["length"] == 3 and about["against"] is None
    assert about["text_sha256"] == "ba7816bf8f01cfea"  # of "abc", FIPS 180-4's example


def test_tasks_need_their_extra(model, monkeypatch):
    for name in ("lm_eval", "blockscale.integrations.lm_eval"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"pip install 'blockscale\[eval\]'"):
        tasks_of(torch.nn.Linear(1, 1), model, ["arc_easy"], None)
