// Memory that a thread keeps from one linear layer to the next.
#pragma once

#include <cstdlib>

#include "../simd/bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

class Scratch {
public:
    ~Scratch() { free(data_); }

    // At least so many bytes, with whatever is in them.
    char* of(int64_t bytes) {
        if (bytes > size_) {
            free(data_);
            data_ = static_cast<char*>(aligned_alloc(64, ceil_div(bytes, 64) * 64));
            if (!data_) abort();  // as Array does
            size_ = bytes;
        }
        return data_;
    }

private:
    char* data_ = nullptr;
    int64_t size_ = 0;
};

inline Scratch& linear_scratch() {
    static thread_local Scratch scratch;
    return scratch;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
