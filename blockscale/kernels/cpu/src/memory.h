// SPDX-License-Identifier: BSD-3-Clause
// Memory that is not to be had is an error with its size, in Python a MemoryError, never the end of the process.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace blockscale {

// Compiled once (memory.cpp), for any processor; throwing it makes nothing of std::string.
class OutOfMemory : public std::bad_alloc {
public:
    explicit OutOfMemory(int64_t bytes) noexcept;
    OutOfMemory(const OutOfMemory&) noexcept = default;
    OutOfMemory& operator=(const OutOfMemory&) noexcept = default;
    ~OutOfMemory() noexcept override;
    const char* what() const noexcept override;
    int64_t bytes() const noexcept { return bytes_; }

private:
    int64_t bytes_;
    char text_[96];
};

// Memory for `free`, a multiple of `alignment`. Throws OutOfMemory.
void* allocate(int64_t bytes);
void* allocate(int64_t bytes, int64_t alignment);

// Carries OutOfMemory out of a parallel region, which no exception may leave (OpenMP 4.5, 2.5).
class Lack {
public:
    // Makes the reserve again that a lack before may have used.
    Lack();

    // Call body(), unless a thread of the region already lacked memory.
    template <class Body>
    void carry(Body body) {
        if (bytes_.load(std::memory_order_relaxed)) return;
        try {
            body();
        } catch (const OutOfMemory& error) {
            bytes_.store(error.bytes(), std::memory_order_relaxed);
        }
    }

    // After the region: throw what was carried out of it.
    void raise() const;

private:
    std::atomic<int64_t> bytes_{0};
};

// A pointer of each thread. Not thread_local: glibc ends the process where that finds no memory.
class PerThread {
public:
    explicit PerThread(void (*end)(void*));
    void* get() const { return pthread_getspecific(key_); }
    // False where there is no memory for it.
    bool set(void* value) const { return pthread_setspecific(key_, value) == 0; }

private:
    pthread_key_t key_;
};

// How many threads a parallel region can have: at most so many, fewer where they cannot be started, for
// which OpenMP would end the process. What is computed does not depend on it.
int startable(int threads);

// For the vectors whose size grows with a tensor.
template <class T>
struct Allocator {
    using value_type = T;
    Allocator() = default;
    template <class U>
    Allocator(const Allocator<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(blockscale::allocate(n * sizeof(T))); }
    void deallocate(T* data, size_t) { std::free(data); }
    bool operator==(const Allocator&) const { return true; }
};

template <class T>
using Numbers = std::vector<T, Allocator<T>>;

}  // namespace blockscale
