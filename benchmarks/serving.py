# SPDX-License-Identifier: BSD-3-Clause
"""Tokens a second of vLLM's build for processors, by its own benchmark, with our plug-in.

    make .venv/.clients
    python -m benchmarks.serving [--recipes A,B] [--prompts 16] [--length 64] [--save NAME]

A Llama of 90 million random weights, in bfloat16 as vLLM computes it itself, quantized by us and
served as stored, and in vLLM's own int4 (compressed-tensors). Each runs in a process of its own,
one after another, with all processors: `vllm bench throughput`, prompts of `length` random tokens
and as many new ones, 8 requests at a time. Written to benchmarks/results/NAME.json (serving) with
hardware, versions and commit.
"""

import argparse
import importlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from benchmarks.record import record

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("BLOCKSCALE_CLIENTS", ROOT / ".venv" / "clients"))
WORDS = 8192
SKIP = ["lm_head", "model.embed_tokens"]  # vLLM's own int4 has none of them
RECIPES = {
    "int8 × int8": bs.Recipe("int8_channel", input="int8_token", skip=SKIP),
    "mxfp4": bs.Recipe("mxfp4", skip=SKIP),
    "int4": bs.Recipe("int4:group128:fp16", skip=SKIP),
}
OWN, THEIR_INT4 = "bfloat16, vLLM's", "int4, vLLM's"

_SCRIPT = """
import os, sys
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
from vllm.benchmarks.throughput import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args(sys.argv[1:]))
"""


def directories(folder: Path, recipes: list[str]) -> dict[str, Path]:
    """The float model, and what it becomes."""
    transformers = importlib.import_module("transformers")
    tokenizers = importlib.import_module("tokenizers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6,
        num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=1024,
        dtype="bfloat16",
    )  # fmt: skip
    plain = folder / "plain"
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    table = tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0")
    words = tokenizers.Tokenizer(table)
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = {OWN: plain}
    for name in recipes:
        made[name] = folder / name.replace(" ", "")
        bs.quantize_directory(plain, made[name], RECIPES[name])
    if "int4" in recipes:
        made[THEIR_INT4] = folder / "theirs"
        bs.export.convert_checkpoint(made["int4"], made[THEIR_INT4], "compressed-tensors")
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    for directory in made.values():
        saved.save_pretrained(directory)
    return made


def installed(folder: Path) -> Path:
    """Our entry point as `pip install` leaves it."""
    info = folder / "blockscale-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blockscale\nVersion: 0\n")
    point = "[vllm.general_plugins]\nblockscale = blockscale_vllm:register\n"
    (info / "entry_points.txt").write_text(point)
    return folder


def throughput(directory: Path, at: Path, prompts: int, length: int) -> dict[str, float]:
    """Requests and tokens a second, as vLLM's benchmark says.

    Raises RuntimeError with what vLLM wrote if it ends with an error.
    """
    python = FOLDER / "vllm" / "bin" / "python"
    out = at.parent / "found.json"
    environment = {**os.environ, "PYTHONPATH": f"{at}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [
            python, "-c", _SCRIPT, "--model", directory, "--dataset-name", "random",
            "--random-input-len", str(length), "--random-output-len", str(length),
            "--num-prompts", str(prompts), "--num-warmups", "2", "--max-num-seqs", "8",
            "--max-model-len", str(4 * length),
            "--dtype", "bfloat16", "--enforce-eager", "--no-enable-prefix-caching",
            "--disable-detokenize", "--output-json", str(out),
        ],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"vLLM: {done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    found: dict[str, float] = json.loads(out.read_text())
    return {name: round(found[name], 2) for name in ("requests_per_second", "tokens_per_second")}


def rates(
    name: str, directory: Path, at: Path, prompts: int, length: int
) -> dict[str, float] | dict[str, str]:
    """`throughput`, or the last line of the error if vLLM's own int4 has no kernel for this
    processor; of the others an error is ours to mend."""
    try:
        return throughput(directory, at, prompts, length)
    except RuntimeError as error:
        if name != THEIR_INT4:
            raise
        lines = [line for line in str(error).splitlines() if "Error: " in line]
        return {"error": (lines or str(error).splitlines())[-1].split("]: ")[-1]}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--save", default="serving")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        at = installed(Path(folder) / "installed")
        for name, directory in directories(Path(folder), args.recipes.split(",")).items():
            figures[name] = rates(name, directory, at, args.prompts, args.length)
            if "error" not in figures[name]:
                ratio = figures[name]["tokens_per_second"] / figures[OWN]["tokens_per_second"]
                figures[name]["of bfloat16"] = round(ratio, 3)
            print(f"{name:20} {figures[name]}", flush=True)
    print(record(args.save, figures))


if __name__ == "__main__":
    main()
