#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs Mesa's software Vulkan driver where no adapter is and the system's packages can be
# installed (Debian and Ubuntu, as root). Elsewhere it says so, and the WebGPU tests are skipped.
set -u
python=${PYTHON:-python3}
package=mesa-vulkan-drivers

adapter() { # why none can be used; nothing where one is
    "$python" -c 'from blockscale.kernels.webgpu.gpu.device import missing; print(missing() or "")' \
        2> /dev/null || echo "blockscale or wgpu cannot be imported"
}

get() { # 3 minutes each: a machine without a network must not wait for one
    timeout 180 env DEBIAN_FRONTEND=noninteractive apt-get "$@" > /dev/null 2>&1 < /dev/null
}

[ -z "$(adapter)" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "no Vulkan adapter: installing $package (once)"
    get install -y --no-install-recommends "$package" ||
        { get update && get install -y --no-install-recommends "$package"; }
fi
why=$(adapter)
if [ -n "$why" ]; then
    echo "*** THE WEBGPU KERNELS ARE NOT TESTED HERE: $why ***"
fi
