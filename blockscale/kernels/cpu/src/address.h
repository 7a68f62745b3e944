// SPDX-License-Identifier: BSD-3-Clause
// How Python passes the memory of tensors.
#pragma once

#include <cstdint>

namespace blockscale {

using Address = std::uintptr_t;  // Tensor.data_ptr(), 0 for none

template <class T = void>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace blockscale
