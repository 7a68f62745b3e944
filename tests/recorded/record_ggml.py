# SPDX-License-Identifier: BSD-3-Clause
"""Record what ggml's quantizers give, for tests that run without it.

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36   # has ggml 0.25.3's source
    tar xzf llama_cpp_python-0.3.36.tar.gz
    PYTHONPATH=. python tests/recorded/record_ggml.py llama_cpp_python-0.3.36/vendor/llama.cpp/ggml

Compiles ggml-quants.c as ggml does for its base library (-O3, x86-64 without options, which has no
fused multiplication and addition; gcc 12.2 made the file) and writes ggml.safetensors beside this
file: numbers `x.KIND`, and ggml's bytes of them, `TYPE.KIND`, in rows of a block.
"""

import ctypes
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file

from blockscale.export.checkpoints.gguf.records import TYPES
from tests.support.profile_inputs import KINDS, some_rows

HERE = pathlib.Path(__file__).parent
STUBS = """
#include <stdlib.h>
void ggml_abort(const char *file, int line, const char *text, ...) { abort(); }
size_t ggml_row_size(int type, long n) { return 0; }
size_t ggml_type_size(int type) { return 0; }
const char *ggml_type_name(int type) { return ""; }
"""


def library(ggml: pathlib.Path, folder: pathlib.Path) -> ctypes.CDLL:
    """ggml-quants.c, compiled: its names are those of C."""
    (folder / "stubs.c").write_text(STUBS)
    flags = ["-O3", "-DNDEBUG", "-D_GNU_SOURCE", "-std=gnu11", "-fPIC", "-shared"]
    sources = [ggml / "src" / "ggml-quants.c", folder / "stubs.c"]
    include = [f"-I{ggml / 'include'}", f"-I{ggml / 'src'}"]
    made = folder / "libggml_quants.so"
    subprocess.run(["gcc", *flags, *include, *sources, "-o", made, "-lm"], check=True)
    return ctypes.CDLL(str(made))


def encoded(ggml: ctypes.CDLL, name: str, x: torch.Tensor) -> torch.Tensor:
    """ggml's bytes of x [..., n] float32 -> [blocks, bytes]"""
    of = TYPES[name]
    out = torch.zeros(x.numel() // of.elements, of.size, dtype=torch.uint8)
    source, target = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr())
    count = ctypes.c_int64(x.numel())
    plain = name.replace("_K", "_k").lower().replace("_k", "_K")
    if name.startswith("IQ4"):  # its *_ref makes no trials
        getattr(ggml, f"quantize_{plain}")(source, target, ctypes.c_int64(1), count, None)
    else:
        getattr(ggml, f"quantize_row_{plain}_ref")(source, target, count)
    return out


def main() -> None:
    torch.manual_seed(12)
    tensors = {}
    with tempfile.TemporaryDirectory() as folder:
        ggml = library(pathlib.Path(sys.argv[1]), pathlib.Path(folder))
        for kind in KINDS:
            x = some_rows(kind)
            tensors[f"x.{kind}"] = x
            tensors |= {f"{name}.{kind}": encoded(ggml, name, x) for name in TYPES}
    save_file(tensors, HERE / "ggml.safetensors", {"ggml": "0.25.3"})


if __name__ == "__main__":
    main()
