// Memory for numbers that lives as long as a block of code.
#pragma once

#include <cstdlib>

#include "bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Numbers in memory of their own; few of them lie within, where no call has to find room. Not std::vector,
// whose inline code may come from another instruction set.
template <class T>
class Array {
public:
    explicit Array(int64_t n) : data_(within_), far_(nullptr) {
        int64_t bytes = n * sizeof(T) + 64;  // vectors may reach beyond the end
        if (bytes <= static_cast<int64_t>(sizeof within_)) return;
        data_ = far_ = static_cast<T*>(malloc(bytes));
        if (!far_) abort();  // a failed allocation of this size leaves nothing to say it with
    }
    ~Array() { free(far_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    operator T*() { return data_; }
    T* get() { return data_; }

private:
    T *data_, *far_;
    alignas(64) T within_[1024 / sizeof(T)];
};

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
