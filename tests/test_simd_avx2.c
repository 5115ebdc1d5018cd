// SPDX-License-Identifier: Apache-2.0
//
// simd_avx2.h against the scalar conversions and the C library.
#if defined(__x86_64__)
#include "cpu/simd_avx2.h"

#include "simd_checks.h"

int main(void) { return run_simd_checks(KF_ISA_AVX2); }
#else
int main(void) { return 0; }
#endif
