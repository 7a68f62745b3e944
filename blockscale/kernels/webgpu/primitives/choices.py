"""Kernels for a format, and how numbers of a dtype are read and written."""

from collections.abc import Mapping

import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.primitives.form import DTYPES, Form
from blockscale.kernels.webgpu.spec import on_device, shader_of

Choices = dict[str, str]
Constants = dict[str, Constant]


def shader(
    kernel: str, f: Form, choices: Mapping[str, str], constants: Mapping[str, Constant]
) -> Shader:
    """A kernel for a format, with what else it chooses."""
    own, known = shader_of(f.format)
    return Shader(
        f"kernels/{kernel}",
        tuple((dict(own) | of_device() | dict(choices)).items()),
        tuple((dict(known) | dict(constants)).items()),
    )


def of_device() -> Choices:
    """What a device computes with where it can."""
    return on_device(gpu().features) | {"arithmetic": arithmetic()}


def numbers(dtype: torch.dtype) -> Choices:
    """How numbers of a dtype are read and written."""
    halves = "whole" if dtype == torch.float32 else "halves"
    return {"dtype": DTYPES[dtype], "load": halves, "store": halves}


FOURS = 4  # of numbers that an invocation reads at once, so that enough of memory is under way


def parts_of(chunk: int) -> int:
    """How many chunks an invocation takes: a CPU gains nothing from more than one."""
    return 1 if gpu().software else max(1, 4 * FOURS // chunk)


def spread(chunk: int) -> Constants:
    """The constants of kernels whose invocations take several chunks of so many elements."""
    parts = parts_of(chunk)
    return {"CHUNK": chunk, "PARTS": parts, "FOURS": chunk // 4 * parts}
