# SPDX-License-Identifier: BSD-3-Clause
"""Each of torch's private names that the package uses: it is there, and takes what it is given.

Where a new torch fails here, blockscale/core/torch_private.py is the place to mend.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockscale.core import torch_private as private

X = torch.ones(4, 8)


def parameters(function: Any, *names: str) -> bool:
    """Whether a Python function takes these, by these names."""
    return set(names) <= set(inspect.signature(function).parameters)


def below_autograd() -> bool:
    with private.BelowAutograd():
        return not (X.clone().requires_grad_() * 2).requires_grad


def without_torch_function() -> bool:
    class Refusing(Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

    with private.WithoutTorchFunction():
        return bool((X.as_subclass(Refusing) + 1).shape == X.shape)


def wrapper() -> bool:
    class Wrapped(Tensor):
        __torch_function__ = private.no_torch_function  # type: ignore[assignment]

        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

    made = private.wrapper_subclass(
        Wrapped, (2, 3), strides=(1, 2), storage_offset=1, dtype=torch.int8,
        device=torch.device("cpu"), requires_grad=False,
    )  # fmt: skip
    return made.stride() == (1, 2) and made.storage_offset() == 1 and type(made) is Wrapped


def fake() -> bool:
    with private.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = torch.ones(2)
        with private.disable_modes():
            real = torch.ones(2)
    found = isinstance(made, private.FakeTensor) and not isinstance(real, private.FakeTensor)
    return found and private.detect_fake_mode([made]) is mode


def modes() -> bool:
    class Mode(private.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(private.dispatch_modes())
            return func(*args, **(kwargs or {}))

    seen: list[int] = []
    with Mode():
        inside = private.dispatch_modes()
        torch.ones(2)
    return (private.dispatch_modes(), inside, seen) == (0, 1, [0])


def transforms() -> bool:
    seen: list[tuple[bool, bool]] = []

    def look(x: Tensor) -> Tensor:
        seen.append((private.innermost_transform() is not None, private.transforms_active()))
        return x

    torch.vmap(look)(X)
    outside = private.innermost_transform() is None and not private.transforms_active()
    return seen == [(True, True)] and outside


def forward_mode() -> bool:
    with torch.autograd.forward_ad.dual_level():
        inside = private.forward_level()
        with private.set_forward_grad(False):
            pass
    return (private.forward_level(), inside) == (-1, 0)


def hooks_of_all() -> bool:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    inside = bool(private.global_hooks())
    handle.remove()
    return inside and not private.global_hooks()


def function_mode() -> bool:
    class Mode(torch.overrides.TorchFunctionMode):
        pass

    with Mode():
        inside = private.function_modes()
    return bool(inside) and not private.function_modes()


def profiled() -> bool:
    with torch.profiler.profile():
        inside = private.profiler_on()
    return bool(inside) and not private.profiler_on()


def in_backward() -> bool:
    seen: list[int] = []
    x = X.clone().requires_grad_()
    x.register_hook(lambda gradient: seen.append(private.graph_task()))
    x.sum().backward()
    return private.graph_task() == -1 and seen != [-1]


def int_products() -> bool:
    codes = torch.ones(32, 32, dtype=torch.int8)
    return bool(
        torch.equal(private.int_mm(codes, codes), torch.full((32, 32), 32, dtype=torch.int32))
    )


def tree() -> bool:
    given = {"a": [1, "x"], "b": (2.0,)}
    leaves, spec = private.pytree.tree_flatten(given)
    mapped = private.pytree.tree_map_only(int, lambda x: x + 1, given)
    same = private.pytree.tree_unflatten(leaves, spec) == given
    other = private.pytree.tree_leaves(given) == leaves == list(private.pytree.tree_iter(given))
    return same and other and mapped == {"a": [2, "x"], "b": (2.0,)}


def normed() -> bool:
    v, g = torch.randn(3, 4), torch.rand(3, 1)
    return torch.allclose(private.weight_norm(v, g, 0), v * g / v.norm(dim=1, keepdim=True))


def one_level() -> bool:
    function, enable = private.single_level()
    with enable():
        pass
    return isinstance(function, type) and callable(function.apply)


def state_dicts() -> bool:
    found: dict[str, Any] = {}
    private.save_to_state_dict(nn.Linear(1, 1), found, "p.", False)
    arguments = ("state_dict", "prefix", "strict", "missing_keys", "error_msgs")
    return set(found) == {"p.weight", "p.bias"} and parameters(
        private.load_from_state_dict, *arguments
    )


def qparams() -> bool:
    observer = torch.ao.quantization.MinMaxObserver()
    scale, zero = private.calculate_qparams()(observer, torch.tensor(0.0), torch.tensor(255.0))
    return float(scale) == 1.0 and int(zero) == 0


def decomposed() -> bool:
    private.register_decomposed()
    op = torch.ops.quantized_decomposed.quantize_per_tensor.default
    return isinstance(op, private.OpOverload)


def device_types() -> bool:
    guard = type("Guard", (private.device_guard(),), {"type_": lambda self: None})
    return hasattr(private.DeviceType, "PrivateUse1") and isinstance(guard, type)


def registering() -> bool:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

    return parameters(setup, "backend_module", "device_guard")


def aoti() -> bool:
    from torch._inductor import aoti_compile_and_package

    return parameters(aoti_compile_and_package, "package_path", "inductor_configs")


def reference_converter() -> bool:
    from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx as convert

    return parameters(convert, "backend_config")


def product_of_codes() -> bool:
    names = {each.name for each in torch.ops.aten._scaled_mm.default._schema.arguments}
    return callable(private.scaled_mm) and {"scale_a", "scale_b", "out_dtype"} <= names


def op_gradient() -> bool:
    from torch._library import autograd

    return parameters(autograd.make_autograd_impl, "op", "info") and callable(autograd.Info)


def dispatch_keys() -> bool:
    keys = private.dispatch_keys(X)
    return isinstance(keys.raw_repr(), int) and (keys & private.AFTER_AUTOGRAD) is not None


def kernels_of_keys() -> bool:
    composite = private.DispatchKey.CompositeImplicitAutograd
    return private.has_kernel("aten::matmul", composite) and not private.has_kernel(
        "aten::mm", composite
    )


def operator_kinds() -> bool:
    return isinstance(torch.ops.aten.mm.default, private.OpOverload) and isinstance(
        torch.ops.higher_order.cond, private.HigherOrderOperator
    )


def in_a_program() -> bool:
    with private.exporting():
        inside = torch.compiler.is_exporting() and not torch.backends.mkldnn.enabled
    return inside and not torch.compiler.is_exporting()


CHECKS: dict[str, Callable[[], Any]] = {
    "AFTER_AUTOGRAD": dispatch_keys,
    "BatchNorm": lambda: all(
        issubclass(k, private.BatchNorm) for k in (nn.BatchNorm1d, nn.BatchNorm3d)
    ),
    "BelowAutograd": below_autograd,
    "ConvNd": lambda: issubclass(nn.Conv1d, private.ConvNd),
    "ConvTransposeNd": lambda: parameters(
        private.ConvTransposeNd._output_padding,
        "input",
        "output_size",
        "num_spatial_dims",
        "dilation",
    ),
    "DeviceType": device_types,
    "DispatchKey": lambda: hasattr(private.DispatchKey, "CompositeExplicitAutograd"),
    "DropoutNd": lambda: issubclass(nn.Dropout2d, private.DropoutNd),
    "FakeTensor": fake,
    "FakeTensorMode": lambda: parameters(
        private.FakeTensorMode, "shape_env", "allow_non_fake_inputs"
    ),
    "HigherOrderOperator": operator_kinds,
    "OpOverload": operator_kinds,
    "TorchDispatchMode": modes,
    "WithoutTorchFunction": without_torch_function,
    "any_requires_grad": lambda: private.any_requires_grad(X, X.clone().requires_grad_()),
    "aoti_package": aoti,
    "autograd_of_op": op_gradient,
    "calculate_qparams": qparams,
    "constant_source": lambda: private.constant_source("s0").name,
    "convert_decomposed": reference_converter,
    "cuda_device": lambda: callable(private.cuda_device) or not torch.cuda.is_available(),
    "cuda_stream": lambda: callable(private.cuda_stream) or not torch.cuda.is_available(),
    "detect_fake_mode": fake,
    "device_guard": device_types,
    "disable_modes": fake,
    "dispatch_keys": dispatch_keys,
    "dispatch_modes": modes,
    "empty_strided_cuda": lambda: (
        private.empty_strided_cuda() is None or callable(private.empty_strided_cuda())
    ),
    "enable_python_dispatcher": lambda: private.enable_python_dispatcher().__enter__ is not None,
    "explain_missing": lambda: True,  # below
    "exporting": in_a_program,
    "forward_level": forward_mode,
    "function_modes": function_mode,
    "global_hooks": hooks_of_all,
    "graph_task": in_backward,
    "has_kernel": kernels_of_keys,
    "inductor_config": lambda: isinstance(private.inductor_config().freezing, bool),
    "innermost_transform": transforms,
    "int_mm": int_products,
    "is_amx_tile_supported": lambda: isinstance(private.is_amx_tile_supported(), bool),
    "is_vnni_supported": lambda: isinstance(private.is_vnni_supported(), bool),
    "load_from_state_dict": state_dicts,
    "no_torch_function": wrapper,
    "profiler_on": profiled,
    "pytree": tree,
    "register_decomposed": decomposed,
    "register_device": registering,
    "save_to_state_dict": state_dicts,
    "scaled_mm": product_of_codes,
    "set_forward_grad": forward_mode,
    "single_level": one_level,
    "size_error": lambda: issubclass(private.size_error(), Exception),
    "sleep_on_gpu": lambda: parameters(private.sleep_on_gpu, "cycles"),
    "tracing_state": lambda: private.tracing_state() is None,
    "transforms_active": transforms,
    "weight_norm": normed,
    "wrapper_subclass": wrapper,
}


def test_every_name_has_a_check() -> None:
    assert CHECKS.keys() == set(private.__all__)


@pytest.mark.parametrize("name", CHECKS)
def test_a_name(name: str) -> None:
    assert CHECKS[name](), f"torch {torch.__version__}: {name}"


@pytest.mark.parametrize("error", [ImportError("no _x in torch._C"), AttributeError("no _x")])
def test_what_a_torch_lacks(error: Exception) -> None:
    with (
        pytest.raises(
            ImportError, match=rf"torch {torch.__version__.replace('+', '.')}.*no _x.*install"
        ),
        private.explain_missing(),
    ):
        raise error
