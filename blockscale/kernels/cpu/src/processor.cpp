// SPDX-License-Identifier: BSD-3-Clause
#include "processor.h"

#include <cerrno>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace blockscale {
namespace {

#if defined(__x86_64__)
// Clang's __builtin_cpu_supports does not know it.
bool has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

// Tiles of bf16 and of int8 (CPUID, leaf 7): old compilers have no names for them.
bool has_amx() {
    constexpr unsigned kBits = 1u << 22 | 1u << 24 | 1u << 25;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kBits) == kBits;
}

// Linux lets a process use tiles once it has asked for them, and its threads after it.
std::string ask_for_tiles() {
#if defined(__linux__)
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    if (syscall(SYS_arch_prctl, kRequest, kTileData) == 0) return "";
    return std::string("the system refuses this process AMX's tiles (arch_prctl: ") +
           std::strerror(errno) + ")";
#else
    return "AMX's tiles are not asked for on this system";
#endif
}
#elif defined(__aarch64__)
struct ArmFeatures {
    bool dotprod = false, i8mm = false;
};

ArmFeatures arm_features() {
#if defined(__linux__)  // the bits of asm/hwcap.h, which old headers lack
    return {(getauxval(AT_HWCAP) >> 20 & 1) != 0, (getauxval(AT_HWCAP2) >> 13 & 1) != 0};
#elif defined(__APPLE__)
    auto has = [](const char* name) {
        int value = 0;
        size_t size = sizeof value;
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
#else
    return {};
#endif
}
#endif

}  // namespace

std::string lacking(std::string_view name) {
    bool has = name == "baseline" || name == "neon";  // neon: every AArch64 processor has it
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    if (name == "avx2") has = avx2;
    if (name == "avx512") has = avx512;
    if (name == "avx512vnni") has = vnni;
#if defined(BLOCKSCALE_AMX_EMULATED)
    if (name == "amx") has = vnni;
#else
    if (name == "amx" && vnni && has_amx()) return ask_for_tiles();
#endif
#elif defined(__aarch64__)
    ArmFeatures features = arm_features();
    if (name == "dotprod") has = features.dotprod;
    if (name == "i8mm") has = features.dotprod && features.i8mm;
#endif
    return has ? "" : "this processor does not have it";
}

}  // namespace blockscale
