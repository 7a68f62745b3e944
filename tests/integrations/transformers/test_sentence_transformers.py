# SPDX-License-Identifier: BSD-3-Clause
"""sentence-transformers loads and saves through transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig
from tests.support.transformers_models import SIZES, same_bits

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]


def written(path: Path) -> None:
    """A tiny sentence transformer."""
    from sentence_transformers import SentenceTransformer, models

    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(**SIZES, intermediate_size=64)).save_pretrained(path / "bert")
    (path / "vocab.txt").write_text("\n".join(WORDS))
    hf.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path / "bert")
    modules = [models.Transformer(str(path / "bert")), models.Pooling(32)]
    SentenceTransformer(modules=modules, device="cpu").save(str(path / "float"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_all_three_ways(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    written(tmp_path)

    def load(name: str, **options: Any) -> Any:
        return library.SentenceTransformer(str(tmp_path / name), device="cpu", **options)

    found = load("float", model_kwargs={"quantization_config": BlockscaleConfig("mxfp4")})
    plain = load("float")
    bs.quantize_(plain, "mxfp4")
    same_bits(plain, found)
    assert (plain.encode(["a b c"]) == found.encode(["a b c"])).all()
    found.save(str(tmp_path / "found"))
    plain.save(str(tmp_path / "plain"))
    bs.quantize_directory(tmp_path / "float", tmp_path / "directory", "mxfp4")
    for name in ("found", "plain", "directory"):
        same_bits(plain, load(name))
