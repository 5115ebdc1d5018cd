// SPDX-License-Identifier: Apache-2.0
//
// What this CPU can run. Every bit that the kernels of an ISA use is checked, and that the operating system saves the
// registers (XCR0).
#include "cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool bits(unsigned value, unsigned wanted) { return (value & wanted) == wanted; }

// XCR0: 2 SSE, 4 AVX, 0xE0 the opmasks and the upper halves and registers of AVX-512.
static unsigned long long saved_registers(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (unsigned long long)high << 32 | low;
}

kf_isa kf_cpu_detect(void) {
    unsigned a, b1, c1, d, b7, c7, d7, a71 = 0, unused;
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !bits(c1, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return KF_ISA_SCALAR;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !bits(b7, bit_AVX2) || (saved_registers() & 6) != 6)
        return KF_ISA_SCALAR;
    unsigned leaves = a; // highest sub-leaf of 7
    if (!bits(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) || (saved_registers() & 0xe6) != 0xe6)
        return KF_ISA_AVX2;
    if (leaves >= 1) __get_cpuid_count(7, 1, &a71, &unused, &unused, &unused);
    return bits(c7, bit_AVX512VNNI) && bits(a71, bit_AVX512BF16) ? KF_ISA_AVX512BF16 : KF_ISA_AVX512;
}
#else
kf_isa kf_cpu_detect(void) { return KF_ISA_SCALAR; }
#endif
