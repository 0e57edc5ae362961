// Which of the compiled instruction sets this processor has. The only file compiled for any processor.
#include "abi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const Kernels avx2, avx512, avx512_bf16, amx_bf16;

namespace {

// The system hands tile registers out on request (Linux: ARCH_REQ_XCOMP_PERM, feature 18).
bool has_amx() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool tile = d >> 24 & 1, bfloat16 = d >> 22 & 1;
    return tile && bfloat16 && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

}  // namespace

// The best set that is here and not above `most`; null below 0 and where there is none. `name` says which.
EXPORT const Kernels* srtkit_kernels(int32_t most, const char** name) {
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool has_bf16 = has_avx512() && __builtin_cpu_supports("avx512bf16");
    if (most >= 3 && has_bf16 && has_amx()) return *name = "AMX", &amx_bf16;
    if (most >= 2 && has_bf16) return *name = "AVX512_BF16", &avx512_bf16;
    if (most >= 1 && has_avx512()) return *name = "AVX-512", &avx512;
    if (most >= 0 && has_avx2) return *name = "AVX2", &avx2;
    return nullptr;
}
#else
extern const Kernels generic;

EXPORT const Kernels* srtkit_kernels(int32_t, const char** name) { return *name = "plain C++", &generic; }
#endif
