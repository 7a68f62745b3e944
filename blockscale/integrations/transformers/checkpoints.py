# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers from what other producers wrote, with the files' own codes.

`from_pretrained` chooses a quantizer by the `quant_method` of config.json, and of a GGUF file makes
floats: what is neither ours nor float goes to its producer's package. So this is a function beside.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from blockscale.export.checkpoints.gguf import reading as gguf
from blockscale.export.checkpoints.loading import load
from blockscale.files.metadata import FileError
from blockscale.integrations.transformers.gguf_config import config_of_gguf, refusing

_QUANTIZATION = ("quantization_config", "quantization", "compression_config")
_GENERATION = "generation_config.json"


def from_checkpoint(
    path: str | Path,
    auto_class: Any = AutoModelForCausalLM,
    *,
    config: PreTrainedConfig | str | Path | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """A model of transformers whose layers hold a checkpoint's codes, on the CPU, in eval mode.

    path: what `bs.load` takes: a directory or file of GPTQ, AWQ, bitsandbytes, compressed-tensors,
        MLX and others (docs/checkpoints.md), of ours or in float, or a GGUF file of one of the
        architectures that docs/checkpoints.md lists
    auto_class: what makes the model of its config: an Auto class, or a model's class
    config: the model's config or a directory that has it; None for the config.json beside the
        weights, and for what the metadata of a GGUF file say
    dtype: of floats that remain, and in which layers compute; None for the config's, else float32

    Parameters are on "meta" until they are read: no float copy of a quantized weight is made. What
    a config says of quantization is taken out, since the files say it. No code of a checkpoint is
    run, nothing is downloaded, and tokenizers are not read. `save_pretrained` writes a directory of
    ours.

    Raises FileError for a path that is missing, of no model that transformers has, damaged, or
    that holds what cannot be read or is no part of the model; and returns nothing half loaded.
    """
    path = Path(path)
    if not path.exists():
        raise FileError(
            f"{path} does not exist: for a name on the hub, download the files first "
            "(huggingface_hub.snapshot_download) and pass their directory"
        )
    found = _config(path, config)
    model = _built(path, found, auto_class, dtype)
    load(model, path)
    folder = path if path.is_dir() else path.parent
    if (folder / _GENERATION).is_file() and model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval()


def _config(path: Path, given: PreTrainedConfig | str | Path | None) -> PreTrainedConfig:
    """The config of the model, without how its weights are quantized."""
    if isinstance(given, PreTrainedConfig):
        return _floats(type(given).from_dict(given.to_dict()))
    evidence = gguf.recognize(path)
    if given is None and evidence is not None:
        with gguf.GGUF(path, evidence) as checkpoint:
            return config_of_gguf(checkpoint)
    folder = Path(given) if given is not None else path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        raise FileError(
            f"{folder} has no config.json, which describes the model: pass the directory of "
            "the original model's config.json (config=); pass a GGUF file itself, not its "
            "directory"
        )
    with refusing(f"{folder}/config.json: transformers"):
        return _floats(
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        )


def _floats(config: PreTrainedConfig) -> PreTrainedConfig:
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in _QUANTIZATION:
            if name in getattr(part, "__dict__", {}):
                delattr(part, name)
    return config


def _built(path: Path, config: PreTrainedConfig, auto_class: Any, dtype: torch.dtype | None) -> Any:
    """The float model, its parameters on "meta"; raises FileError where there is none."""
    kept: Any = dtype or config.dtype or torch.float32
    auto = hasattr(auto_class, "from_config")
    options: Any = {"dtype": kept} | ({"trust_remote_code": False} if auto else {})
    make = auto_class.from_config if auto else auto_class._from_config
    what = getattr(auto_class, "__name__", str(auto_class))
    with refusing(f"{path}: {what} makes no model of its config"), _parameters_on_meta():
        return make(config, **options)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters of modules that are made inside have no data. Buffers, such as frequencies of
    positions, which no file has, are computed."""
    ours = threading.get_ident()

    def on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> Any:
        del module, name
        if threading.get_ident() != ours or param is None or param.device.type == "meta":
            return None  # it stays as it is
        return nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)

    hook = register_module_parameter_registration_hook(on_meta)
    try:
        yield
    finally:
        hook.remove()
