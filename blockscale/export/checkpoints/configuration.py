"""What a directory's configuration says about how its weights are quantized."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blockscale.core.untrusted.files import FileError
from blockscale.core.untrusted.json_text import json_object, read_json
from blockscale.files.stream import Reader

# Files beside config.json that say it, and the method that they are of where they name none
_OTHERS = {
    "quantize_config.json": "gptq",  # AutoGPTQ, before transformers' config had it
    "quant_config.json": "awq",  # AutoAWQ's
    "hf_quant_config.json": "modelopt",
    "quanto_qmap.json": "quanto",
    "quantization_map.json": "quanto",
}


def read_configuration(path: Path, files: Iterable[Path] = ()) -> dict[str, Any]:
    """The `quantization_config` of the model in a directory, or {}; of a file, its folder's.

    files: the safetensors files, whose metadata are joined under the key "safetensors_metadata".
    Under "model" stands the whole of config.json, under "evidence" which file said it. What is in a
    file of its own has a key `quant_method`, too.

    Raises FileError for files that are no JSON objects.
    """
    folder = path if path.is_dir() else path.parent
    found: dict[str, Any] = {}
    model: dict[str, Any] = {}
    source = ""
    if (folder / "config.json").is_file():
        model = json_object(read_json(folder / "config.json"), folder / "config.json")
        found, source = _of_model(model, folder / "config.json")
    for name, method in _OTHERS.items():
        if not found and (folder / name).is_file():
            inside = json_object(read_json(folder / name), folder / name)
            found, source = {"quant_method": method} | _flat(inside, method), name
    metadata: dict[str, str] = {}
    for file in files:
        with Reader(file) as opened:
            metadata |= opened.metadata
    extra = {"safetensors_metadata": metadata, "model": model, "evidence": source}
    return dict(found) | extra


def _of_model(model: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], str]:
    """What config.json says, for the text part of a model of several, too."""
    for part in (model, model.get("text_config")):
        if not isinstance(part, dict):
            continue
        if part.get("quantization_config") is not None:
            config = part["quantization_config"]
            if not isinstance(config, dict):
                raise FileError(f"{path}: quantization_config is no JSON object")
            method = config.get("quant_method")
            if method is None and {"bits", "group_size"} <= config.keys():
                return {"quant_method": "mlx"} | config, "config.json: quantization"
            return config, f"config.json: quant_method {method}"
        if isinstance(part.get("quantization"), dict):  # mlx-lm's
            return {"quant_method": "mlx"} | part["quantization"], "config.json: quantization"
    return {}, ""


def _flat(inside: dict[str, Any], method: str) -> dict[str, Any]:
    """What a file of its own holds; ModelOpt's has it one level down, quanto's is a map."""
    if method == "quanto":
        return {"modules": inside}
    deeper = inside.get("quantization")
    return inside | deeper if isinstance(deeper, dict) else inside
