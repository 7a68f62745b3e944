# SPDX-License-Identifier: BSD-3-Clause
"""Which blocks are walked, and the chains that cannot be."""

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.signround import SignRound
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.find_blocks import blocks_of
from blockscale.calibration.walk.schedule import learns_whole
from blockscale.calibration.walk.weights import Options
from blockscale.layers.plan import plan_layers
from tests.calibration.algorithms.learned.tasks import Net
from tests.calibration.walk.networks import GROUPS, Plain, decoder, ids, same_state


def test_a_model_without_blocks_is_one_block_for_a_block_algorithm() -> None:
    torch.manual_seed(0)
    model, plain = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)), Plain()
    plans = plan_layers(model, bs.Recipe(GROUPS))
    assert [b.name for b in blocks_of(model, plans, True, by_block=True)] == [""]
    assert blocks_of(model, plans, True, by_block=False) == []
    batches = [torch.randn(5, 16) for _ in range(2)]
    ledger = calibrate(model, batches, GROUPS, weight=plain, progress=False)
    assert plain.tasks[0]["plans"] == ["0", "2"]
    assert all(torch.equal(a, b) for a, b in zip(plain.tasks[0]["inputs"], batches, strict=True))
    assert ledger["2"].details == "weight by plain"


def test_of_two_chains_the_one_that_can_be_is_walked() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = decoder(2), decoder(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.second(x)
            return self.first(x) + self.first(x)

    plain = Plain()
    ledger = calibrate(Two().eval(), ids(), GROUPS, weight=plain, progress=False)
    assert [task["name"] for task in plain.tasks][-2:] == ["second.layers.0", "second.layers.1"]
    told = [
        e.details for e in ledger.quantized if "cannot be calibrated block by block" in e.details
    ]
    assert len(told) == 1
    assert (
        "first.layers cannot be calibrated block by block: first.layers.0 is called more than once"
        in told[0]
    )
    assert "plain rounding: it is in no block" in ledger["first.layers.0.feed.up"].details


SMALL = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {"hidden_size": 16, "intermediate_size": 32,
              "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "GPT2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}),
    "OPT": ("OPTForCausalLM", {"hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 3,
            "num_attention_heads": 2, "word_embed_proj_dim": 16, "max_position_embeddings": 32}),
    "Bert": ("BertForMaskedLM", {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
             "num_attention_heads": 2, "max_position_embeddings": 32}),
    "T5": ("T5ForConditionalGeneration", {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2,
           "num_heads": 2, "decoder_start_token_id": 0}),
}  # fmt: skip
FLOATS = ["*lm_head", "*cls*", "*embed*", "*wte", "*wpe", "shared"]


def of_transformers(family: str) -> tuple[nn.Module, list[dict[str, torch.Tensor]]]:
    """A small model of transformers with random weights, and batches with padding."""
    transformers = pytest.importorskip("transformers")
    name, settings = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**SMALL, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    batches = []
    for _ in range(3):
        tokens = torch.randint(3, 64, (2, 9))
        mask = torch.ones_like(tokens)
        mask[1, -4:] = 0
        batches.append({"input_ids": tokens, "attention_mask": mask})
        if family == "T5":
            batches[-1]["decoder_input_ids"] = torch.randint(3, 64, (2, 5))
    return model, batches


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(?s).*matches nothing")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sequential", [False, "layers"])
def test_models_of_transformers_get_the_codes_of_whole_passes(
    family: str, sequential: bool | str
) -> None:
    walked, batches = of_transformers(family)
    whole, recipe = copy.deepcopy(walked), bs.Recipe(GROUPS, skip=FLOATS)
    ledger = bs.calibrate(
        walked, batches, recipe, weight="gptq", sequential=sequential, progress=False
    )
    bs.calibrate(
        whole, batches, recipe, weight="gptq", sequential=sequential, blocks=False, progress=False
    )
    assert len(ledger.quantized) >= 12
    assert not any("cannot be calibrated block by block" in entry.details for entry in ledger)
    assert same_state(walked, whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(?s).*matches nothing")
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_of_transformers_are_run_three_times_at_most(family: str) -> None:
    model, batches = of_transformers(family)
    plans = plan_layers(model, bs.Recipe(GROUPS, skip=FLOATS))
    blocks = blocks_of(model, plans, True, by_block=False)
    assert len(blocks) == (4 if family == "T5" else 3)
    runs: Counter[str] = Counter()
    for block in blocks:
        block.module.register_forward_hook(lambda *_, name=block.name: runs.update([name]))
    bs.calibrate(
        model, batches, bs.Recipe(GROUPS, skip=FLOATS), weight="gptq", transform="hadamard:8",
        progress=False,
    )  # fmt: skip
    assert set(runs) == {block.name for block in blocks}
    assert max(runs.values()) <= 3 * len(batches)


# After the walk: all blocks are learned together, by what the model gives; and what it refuses.


class Chain(nn.Module):
    """Two blocks and a head, whose output says of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([First(), First()]), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> SimpleNamespace:
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.head(x))


class First(Net):
    """Net without what is no tensor."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, mask)[0]


def divergence_of(model: nn.Module, other: nn.Module, batches: list[Tensor]) -> float:
    with torch.no_grad():
        pairs = [
            (other(x).logits.log_softmax(-1), model(x).logits.log_softmax(-1)) for x in batches
        ]
    return sum(float(nn.functional.kl_div(*p, reduction="sum", log_target=True)) for p in pairs)


def test_the_whole_model_is_learned_by_what_its_logits_say() -> None:
    torch.manual_seed(0)
    model = Chain().eval()
    batches = [torch.randn(2, 12, 16) for _ in range(4)]
    errors, notes = [], []
    for whole in (0, 40, 40):
        other = copy.deepcopy(model)
        algorithm = SignRound(10, positions=48, whole=whole, inside=0.3)
        ledger = bs.calibrate(
            other, batches, bs.Recipe("int3:group8:fp32", skip=["head"]), weight=algorithm,
            progress=False,
        )  # fmt: skip
        errors.append(divergence_of(model, other, batches))
        notes.append(
            "then refined by the output of the whole model" in ledger["blocks.0.up"].details
        )
    assert errors[1] < 0.8 * errors[0]
    assert errors[1] == errors[2]  # it repeats itself
    assert notes == [False, True, True]
    assert all(not p.grad_fn for p in model.parameters())


def test_weights_from_disk_are_refused() -> None:
    options = Options(False, 1.0, None, settler=object())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=(
            "whole needs the whole model in memory, and source= reads one block at a time: "
            "leave source out, or set whole=0"
        ),
    ):
        learns_whole(SignRound(2, whole=2), options)
    assert not learns_whole(SignRound(2), options)
