# SPDX-License-Identifier: BSD-3-Clause
"""Train the small Llama that accuracy is measured on, on text that installed packages ship.

    python -m benchmarks.language_model.train --seeds 0 1 2 --minutes 1.7 --output DIR

writes DIR/lm0, DIR/lm1, …, each with model.safetensors (bfloat16), config.json, tokenizer.json,
train.pt (calibration), held.pt, held2.pt (tokens, int16) and log.json. Needs a GPU for a useful
model; --minutes is what each seed trains after compilation. The same text, tokenizer and held
sequences serve all seeds.
"""

import argparse
import copy
import json
import math
import pathlib
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from benchmarks.language_model import corpus
from benchmarks.language_model.model import LENGTH, config
from blockscale.bench.machine import commit, hardware, versions

RATE, WARM, DECAY = 3e-3, 0.03, 0.1  # AdamW: largest rate, part of the time it rises, weight decay
SEQUENCES = {"train": 128, "held": 64, "held2": 64}


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross entropy, in nats, of each token but the first given those before it."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def draw(stream: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Sequences that begin anywhere in the stream [batch, length], int64."""
    starts = torch.randint(len(stream) - length, (batch, 1), generator=generator)
    index = starts.to(stream.device) + torch.arange(length, device=stream.device)
    return stream[index].to(torch.int64)


def rate(done: float) -> float:
    """The learning rate when this part of the time is over: up, then a cosine down."""
    if done < WARM:
        return RATE * (done / WARM)
    return RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Matrices decay, norms do not."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    cuda = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=cuda)


class Trainer:
    """What training takes beside a model: text, sizes, and whether torch can compile here."""

    def __init__(self, stream: Tensor, batch: int, length: int, *, compiled: bool):
        self.stream, self.batch, self.length = stream, batch, length
        self.compiled = compiled

    def step_of(self, model: nn.Module) -> Any:
        """What takes tokens to a loss: compiled if that works here."""
        if not self.compiled:
            return lambda tokens: self.autocast(model, tokens)
        step = torch.compile(lambda tokens: self.autocast(model, tokens), dynamic=False)
        tokens = draw(self.stream, self.batch, self.length, torch.Generator().manual_seed(0))
        try:
            step(tokens).backward()
        except Exception as error:  # torch's compiler raises many kinds
            print(f"not compiled: {type(error).__name__}: {error}")
            self.compiled = False
            return self.step_of(model)
        finally:
            model.zero_grad()
        return step

    def autocast(self, model: nn.Module, tokens: Tensor) -> Tensor:
        with torch.autocast(self.stream.device.type, dtype=torch.bfloat16):
            return loss_of(model, tokens)

    def train(
        self, model: nn.Module, step: Any, seed: int, *, seconds: float = 0.0, count: int = 0
    ) -> dict[str, Any]:
        """Train in place by a step that `step_of` returned: `count` steps, or for `seconds`.

        -> what to log. Only a count gives the same model on every machine.
        """
        if bool(seconds) == bool(count):
            raise ValueError(f"expected either seconds or a count, got {seconds} and {count}")
        adam = optimizer(model)
        generator = torch.Generator().manual_seed(seed)
        start, losses, done, steps = time.perf_counter(), [], 0.0, 0
        while done < 1:
            tokens = draw(self.stream, self.batch, self.length, generator)
            for group in adam.param_groups:
                group["lr"] = rate(done)
            loss = step(tokens)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
            if steps % 20 == 0:  # reading a loss waits for the device, which keeps the clock honest
                losses.append(round(float(loss.detach()), 4))
            steps += 1
            done = steps / count if count else (time.perf_counter() - start) / seconds
        return {
            "seconds": round(time.perf_counter() - start, 1),
            "steps": steps,
            "tokens": steps * self.batch * self.length,
            "compiled": self.compiled,
            "losses": losses,
        }


@torch.inference_mode()
def held_loss(model: nn.Module, tokens: Tensor) -> float:
    """Mean cross entropy in nats, in float32."""
    device = next(model.parameters()).device
    parts = [float(loss_of(model, part.to(device))) for part in tokens.split(8)]
    weights = [len(part) for part in tokens.split(8)]
    return sum(p * w for p, w in zip(parts, weights, strict=True)) / sum(weights)


def save(model: Any, tokens: dict[str, Tensor], tokenizer: Any, log: Any, to: pathlib.Path) -> None:
    """Write a folder that benchmarks.language_model.model.load reads."""
    to.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(to)
    (to / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save(str(to / "tokenizer.json"))
    for name, each in tokens.items():
        torch.save(each.to(torch.int16), to / f"{name}.pt")
    (to / "log.json").write_text(json.dumps(log, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=1.7, help="of training, for each seed")
    parser.add_argument("--megabytes", type=float, default=400, help="of text, at most")
    parser.add_argument("--batch", type=int, default=128, help="sequences of a step")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    given, start = arguments(), time.perf_counter()
    torch.set_float32_matmul_precision("high")
    text = corpus.read(corpus.folders(), given.megabytes)
    tokenizer = corpus.train_tokenizer(text.texts["train"], config().vocab_size, 40)
    told = f"{text.megabytes:.0f} MB of text, tokenizer after"
    print(f"{told} {time.perf_counter() - start:.0f} s", flush=True)
    stream = corpus.encode(tokenizer, text.texts["train"]).to(given.device)
    tokens = {
        part: corpus.windows(
            corpus.encode(tokenizer, text.texts["calibration" if part == "train" else part]),
            count,
            LENGTH,
            seed=0,
        )
        for part, count in SEQUENCES.items()
    }
    print(f"{len(stream):,} tokens after {time.perf_counter() - start:.0f} s", flush=True)
    trainer = Trainer(stream, given.batch, LENGTH, compiled=given.compile)
    about = {
        "commit": commit(), "hardware": hardware(given.device), "versions": versions(),
        "corpus": {"digest": text.digest, "megabytes": round(text.megabytes, 1),
                   "tokens": len(stream)},
    }  # fmt: skip
    if given.device.startswith("cuda"):
        about["device"] = torch.cuda.get_device_name()
    model = LlamaForCausalLM(config()).to(given.device)
    step = trainer.step_of(model)  # compiled once: each seed's weights are put into this model
    for seed in given.seeds:
        torch.manual_seed(seed)
        model.load_state_dict(LlamaForCausalLM(config()).state_dict())
        log = {"seed": seed, "batch": given.batch}
        log |= trainer.train(model, step, seed, seconds=given.minutes * 60)
        with torch.no_grad():
            for each in model.parameters():  # what is saved is what is measured
                each.copy_(each.to(torch.bfloat16))
        for part in ("held", "held2"):
            log[f"{part}_loss"] = held_loss(model, tokens[part])
            log[f"{part}_perplexity"] = math.exp(log[f"{part}_loss"])
        folder = given.output / f"lm{seed}"
        save(model, tokens, tokenizer, {**log, **about}, folder)
        print(f"{folder}: {log['steps']} steps, perplexity {log['held_perplexity']:.2f}, "
              f"{time.perf_counter() - start:.0f} s so far", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
