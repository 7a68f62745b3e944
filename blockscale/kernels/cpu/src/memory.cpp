// SPDX-License-Identifier: BSD-3-Clause
#include "memory.h"

#include <pthread.h>

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace blockscale {

namespace {

struct Gate {
    pthread_mutex_t closed = PTHREAD_MUTEX_INITIALIZER;
    std::atomic<int> able{0};
};

// The body of a thread that waits until it may end. malloc gives each thread an arena of its own, if there is
// memory for one, and the arenas of threads that have ended to those that begin.
void* wait_for(void* at) {
    Gate& gate = *static_cast<Gate*>(at);
    void* volatile some = std::malloc(64);
    if (some) ++gate.able;
    std::free(some);
    pthread_mutex_lock(&gate.closed);
    pthread_mutex_unlock(&gate.closed);
    return nullptr;
}

// How many of `threads` can be there at the same time. The C library keeps their stacks for others.
int started(Numbers<pthread_t>& threads) {
    Gate gate;
    int count = 0;
    pthread_mutex_lock(&gate.closed);
    for (pthread_t& each : threads) {
        if (pthread_create(&each, nullptr, wait_for, &gate) != 0) break;
        ++count;
    }
    pthread_mutex_unlock(&gate.closed);
    for (int i = 0; i < count; ++i) pthread_join(threads[i], nullptr);
    return gate.able;
}

// A thread's first exception needs some bytes of its own, without which glibc ends the process. OpenMP's threads
// take them when they are started; for others they are kept here, less than what malloc maps by itself.
constexpr size_t kReserve = 2048;
std::atomic<void*> reserve{std::malloc(kReserve)};

// volatile: the function is declared as one without effects, so a call whose result nobody reads is left out.
void take_what_exceptions_need() {
    [[maybe_unused]] void* volatile taken = abi::__cxa_get_globals();
}

[[noreturn]] void lacking(int64_t bytes) {
    std::free(reserve.exchange(nullptr));
    take_what_exceptions_need();
    throw OutOfMemory(bytes);
}

// Pieces of the size of what a thread's first exception needs, more of them than threads want. Those that are
// freed stay whole, where malloc finds them for a thread that has no other room (malloc's "fast bins").
class Pieces {
public:
    explicit Pieces(int64_t n) : all_(n) {
        bool whole = true;
        for (void*& each : all_) whole &= (each = std::malloc(kPiece)) != nullptr;
        if (whole) return;
        clear();
        lacking(n * kPiece);
    }
    ~Pieces() { clear(); }

private:
    void clear() {
        for (void* each : all_) std::free(each);
    }

    static constexpr int64_t kPiece = 32;
    Numbers<void*> all_;
};

// Let OpenMP start its threads, then each of them take what an exception needs, which is there for them.
void prepare_exceptions(int threads) {
    {
        Pieces pieces(8 * threads + 8);  // malloc gives the calling thread up to 7 of a size back first
        std::atomic<int> there{0};
#pragma omp parallel num_threads(threads)
        ++there;
    }
#pragma omp parallel num_threads(threads)
    take_what_exceptions_need();
}

}  // namespace

OutOfMemory::OutOfMemory(int64_t bytes) noexcept : bytes_(std::max<int64_t>(bytes, 1)) {
    std::snprintf(text_, sizeof text_, "blockscale: no memory for %.3f MB (%lld bytes)",
                  static_cast<double>(bytes) / 1e6, static_cast<long long>(bytes));
}

OutOfMemory::~OutOfMemory() noexcept = default;

const char* OutOfMemory::what() const noexcept { return text_; }

void* allocate(int64_t bytes) {
    void* data = std::malloc(std::max<int64_t>(bytes, 1));
    if (!data) lacking(bytes);
    return data;
}

void* allocate(int64_t bytes, int64_t alignment) {
    int64_t units = std::max<int64_t>((bytes + alignment - 1) / alignment, 1);
    void* data = std::aligned_alloc(alignment, units * alignment);
    if (!data) lacking(bytes);
    return data;
}

Lack::Lack() {
    if (reserve.load(std::memory_order_relaxed)) return;
    void* none = nullptr;
    void* made = std::malloc(kReserve);
    if (!reserve.compare_exchange_strong(none, made)) std::free(made);
}

void Lack::raise() const {
    if (int64_t bytes = bytes_.load(std::memory_order_relaxed)) throw OutOfMemory(bytes);
}

PerThread::PerThread(void (*end)(void*)) {
    if (pthread_key_create(&key_, end) != 0) throw std::runtime_error("blockscale: no pthread key is left");
}

// Bytes that OpenMP may want for what it keeps of the threads of a region: without them it ends the process.
constexpr size_t kTeam = 64 << 10;

int startable(int threads) {
    static const PerThread known(nullptr);  // OpenMP keeps the threads of a calling thread's last region
    if (threads <= 1) return 1;
    if (threads > reinterpret_cast<intptr_t>(known.get())) {
        Numbers<pthread_t> others(threads - 1);
        threads = 1 + started(others);
        std::free(allocate(kTeam));  // for the regions of the next line
        prepare_exceptions(threads);
        std::free(allocate(kTeam));  // and of the caller
    }
    known.set(reinterpret_cast<void*>(static_cast<intptr_t>(threads)));  // or they are counted again
    return threads;
}

}  // namespace blockscale
