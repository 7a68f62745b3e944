// SPDX-License-Identifier: BSD-3-Clause
// Memory that a thread keeps from one linear layer to the next.
#pragma once

#include "../../memory.h"
#include "../simd/bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

class Scratch {
public:
    ~Scratch() { free(data_); }

    // At least so many bytes, with whatever is in them. Throws OutOfMemory.
    char* of(int64_t bytes) {
        if (bytes > size_) {
            free(data_);
            data_ = nullptr, size_ = 0;  // for another call, if this one finds no memory
            data_ = static_cast<char*>(allocate(bytes, 64));
            size_ = bytes;
        }
        return data_;
    }

private:
    char* data_ = nullptr;
    int64_t size_ = 0;
};

enum class Use { shared, own };  // by the threads of a parallel region that the calling one begins

// Of the calling thread. Throws OutOfMemory.
template <Use USE = Use::shared>
inline Scratch& linear_scratch() {
    static const PerThread kept([](void* each) { delete static_cast<Scratch*>(each); });
    auto* scratch = static_cast<Scratch*>(kept.get());
    if (!scratch) {
        scratch = new (std::nothrow) Scratch;
        if (!scratch || !kept.set(scratch)) {
            delete scratch;
            throw OutOfMemory(sizeof(Scratch));
        }
    }
    return *scratch;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
