# SPDX-License-Identifier: BSD-3-Clause
"""Names: gguf 0.19.0's own (tests/recorded/record_gguf_names.py)."""

import json
from pathlib import Path

import pytest

from blockscale.export.checkpoints.gguf.families import FAMILIES

RECORDED = json.loads((Path(__file__).parents[3] / "recorded" / "gguf_names.json").read_text())
SAME = {"mistral": "llama", "mixtral": "llama"}  # an architecture of llama.cpp for all three


@pytest.mark.parametrize("kind", FAMILIES)
def test_names(kind: str) -> None:
    family, theirs = FAMILIES[kind], RECORDED[SAME.get(kind, kind)]
    ours = {f"{layer}.weight": f"{place}.weight" for layer, place in family.whole.items()}
    for layer, place in family.inside.items():
        ours[family.block.format(3) + f"{layer}.weight"] = f"blk.3.{place}.weight"
    # gemma2.cpp has no head of its own: gguf knows no name for one, and none is written
    missing = {"lm_head.weight"} if kind == "gemma2" else set()
    assert {n: p for n, p in ours.items() if theirs.get(n) != p}.keys() <= missing


def test_what_a_family_says_is_of_layers_that_it_has() -> None:
    for family in FAMILIES.values():
        places = {*family.inside.values(), *family.whole.values()}
        assert family.biases <= places | {"ffn_gate"} and family.transposes <= places
        assert bool(family.experts) == ("expert_count" in family.keys)
