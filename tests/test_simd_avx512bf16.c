// SPDX-License-Identifier: Apache-2.0
//
// simd_avx512.h with the BF16 instructions, against the scalar conversions and the C library.
#if defined(__x86_64__)
#include "cpu/simd_avx512.h"

#include "simd_checks.h"

int main(void) { return run_simd_checks(KF_ISA_AVX512BF16); }
#else
int main(void) { return 0; }
#endif
