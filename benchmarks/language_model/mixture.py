# SPDX-License-Identifier: BSD-3-Clause
"""A small mixture of experts: trained, then its experts in each format, plain and calibrated.

    python -m benchmarks.language_model.mixture --output DIR --train-seconds 110 --seconds 220

trains a Mixtral of 21 million parameters (6 layers, 8 experts, 2 for each token) on the text that
benchmarks.language_model.corpus finds, and writes DIR/moe (the weights in bfloat16, tokens, log),
DIR/mixture.json (a line of figures for each cell) and DIR/mixture.md (the table of the page). Where
DIR/moe is there already it is not trained again; cells that DIR/mixture.json has are not measured
again, so that the same command, on another machine, goes on. Only experts are quantized: attention,
routers, the table of tokens and the logits stay in float. AutoRound is measured beside where it is
installed (--only "*AutoRound").
"""

import argparse
import copy
import fnmatch
import json
import math
import pathlib
import time
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import MixtralConfig, MixtralForCausalLM

import blockscale as bs
from benchmarks.language_model import corpus
from benchmarks.language_model.evaluate import Scores, batches, compared, score, static
from benchmarks.language_model.model import LENGTH, Trained
from benchmarks.language_model.train import SEQUENCES, draw, held_loss, optimizer, rate, save
from benchmarks.real_models.peers import auto_round
from blockscale.bench.machine import commit, hardware, versions
from blockscale.calibration.routers import routers, watch_routers

WEIGHTS = ("int4:group32:fp32", "nvfp4", "mxfp4", "int4:group32:fp16")
PAIRS = (("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"), ("int4:group32:fp32", "int8_token"))
ALGORITHMS = ("absmax", "gptq", "search", "signround")  # the last of pairs alone
PEER = ("int4:group32:fp16", "AutoRound", None)  # as it quantizes: 4 bits and half a bit of scales
BALANCE = 0.02  # share of the loss that makes routers use all experts


