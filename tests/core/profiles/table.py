# SPDX-License-Identifier: BSD-3-Clause
"""The table of docs/profiles.md, from a comparison with what producers gave.

    python -m tests.core.profiles.table

compares every profile with the recorded bytes and writes the table; a test compares the page.
"""

import pathlib

import blockscale as bs
from blockscale.core.profiles.producers.gguf import PROFILES as GGUF
from tests.core.profiles.recorded import DTYPES, differing, profiles, recorded
from tests.support.ggml_recorded import RECORDED, in_blocks
from tests.support.profile_inputs import KINDS

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "profiles.md"
BEGIN, END = "<!-- compared: python -m tests.core.profiles.table -->\n", "<!-- end -->\n"
PRODUCERS = {
    "gptq": "AutoGPTQ 0.7.1",
    "awq": "AutoAWQ 0.2.9",
    "bnb": "bitsandbytes 0.50.2",
    "compressed_tensors": "compressed-tensors 0.20.0",
    "modelopt": "ModelOpt 0.47.0",
    "mlx": "MLX 0.32.4 (CPU)",
    "hqq": "hqq 0.2.8.post1",
    "quanto": "optimum-quanto 0.2.7",
    "onnxruntime": "onnxruntime 1.31.1",
    "nncf": "NNCF 3.4.0, OpenVINO 2026.4.1",
    "dmx": "dmx-compressor 0.1.11",
    "microxcaling": "microxcaling 3b429a8",
}
BLOCKS = {"gptq": ":group64", "awq": ":group64"}
HEAD = (
    "| profile | result | compared with | as | numbers | other bits |\n|---|---|---|---|--:|--:|\n"
)


def block_of(producer: str, name: str) -> str:
    """The block that was recorded, where it is not the profile's own."""
    if producer == "compressed_tensors" and "int" in name:
        return ":group64"
    if producer == "nncf" and not name.startswith("int8") and name != "nvfp4":
        return ":group64"
    return BLOCKS.get(producer, "")


def rows() -> list[str]:
    made = []
    for profile in GGUF:
        name = profile.name.removeprefix("gguf.").upper()
        total = other = 0
        for kind in KINDS:
            ours = in_blocks(name, bs.quantize(RECORDED[f"x.{kind}"], profile))
            other += int((ours != RECORDED[f"{name}.{kind}"]).sum())
            total += ours.numel()
        cells = [
            f"`{profile.name}`",
            f"`{profile.format}`",
            "ggml 0.25.3",
            "fp32",
            f"{total} bytes",
        ]
        made.append(" | ".join([*cells, str(other)]))
    for producer, told in PRODUCERS.items():
        made += [row(producer, name, told) for name in names(producer)]
    return made


def names(producer: str) -> list[str]:
    return sorted({name for name, _ in profiles(producer)})


def row(producer: str, name: str, told: str) -> str:
    full = f"{producer}.{name}"
    dtypes = [each for each in DTYPES if (name, each) in profiles(producer)]
    cells = [f"`{full}`", f"`{bs.profile(full).format}`", told, ", ".join(dtypes)]
    starts = tuple(f"{name}.{dtype}." for dtype in dtypes)
    total = sum(each.numel() for key, each in recorded(producer).items() if key.startswith(starts))
    if producer == "hqq" and not name.endswith("_rtn"):
        return " | ".join([*cells, str(total), "at ties"])
    found = [differing(producer, name, d, kind, block_of(producer, name))
             for d in dtypes for kind in KINDS]  # fmt: skip
    return " | ".join([*cells, str(total), str(sum(sum(each.values()) for each in found))])


def table() -> str:
    return HEAD + "".join(f"| {each} |\n" for each in rows())


def page(made: str) -> str:
    """docs/profiles.md with this table."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + made + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(table()))
