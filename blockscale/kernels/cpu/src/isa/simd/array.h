// SPDX-License-Identifier: BSD-3-Clause
// Memory for numbers that lives as long as a block of code.
#pragma once

#include "../../memory.h"
#include "bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Numbers in memory of their own; few of them lie within, where no call has to find room. Not std::vector,
// whose inline code may come from another instruction set. Throws OutOfMemory.
template <class T>
class Array {
public:
    explicit Array(int64_t n) : data_(within_), far_(nullptr) {
        int64_t bytes = n * sizeof(T) + 64;  // vectors may reach beyond the end
        if (bytes <= static_cast<int64_t>(sizeof within_)) return;
        data_ = far_ = static_cast<T*>(allocate(bytes));
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

// Room for what a thread of a parallel region makes, where that may fail (memory.h: Lack).
template <class T>
class Later {
public:
    Later() = default;
    ~Later() {
        if (made_) made_->~T();
    }
    Later(const Later&) = delete;
    Later& operator=(const Later&) = delete;
    template <class From>
    void make(const From& from) {
        made_ = new (room_) T(from);
    }
    T& operator*() { return *made_; }

private:
    T* made_ = nullptr;
    alignas(T) unsigned char room_[sizeof(T)];
};

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
