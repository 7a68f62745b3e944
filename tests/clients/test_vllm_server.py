# SPDX-License-Identifier: BSD-3-Clause
"""`vllm serve` of our directory: an OpenAI client's questions get the tokens of `generate` here."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.clients import results
from tests.clients.programs import install
from tests.clients.vllm import COUNT, PROMPTS, expected_tokens, served
from tests.clients.vllm_server import serving

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "vLLM with our plug-in"
NAME = "ours"


def words(folder: Path, count: int = 96) -> None:
    """A tokenizer whose token i is the word `wi`; a chat is its messages' words."""
    whole = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    saved = PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="w0")
    saved.chat_template = "{% for each in messages %}{{ each.content }} {% endfor %}"
    saved.save_pretrained(folder)


def text(tokens: list[int]) -> str:
    return " ".join(f"w{i}" for i in tokens)


@pytest.mark.loads("a directory behind `vllm serve`, asked by an OpenAI client")
def test_started_asked_and_stopped(tmp_path: Path) -> None:
    directory, here = served("Llama", "mxfp4", tmp_path)
    words(directory)
    expected = [text(each) for each in expected_tokens(here, PROMPTS, COUNT)]
    asked = {"model": NAME, "max_tokens": COUNT, "temperature": 0, "ignore_eos": True}
    installed = install(tmp_path / "installed")
    with serving(directory, installed, tmp_path / "log", "--served-model-name", NAME) as server:
        assert [each["id"] for each in server.ask("/v1/models")["data"]] == [NAME]
        prompts = [text(each) for each in PROMPTS]
        answer = server.ask("/v1/completions", prompt=prompts, **asked)
        texts = [each["text"].split() for each in answer["choices"]]
        results.equal(texts, [each.split() for each in expected])
        assert answer["usage"]["completion_tokens"] == COUNT * len(PROMPTS)
        pieces = server.stream("/v1/completions", prompt=prompts[1], **asked)
        assert "".join(each["choices"][0]["text"] for each in pieces).strip() == expected[1]
        messages = [{"role": "user", "content": prompts[2]}]
        [choice] = server.ask("/v1/chat/completions", messages=messages, **asked)["choices"]
        assert choice["message"]["content"].strip() == expected[2]
        assert server.stop() == 0
        assert not server.answers()
    assert "weights as they are stored" in (tmp_path / "log").read_text()
