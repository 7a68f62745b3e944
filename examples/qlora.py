# SPDX-License-Identifier: BSD-3-Clause
"""QLoRA: fine-tune a small language model whose own weights stay in four bits.

    python examples/qlora.py              # a loop of PyTorch
    python examples/qlora.py --trainer    # transformers' Trainer (needs accelerate)

A Llama of 115 thousand weights learns Python's documentation letter by letter, in float. Its
weights then become `nf4` codes with a scale for each 64 of them, and LoRA adapters learn Python
source, through the codes, which do not change. The texts are those of the standard library.
"""

import argparse
import json.decoder
import json.encoder
import pathlib
import tempfile
from pydoc_data import topics
from typing import Any, NamedTuple

import peft
import torch
import transformers
from torch import Tensor, nn

import blockscale as bs

LENGTH, BATCH = 64, 16  # letters of a sequence, sequences of a step
RECIPE = "nf4:group64:fp32"


class Losses(NamedTuple):
    """Mean negative log-likelihoods, in nats a letter, of text that no step has seen."""

    documentation: float  # of the model in float, after its own training
    quantized: float  # the same, in nf4
    source_before: float  # of Python source, before an adapter has learnt it
    source_after: float
    disabled: float  # of the documentation, with the adapter switched off
    merged: float  # of Python source, with the adapter in the codes


def letters(text: str) -> Tensor:
    """The bytes of a text as tokens."""
    return torch.tensor(list(text.encode()))


def documentation() -> Tensor:
    """Prose: what `help()` says of the language."""
    return letters("\n".join(text for _, text in sorted(topics.topics.items()))[:400_000])


def source() -> Tensor:
    """Programs: two modules of the standard library."""
    files = (json.decoder.__file__, json.encoder.__file__)
    return letters("".join(pathlib.Path(file).read_text() for file in files))


def network() -> nn.Module:
    """A Llama over bytes."""
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def batches(text: Tensor, steps: int, seed: int = 0) -> list[Tensor]:
    """So many batches [BATCH, LENGTH] of pieces of a text, without its last tenth."""
    generator = torch.Generator().manual_seed(seed)
    last = len(text) * 9 // 10 - LENGTH
    starts = torch.randint(last, (steps, BATCH, 1), generator=generator)
    return list(text[starts + torch.arange(LENGTH)])


@torch.no_grad()
def loss_of(model: nn.Module, text: Tensor) -> float:
    """The mean over the text's last tenth, which is not trained on."""
    held = text[len(text) * 9 // 10 :]
    rows = held[: len(held) // LENGTH * LENGTH].reshape(-1, LENGTH)[:64]
    return model.eval()(input_ids=rows, labels=rows).loss.item()


def train(model: nn.Module, data: list[Tensor], rate: float) -> None:
    """Adam on what wants gradients, with a rate that falls to 0."""
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(data))
    for rows in data:
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def train_by_trainer(model: nn.Module, data: list[Tensor], rate: float) -> None:
    """The same, by transformers' Trainer."""
    rows = [{"input_ids": row, "labels": row} for batch in data for row in batch]
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, per_device_train_batch_size=BATCH, num_train_epochs=1, learning_rate=rate,
            report_to=[], save_strategy="no", logging_strategy="no", use_cpu=True,
            disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = transformers.Trainer(model, settings, train_dataset=rows)
        trainer.train()


def run(steps: tuple[int, int] = (300, 150), trainer: bool = False) -> Losses:
    """Train a base, quantize it, fine-tune it with adapters, merge them.

    steps: of the base and of the adapters
    """
    torch.manual_seed(0)
    prose, program = documentation(), source()
    model: Any = network()
    train(model, batches(prose, steps[0]), 4e-3)
    exact = loss_of(model, prose)

    print(bs.quantize_(model, RECIPE))
    quantized, before = loss_of(model, prose), loss_of(model, program)
    codes = {name: value.clone() for name, value in model.named_buffers() if "weight." in name}

    config = peft.LoraConfig(target_modules="all-linear", r=8, lora_alpha=16, task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(model, config)
    tuned.print_trainable_parameters()
    (train_by_trainer if trainer else train)(tuned, batches(program, steps[1], 1), 1e-2)
    after = loss_of(tuned, program)
    with tuned.disable_adapter():
        disabled = loss_of(tuned, prose)
    now = dict(tuned.get_base_model().named_buffers())
    for name, value in codes.items():
        layer, _, part = name.rpartition(".weight.")
        name_now = name if name in now else f"{layer}.base_layer.weight.{part}"
        assert torch.equal(now[name_now], value), name

    merged = tuned.merge_and_unload()  # warns of what the rounding takes
    return Losses(exact, quantized, before, after, disabled, loss_of(merged, program))


def main() -> None:
    parser = argparse.ArgumentParser(description="QLoRA on texts of the standard library")
    parser.add_argument("--trainer", action="store_true", help="train by transformers' Trainer")
    torch.set_num_threads(1)  # layers this small gain nothing from more
    for name, loss in run(trainer=parser.parse_args().trainer)._asdict().items():
        print(f"{name:15}{loss:8.3f} nats a letter")


if __name__ == "__main__":
    main()
