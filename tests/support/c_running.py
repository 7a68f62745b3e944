# SPDX-License-Identifier: BSD-3-Clause
"""C files compiled and run: what they give for batches of codes, one call an example."""

import shutil
import subprocess
import warnings

import pytest
import torch

import blockscale as bs
from blockscale.export.to_c.text import C_TYPES

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
SANITIZED = ["-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
ARM = "arm-linux-gnueabihf-gcc"
_TYPES = {name: dtype for dtype, name in C_TYPES.items() if dtype != torch.bool}

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_arm = pytest.mark.skipif(
    shutil.which(ARM) is None or shutil.which("qemu-arm") is None,
    reason=f"{ARM} or qemu-arm is not installed (apt: gcc-{ARM[:-4]} libc6-dev-armhf-cross "
    f"qemu-user)",
)


def doors(text):
    """(kind, C type, name, size) of each input and output, as the file's head says."""
    found = []
    for line in text.splitlines():
        words = line.removeprefix(" * ").split()
        if line == " */":
            break
        if words[:1] in (["input"], ["output"]):
            name, _, size = words[2].rstrip("]:").partition("[")
            found.append((words[0], words[1], name, int(size)))
    return found


def driver(text):
    """A program that reads the inputs of one call after another and writes what they give."""
    found = doors(text)
    lines = ['#include "model.c"', "#include <stdio.h>", "int main(void) {"]
    lines += [f"static {t} {name}[{size}];" for _, t, name, size in found]
    lines += ["for (;;) {"]
    for kind, _, name, size in found:
        if kind == "input":
            lines.append(f"if (fread({name}, sizeof *{name}, {size}, stdin) != {size}) return 0;")
    lines.append(f"if (model_run({', '.join(name for _, _, name, _ in found)})) return 3;")
    for kind, _, name, size in found:
        if kind == "output":
            lines.append(f"fwrite({name}, sizeof *{name}, {size}, stdout);")
    return "\n".join([*lines, "}", "}", ""])


def run(path, calls, *flags, gcc="gcc", emulator=()):
    """What a C file gives: for each output, one row for each call; calls: of input tensors."""
    text = path.read_text()
    folder = path.parent
    (folder / "model.c").write_text(text)
    (folder / "main.c").write_text(driver(text))
    program = str(folder / "program")
    given = [gcc, *STRICT, "-O1", *flags, "main.c", "-o", program]
    subprocess.run(given, cwd=folder, check=True)
    types = [t for kind, t, *_ in doors(text) if kind == "input"]
    data = b"".join(
        each.to(_TYPES[t]).contiguous().numpy().tobytes()
        for call in calls
        for t, each in zip(types, call, strict=True)
    )
    done = subprocess.run([*emulator, program], input=data, capture_output=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr.decode()}"
    assert not done.stderr, done.stderr
    return _split(done.stdout, [d for d in doors(text) if d[0] == "output"], len(calls))


def _split(data, outputs, count):
    made, at = [[] for _ in outputs], 0
    for _ in range(count):
        for rows, (_, t, _, size) in zip(made, outputs, strict=True):
            dtype = _TYPES[t]
            rows.append(torch.frombuffer(bytearray(data), dtype=dtype, count=size, offset=at))
            at += size * dtype.itemsize
    assert at == len(data)
    return [torch.stack(rows) for rows in made]


class Codes(torch.fx.Interpreter):
    """What goes through the doors of an integer graph."""

    def run_node(self, n):
        made = super().run_node(n)
        name = getattr(n.target, "__name__", "")
        if name.startswith("integer_quantize"):
            self.inside.append(made)
        return made

    def output(self, target, args, kwargs):
        outputs = next(n for n in self.module.graph.nodes if n.op == "output")
        self.outside = [
            self.env[n.args[0] if "integer_dequantize" in str(n.target) else n]
            for n in outputs.all_input_nodes
            if isinstance(self.env[n], torch.Tensor) and n.op != "placeholder"
        ]
        return super().output(target, args, kwargs)


def codes(graph, *x):
    """The codes that go in (behind the doors; else the integers themselves), and that come out."""
    walker = Codes(graph, garbage_collect_values=False)
    walker.inside = []
    with torch.no_grad(), bs.use("reference"):
        walker.run(*x)
    whole = [each for each in x if not each.is_floating_point()]
    return [*walker.inside, *whole], walker.outside


def check(graph, tmp_path, *calls, flags=(), **how):
    """The C file of a graph gives the graph's own codes for every call."""
    warnings.simplefilter("ignore", UserWarning)
    lowered = (
        bs.graph.lower(graph, "integer") if graph.meta["blockscale"].stage != "lowered" else graph
    )
    path = tmp_path / "written.c"
    bs.export.c(lowered, path, calls[0], overwrite=True)
    known = [codes(lowered, *x) for x in calls]
    found = run(path, [inside for inside, _ in known], *flags, **how)
    for at, rows in enumerate(found):
        expected = torch.stack([out[at].flatten() for _, out in known])
        if expected.dtype == torch.bool:
            expected = expected.to(torch.uint8)  # as C has them
        assert rows.dtype == expected.dtype
        assert torch.equal(rows, expected), (rows != expected).sum()
    return path
