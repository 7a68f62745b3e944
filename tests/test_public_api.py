"""The public names, one list: changing one is a visible diff. Add freely, rename never."""

import inspect

import blockscale as bs

NAMES = [
    "Entry",
    "FileError",
    "Format",
    "Ledger",
    "QTensor",
    "Recipe",
    "SkippedError",
    "choose_qparams",
    "compat",
    "fake_quantize",
    "formats",
    "hardware",
    "load",
    "parse",
    "quantize",
    "quantize_",
    "quantize_directory",
    "save",
    "use",
]

PARAMETERS = {
    "choose_qparams": ["x", "fmt"],
    "quantize": ["x", "fmt", "scale", "zero_point", "seed"],
    "fake_quantize": ["x", "fmt", "scale", "zero_point", "seed"],
    "quantize_": ["model", "recipe", "strict", "input_scales", "seed"],
    "Recipe": ["weight", "input", "output", "rules", "skip"],
    "save": ["model", "path"],
    "load": ["model", "path"],
    "parse": ["text"],
    "use": ["backend"],
    "hardware": [],
}


def public_names():
    modules = {
        "core",
        "kernels",
        "ops",
        "export",
        "demo",
        "bench",
        "cli",
        "calibrate",
        "qat",
        "graph",
        "search",
    }
    return sorted(n for n in vars(bs) if not n.startswith("_") and n not in modules)


def test_the_public_names():
    assert public_names() == sorted(NAMES)


def test_their_parameters():
    found = {name: list(inspect.signature(getattr(bs, name)).parameters) for name in PARAMETERS}
    assert found == PARAMETERS


def test_every_public_name_is_documented():
    undocumented = [n for n in NAMES if n != "compat" and not inspect.getdoc(getattr(bs, n))]
    assert undocumented == []