def config(**changes: Any) -> MixtralConfig:
    """21 million parameters: 6 layers of 256, 8 experts of 512, of which each token goes to 2."""
    sizes = {
        "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": LENGTH, "tie_word_embeddings": True,
        "sliding_window": None, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    return MixtralConfig(**{**sizes, **changes})


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross entropy of each token but the first, and what balances the experts."""
    given = model(input_ids=tokens, use_cache=False, output_router_logits=True)
    logits = given.logits[:, :-1].float()
    likely = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return likely + BALANCE * given.aux_loss


def trained_for(
    model: nn.Module, stream: Tensor, batch: int, length: int, *, seconds: float
) -> dict[str, Any]:
    """Train in place for so long; what to log."""
    adam, generator = optimizer(model), torch.Generator().manual_seed(0)
    start, losses, steps, done = time.perf_counter(), [], 0, 0.0
    while done < 1:
        tokens = draw(stream, batch, length, generator)
        for group in adam.param_groups:
            group["lr"] = rate(done)
        with torch.autocast(stream.device.type, dtype=torch.bfloat16):
            loss = loss_of(model, tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        if steps % 20 == 0:  # reading a loss waits for the device
            losses.append(round(float(loss.detach()), 4))
        steps += 1
        done = (time.perf_counter() - start) / seconds
    return {
        "seconds": round(time.perf_counter() - start, 1), "steps": steps,
        "tokens": steps * batch * length, "losses": losses,
    }  # fmt: skip


def train(given: argparse.Namespace, folder: pathlib.Path) -> None:
    """Write the folder of a trained model."""
    start = time.perf_counter()
    text = corpus.read(corpus.folders(), given.megabytes)
    tokenizer = corpus.train_tokenizer(text.texts["train"], config().vocab_size, 20)
    stream = corpus.encode(tokenizer, text.texts["train"]).to(given.device)
    parts = {part: "calibration" if part == "train" else part for part in SEQUENCES}
    tokens = {
        part: corpus.windows(corpus.encode(tokenizer, text.texts[parts[part]]), count, LENGTH, 0)
        for part, count in SEQUENCES.items()
    }
    told = f"{text.megabytes:.0f} MB of text, {len(stream):,} tokens"
    print(f"{told} after {time.perf_counter() - start:.0f} s", flush=True)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = MixtralForCausalLM(config(**given.sizes)).to(given.device)
    model.set_experts_implementation("eager")  # autocast knows its products
    log = trained_for(model, stream, given.batch, LENGTH, seconds=given.train_seconds)
    torch.set_float32_matmul_precision("highest")
    with torch.no_grad():
        for each in model.parameters():  # what is saved is what is measured
            each.copy_(each.to(torch.bfloat16))
    for part in ("held", "held2"):
        log[f"{part}_perplexity"] = math.exp(held_loss(model, tokens[part]))
    log["parameters"] = sum(each.numel() for each in model.parameters())
    log |= {"corpus": {"digest": text.digest, "megabytes": round(text.megabytes, 1)}}
    save(model, tokens, tokenizer, log | about(given.device), folder)
    print(f"{folder}: {log['steps']} steps, perplexity {log['held_perplexity']:.2f}, "
          f"{time.perf_counter() - start:.0f} s so far", flush=True)  # fmt: skip


def load(folder: pathlib.Path, device: str) -> Trained:
    """What `train` wrote."""
    model = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = [torch.load(folder / f"{each}.pt").to(torch.int64) for each in SEQUENCES]
    return Trained(model.to(device), *tokens)


def about(device: str) -> dict[str, Any]:
    """Where figures come from."""
    told: dict[str, Any] = {"commit": commit(), "hardware": hardware(device),
                            "versions": versions()}  # fmt: skip
    if device.startswith("cuda"):
        told["device"] = torch.cuda.get_device_name()
    return told


def quantized(
    trained: Trained, weight: str, algorithm: str, given: str | None
) -> tuple[Any, bs.Ledger]:
    """A copy whose experts are quantized, and its ledger."""
    model = copy.deepcopy(trained.model)
    scheme = {"weight": weight} | ({"input": given} if given else {})
    recipe = bs.Recipe(rules={"*.experts": scheme})
    if algorithm == "absmax" and not static(given):
        return model, bs.quantize_(model, recipe)
    device = next(model.parameters()).device
    data = batches(trained.train.to(device))
    return model, bs.calibrate(model, data, recipe, weight=algorithm, progress=False)


def by_auto_round(trained: Trained) -> nn.Module:
    """AutoRound's experts of four bits, whose choices see the tokens that ours see."""
    tokens = trained.train
    data = [
        {"input_ids": each, "attention_mask": torch.ones_like(each)} for each in tokens[:, None]
    ]
    linear = [n for n, each in trained.model.named_modules() if isinstance(each, nn.Linear)]
    return auto_round(trained.model, data, tokens.shape[1], linear)


def measure_peer(trained: Trained, known: dict[str, Scores]) -> dict[str, Any]:
    """The cell of PEER."""
    start = time.perf_counter()
    model = by_auto_round(trained)
    cell: dict[str, Any] = dict(zip(("weight", "algorithm", "input"), PEER, strict=True))
    cell |= {"bits": 4.5, "seconds": round(time.perf_counter() - start, 1)}
    return cell | against_float(trained, known, model)


def measure(
    trained: Trained, known: dict[str, Scores], weight: str, algorithm: str, given: str | None
) -> dict[str, Any]:
    """One cell. `known` has the float model's scores of each part, which it fills."""
    start = time.perf_counter()
    model, ledger = quantized(trained, weight, algorithm, given)
    experts = [entry for entry in ledger.quantized if ".experts." in entry.name]
    elements = sum(entry.elements for entry in experts)
    cell: dict[str, Any] = {
        "weight": weight, "input": given, "algorithm": algorithm,
        "bits": round(8 * sum(e.bytes_after for e in experts) / elements, 4),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    if algorithm != "absmax":
        cell["experts"] = {entry.name: entry.details for entry in experts}
    return cell | against_float(trained, known, model)


def against_float(trained: Trained, known: dict[str, Scores], model: nn.Module) -> dict[str, Any]:
    """What a model loses, and the least share of choices that a router keeps."""
    cell: dict[str, Any] = {}
    for part in ("held", "held2"):
        tokens = getattr(trained, part)
        if part not in known:
            known[part] = score(trained.model, tokens)
        cell[part] = compared(score(model, tokens), known[part])
    return cell | {"choices": round(least_choices(trained, model), 5)}


def least_choices(trained: Trained, model: nn.Module) -> float:
    """The least share of its choices that a router keeps, as bs.compare counts them of our layers;
    another's model has none."""
    pairs = routers(trained.model, model)
    device = next(model.parameters()).device
    with torch.inference_mode():
        for batch in batches(trained.held[:8].to(device)):
            for each, quantized in ((trained.model, False), (model, True)):
                with watch_routers(pairs, quantized=quantized):
                    each(**batch)
    return min(result.choices for pair in pairs if (result := pair.result()) is not None)


def tokens_of_experts(trained: Trained) -> list[list[int]]:
    """How many tokens of the calibration each expert of each layer gets."""
    counts: list[Tensor] = []
    model: Any = trained.model
    with torch.inference_mode():
        for batch in trained.train.split(8):
            device = next(model.parameters()).device
            given = model(input_ids=batch.to(device), use_cache=False, output_router_logits=True)
            best = [each.topk(model.config.num_experts_per_tok).indices.flatten()
                    for each in given.router_logits]  # fmt: skip
            counts.append(torch.stack([b.bincount(minlength=model.config.num_local_experts)
                                       for b in best]).cpu())  # fmt: skip
    return torch.stack(counts).sum(0).tolist()


def key(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What tells cells apart."""
    return cell["weight"], cell["input"], cell["algorithm"]


def table(found: dict[str, Any]) -> str:
    """The figures as a table of docs/experts.md."""
    cells = {key(cell): cell for cell in found["cells"]}
    lines = [
        "| experts | input | bits | plain | gptq | search | signround | best / plain | choices kept"
        " |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for weight, given in (*((weight, None) for weight in WEIGHTS), *PAIRS):
        row = [cells.get((weight, given, algorithm)) for algorithm in ALGORITHMS]
        if row[0] is None:
            continue
        added = [None if each is None else each["held"]["added"] for each in row]
        best = min((each for each in added[1:] if each is not None), default=None)
        chosen = next((c for c in row[1:] if c and c["held"]["added"] == best), row[0])
        ratio = "" if best is None else f"{best / added[0]:.2f}"
        shown = " | ".join("" if each is None else f"{each:.4f}" for each in added)
        lines.append(
            f"| `{weight}` | {f'`{given}`' if given else 'float'} | {row[0]['bits']:.2f} | {shown} "
            f"| {ratio} | {100 * chosen['choices']:.1f} % |"
        )
    peer = cells.get((PEER[0], PEER[2], PEER[1]))
    if peer is not None:
        loss, kept = f"{peer['held']['added']:.4f}", f"{100 * peer['choices']:.1f} %"
        lines.append(f"| AutoRound | float | {peer['bits']:.2f} | | | | {loss} | | {kept} |")
    return "\n".join(lines) + "\n"


def cells(given: argparse.Namespace) -> list[tuple[str, str, str | None]]:
    """(weight, algorithm, input), the most asked for first."""
    some = [*((weight, None) for weight in WEIGHTS), *PAIRS]
    every = [(w, a, i) for w, i in some for a in ALGORITHMS[:2]]
    every += [(w, ALGORITHMS[2], i) for w, i in some]
    every += [(w, ALGORITHMS[3], i) for w, i in PAIRS]
    every += [PEER] if find_spec("auto_round") else []
    asked = given.only or ["*"]
    found = [each for name in asked for each in every if fnmatch.fnmatch(name_of(each), name)]
    return list(dict.fromkeys(found))


def name_of(cell: tuple[str, str, str | None]) -> str:
    """What --only is compared with."""
    return f"{cell[0]} x {cell[2] or 'float'} {cell[1]}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--train-seconds", type=float, default=110)
    parser.add_argument("--seconds", type=float, default=220, help="in all; then no cell is begun")
    parser.add_argument("--megabytes", type=float, default=80, help="of text, at most")
    parser.add_argument("--batch", type=int, default=128, help="sequences of a step")
    parser.add_argument("--sizes", type=json.loads, default={}, help="changes of the config")
    parser.add_argument("--only", nargs="+", help="patterns as 'mxfp4 x float gptq', in this order")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    given, start = arguments(), time.perf_counter()
    given.output.mkdir(parents=True, exist_ok=True)
    folder, path = given.output / "moe", given.output / "mixture.json"
    if not (folder / "log.json").exists():
        train(given, folder)
    trained = load(folder, given.device)
    found: dict[str, Any] = {"cells": []}
    if path.exists():
        found = json.loads(path.read_text())
    else:
        found["log"] = json.loads((folder / "log.json").read_text())
        found["tokens"] = tokens_of_experts(trained)
    have, known = {key(cell) for cell in found["cells"]}, {}
    for weight, algorithm, by in cells(given):
        if (weight, by, algorithm) in have:
            continue
        if time.perf_counter() - start > given.seconds:
            print("out of time: the same command goes on from here")
            break
        try:
            peer = algorithm == PEER[1]
            cell = (measure_peer(trained, known) if peer
                    else measure(trained, known, weight, algorithm, by))  # fmt: skip
        except Exception as error:  # said, not hidden; the other cells are measured
            told = f"{type(error).__name__}: {str(error).strip()[:600]}"
            print(f"{name_of((weight, algorithm, by))}: {told}", flush=True)
            continue
        found["cells"].append({**cell, "about": about(given.device)})
        path.write_text(json.dumps(found, indent=1) + "\n")
        (given.output / "mixture.md").write_text(table(found))
        print(f"{name_of((weight, algorithm, by))}: added {cell['held']['added']:.4f} ± "
              f"{cell['held']['error']:.4f}, choices {cell['choices']:.4f}, {cell['seconds']} s",
              flush=True)  # fmt: skip
    print(table(found))


if __name__ == "__main__":
    main()
