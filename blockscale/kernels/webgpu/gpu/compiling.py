# SPDX-License-Identifier: BSD-3-Clause
"""WGSL as modules of a device, without the counters that wgpu puts into every loop.

wgpu makes sure that no shader runs for ever by counting the turns of each loop, which keeps
compilers from unrolling loops and arrays in registers. Our loops end, so they go without; indices
stay checked. wgpu-py 0.32 has that of wgpu-native in its C interface alone; where it is not found,
modules are made in the usual way.
"""

from typing import Any

_BOUNDS = 1  # WGPUShaderRuntimeChecks_BoundsChecks, and no ForceLoopBounding


def compiled(device: Any, text: str) -> Any:
    """A shader module of a wgpu device. Raises wgpu.GPUError for text that is no WGSL."""
    try:
        from wgpu.backends.wgpu_native import _api as api

        create = api.libf.wgpuDeviceCreateShaderModuleTrusted
        kind = api.lib.WGPUSType_ShaderSourceWGSL
        internal, string, struct = device._internal, api.to_c_string_view, api.new_struct_p
    except (ImportError, AttributeError):  # another release, or another backend
        return device.create_shader_module(code=text)
    source = struct("WGPUShaderSourceWGSL *", code=string(text))
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = kind
    chain = api.ffi.cast("WGPUChainedStruct *", source)
    described = struct("WGPUShaderModuleDescriptor *", nextInChain=chain, label=string(""))
    module = create(internal, described, _BOUNDS)
    if module == api.ffi.NULL:
        raise RuntimeError("wgpu could not compile a shader, and gave no reason")
    return api.GPUShaderModule("", module, device)
