# SPDX-License-Identifier: BSD-3-Clause
"""The public names, one list: changing one is a visible diff. Add freely, rename never."""

import inspect

import blockscale as bs

NAMES = [
    "Entry",
    "FileError",
    "Format",
    "Ledger",
    "Preset",
    "Profile",
    "QTensor",
    "QuantizationParams",
    "QuantizationSystem",
    "Recipe",
    "SkippedError",
    "auto_quantize_tensor",
    "calibrate",
    "checkpoint",
    "choose_qparams",
    "compare",
    "compat",
    "convert",
    "create_optimal_params",
    "create_quantization_system",
    "estimate_accuracy_impact",
    "estimate_memory_savings",
    "evaluate",
    "export",
    "fake_quantize",
    "formats",
    "graph",
    "hardware",
    "integrations",
    "load",
    "observers",
    "parallel",
    "parse",
    "prepare_qat",
    "preset",
    "presets",
    "profile",
    "quantize",
    "quantize_",
    "quantize_directory",
    "report",
    "round_to_power_of_2",
    "read_search",
    "recommend",
    "save",
    "search",
    "use",
    "webgpu",
]

PARAMETERS = {
    "choose_qparams": ["x", "fmt"],
    "quantize": ["x", "fmt", "scale", "zero_point", "seed", "offset"],
    "fake_quantize": ["x", "fmt", "scale", "zero_point", "seed", "offset"],
    "quantize_": [
        "model",
        "recipe",
        "strict",
        "input_scales",
        "output_scales",
        "weights",
        "before",
        "seed",
        "sample",
        "faster",
    ],
    "calibrate": [
        "model",
        "batches",
        "recipe",
        "observer",
        "weight",
        "transform",
        "strict",
        "progress",
        "sequential",
        "blocks",
        "budget",
        "seed",
        "source",
        "resume",
        "group",
        "padding",
        "experts",
        "bias",
    ],
    "compare": ["model_float", "model_quantized", "batches", "progress", "budget"],
    "Recipe": [
        "weight",
        "input",
        "output",
        "rules",
        "skip",
        "bias",
        "profile",
        "fused",
        "calibration",
        "preset",
    ],
    "preset": ["name", "skip", "rules"],
    "presets": [],
    "round_to_power_of_2": ["scale"],
    "save": ["model", "path"],
    "load": ["model", "path"],
    "parse": ["text"],
    "profile": ["name", "version"],
    "report": ["path", "output", "source", "search", "evaluation", "figures", "progress"],
    "use": ["backend", "fallback", "batch_invariant"],
    "webgpu": [],
    "prepare_qat": ["model", "recipe", "strict", "fuse", "learn", "observer"],
    "convert": ["model"],
    "hardware": ["measure"],
    "search": [
        "model",
        "batches",
        "budget",
        "candidates",
        "objective",
        "output",
        "score",
        "holdout",
        "points",
        "latency",
        "skip",
        "state",
        "progress",
        "seed",
    ],
    "read_search": ["path"],
    "recommend": [
        "model",
        "budget",
        "hardware",
        "batches",
        "candidates",
        "objective",
        "output",
        "holdout",
        "skip",
        "state",
        "progress",
    ],
}


def public_names():
    modules = {
        "core",
        "kernels",
        "ops",
        "demo",
        "bench",
        "cli",
        "qat",
        "files",
        "layers",
        "calibration",
        "selection",
        "reporting",
        "moved",
        "evaluation",
    }
    return sorted(n for n in vars(bs) if not n.startswith("_") and n not in modules)


def test_the_public_names():
    assert public_names() == sorted(NAMES)


def test_their_parameters():
    found = {name: list(inspect.signature(getattr(bs, name)).parameters) for name in PARAMETERS}
    assert found == PARAMETERS


def test_every_public_name_is_documented():
    undocumented = [
        n
        for n in NAMES
        if n not in ("compat", "integrations") and not inspect.getdoc(getattr(bs, n))
    ]
    assert undocumented == []
