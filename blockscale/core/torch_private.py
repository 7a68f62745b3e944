# SPDX-License-Identifier: BSD-3-Clause
"""torch's names that its documentation does not promise, all of those that the package uses.

They are what a new torch may rename: the rest of the package takes them from here, under names of
ours (tests/test_house.py looks), and tests/core/test_torch_private.py has a call of each. What a
torch lacks is an ImportError that names it. What would import more than torch does by itself is a
function, which imports when it is called. Triton's private names are not here, nor are those of
objects, such as a parameter's `_version`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

__all__ = [
    "AFTER_AUTOGRAD", "BatchNorm", "BelowAutograd", "ConvNd", "ConvTransposeNd", "DeviceType",
    "DispatchKey", "DropoutNd", "FakeTensor", "FakeTensorMode",
    "HigherOrderOperator", "OpOverload", "TorchDispatchMode", "WithoutTorchFunction",
    "any_requires_grad", "aoti_package", "autograd_of_op", "calculate_qparams",
    "constant_source", "convert_decomposed", "cuda_device", "cuda_stream", "detect_fake_mode",
    "device_guard", "disable_modes", "dispatch_keys", "dispatch_modes", "empty_strided_cuda",
    "enable_python_dispatcher", "explain_missing", "exporting", "forward_level", "function_modes",
    "global_hooks", "graph_task",
    "has_kernel", "inductor_config", "innermost_transform", "int_mm", "is_amx_tile_supported",
    "is_vnni_supported", "load_from_state_dict", "no_torch_function", "profiler_on",
    "pytree", "register_decomposed", "register_device", "save_to_state_dict", "scaled_mm",
    "set_forward_grad", "single_level", "size_error", "sleep_on_gpu", "tracing_state",
    "transforms_active",
    "weight_norm", "wrapper_subclass",
]  # fmt: skip

TESTED = "2.11 to 2.13"


@contextmanager
def explain_missing() -> Iterator[None]:
    """Around imports: an ImportError names what is missing, and torch's version."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"blockscale uses names inside of torch that torch {torch.__version__} does not have: "
            f"{error}; it is tested with torch {TESTED}: install one of these, or a blockscale for "
            f"this torch"
        ) from error


with explain_missing():
    from torch._C import DisableTorchFunctionSubclass as WithoutTorchFunction
    from torch._C import DispatchKey
    from torch._C import _after_autograd_keyset as AFTER_AUTOGRAD
    from torch._C import _any_requires_grad as any_requires_grad
    from torch._C import _are_functorch_transforms_active as transforms_active
    from torch._C import _AutoDispatchBelowAutograd as BelowAutograd
    from torch._C import _current_graph_task_id as graph_task
    from torch._C import _disabled_torch_function_impl as no_torch_function
    from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
    from torch._C import _dispatch_keys as dispatch_keys
    from torch._C import _get_tracing_state as tracing_state
    from torch._C import _is_torch_function_mode_enabled as function_modes
    from torch._C import _len_torch_dispatch_stack as dispatch_modes
    from torch._C._autograd import DeviceType
    from torch._C._autograd import _profiler_enabled as profiler_on
    from torch._C._functorch import peek_interpreter_stack as innermost_transform
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch._ops import HigherOrderOperator, OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.autograd import forward_ad
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
    from torch.nn.modules.conv import _ConvNd as ConvNd
    from torch.nn.modules.conv import _ConvTransposeNd as ConvTransposeNd
    from torch.nn.modules.dropout import _DropoutNd as DropoutNd
    from torch.nn.modules.module import _has_any_global_hook as global_hooks
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes as disable_modes

    int_mm = torch._int_mm
    is_amx_tile_supported = torch.cpu._is_amx_tile_supported
    is_vnni_supported = torch.cpu._is_vnni_supported
    load_from_state_dict = nn.Module._load_from_state_dict
    save_to_state_dict = nn.Module._save_to_state_dict
    scaled_mm = torch._scaled_mm
    set_forward_grad = forward_ad._set_fwd_grad_enabled
    sleep_on_gpu = torch.cuda._sleep
    weight_norm = torch._weight_norm
    wrapper_subclass = Tensor._make_wrapper_subclass

# A torch without CUDA has none of these
cuda_device: Any = getattr(torch._C, "_cuda_getDevice", None)
cuda_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def forward_level() -> int:
    """The level of forward-mode differentiation that is being run; -1 outside."""
    return forward_ad._current_level


def empty_strided_cuda() -> Any:
    """What Inductor's code calls for new memory on the current GPU; None where it is not there."""
    try:
        from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _empty_strided_cuda


def single_level() -> tuple[Any, Any]:
    """The autograd.Function of one level of torch.func's, and the context in which it is called."""
    with explain_missing():
        from torch._functorch.utils import enable_single_level_autograd_function as enable
        from torch.autograd.function import _SingleLevelFunction
    return _SingleLevelFunction, enable


def autograd_of_op(op: OpOverload, backward: Any, setup: Any) -> Any:
    """The kernel of a custom op for autograd. Raises ImportError where this torch makes none."""
    with explain_missing():
        from torch._library import autograd
    return autograd.make_autograd_impl(op, autograd.Info(backward, setup))


@contextmanager
def exporting() -> Iterator[None]:
    """Within it torch and modules do as they do in torch.export: what they compute goes into a
    program, and no backend has a say in it."""
    with explain_missing():
        from torch._export.utils import _compiling_state_context as state
        from torch.export._trace import _ignore_backend_decomps as any_backend
    with state(), any_backend():
        yield


def constant_source(name: str) -> Any:
    """Where a symbol comes from that nothing else says."""
    with explain_missing():
        from torch._dynamo.source import ConstantSource
    return ConstantSource(name)


def size_error() -> type[Exception]:
    """What torch.export raises where a size that is to be free is not."""
    with explain_missing():
        from torch._dynamo.exc import UserError
    return UserError


def inductor_config() -> Any:
    """Inductor's settings."""
    with explain_missing():
        from torch._inductor import config
    return config


def aoti_package(program: Any, path: str, options: dict[str, Any]) -> str:
    """Compile a program of torch.export by Inductor into a package; its path."""
    with explain_missing():
        from torch._inductor import aoti_compile_and_package as compiled
    return str(compiled(program, package_path=path, inductor_configs=options))


def register_decomposed() -> None:
    """Register torch.ao's ops, torch.ops.quantized_decomposed."""
    with explain_missing():
        import torch.ao.quantization.fx._decomposed  # noqa: F401 - it registers them


def convert_decomposed(model: fx.GraphModule, backend_config: Any) -> fx.GraphModule:
    """An observed model of torch.ao's prepare_fx in ops of quantized_decomposed."""
    with explain_missing():
        from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx as convert
    module: fx.GraphModule = convert(model, backend_config=backend_config)
    return module


def calculate_qparams() -> Any:
    """torch.ao's choice of an observer's scale and zero point: takes the observer and its range."""
    with explain_missing():
        from torch.ao.quantization.observer import UniformQuantizationObserverBase
    return UniformQuantizationObserverBase._calculate_qparams


def device_guard() -> Any:
    """The class of what tells torch which device a device made in Python is."""
    with explain_missing():
        return torch._C._acc.DeviceGuard


def register_device(name: str, module: Any, guard: Any) -> None:
    """Give torch's place for a device made in Python a name, a module and a guard."""
    with explain_missing():
        from torch.utils import backend_registration

        register = backend_registration._setup_privateuseone_for_python_backend
    register(name, backend_module=module, device_guard=guard)
