#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "build.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace blockscale {

#define BLOCKSCALE_DECLARE(name)        \
    namespace name {                    \
    const Primitives& primitives();     \
    const Linears& linears();           \
    const FusedOps& fused_ops();        \
    }
BLOCKSCALE_EACH_ISA(BLOCKSCALE_DECLARE)

namespace {

#if defined(__x86_64__)
// Clang's __builtin_cpu_supports does not know it.
bool has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

// Whether this processor and its system run what was compiled under that name.
bool present(std::string_view name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (name == "avx2") return avx2;
    if (name == "avx512") return avx512;
    if (name == "avx512vnni") return avx512 && __builtin_cpu_supports("avx512vnni");
#endif
    return name == "baseline" || name == "neon";  // neon: every AArch64 processor has it
}

std::vector<Isa> compiled() {
    std::vector<Isa> found;
#define BLOCKSCALE_ADD(name) \
    found.push_back({#name, present(#name), &name::primitives(), &name::linears(),  \
                     &name::fused_ops()});
    BLOCKSCALE_EACH_ISA(BLOCKSCALE_ADD)
    return found;
}

// `who` begins the error: it names what asked.
const Isa* find(const std::string& name, const std::string& who) {
    std::string usable;
    bool known = false;
    for (const Isa& each : isas()) {
        if (each.present && each.name == name) return &each;
        if (each.present) usable += (usable.empty() ? "" : ", ") + each.name;
        known = known || each.name == name;
    }
    throw std::invalid_argument(who + ": no instruction set '" + name + "' here: " +
                                (known ? "this processor does not have it"
                                       : "this library was not compiled for it") +
                                "; there are " + usable);
}

const Isa* first_choice() {
    const char* wanted = std::getenv("BLOCKSCALE_CPU_ISA");
    if (wanted && *wanted) return find(wanted, "BLOCKSCALE_CPU_ISA");
    const Isa* last = nullptr;
    for (const Isa& each : isas())
        if (each.present) last = &each;
    return last;
}

std::atomic<const Isa*>& chosen() {
    static std::atomic<const Isa*> current{first_choice()};  // tried again if it threw
    return current;
}

}  // namespace

const std::vector<Isa>& isas() {
    static const std::vector<Isa> all = compiled();
    return all;
}

const Isa& isa() { return *chosen().load(std::memory_order_relaxed); }

void select_isa(const std::string& name) {
    chosen().store(find(name, "select_isa"), std::memory_order_relaxed);
}

}  // namespace blockscale
