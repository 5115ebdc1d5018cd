# SPDX-License-Identifier: Apache-2.0
"""One call of the tuned kernel between cudaProfilerStart and Stop, for ncu.sh: python -m studies.triton_flash_attention.once B,H,N,D causal|full"""

import sys

import torch

from .forward import forward, tuned_kernel


def main():
    B, H, N, D = (int(x) for x in sys.argv[1].split(","))
    causal = sys.argv[2] == "causal"
    q, k, v = (torch.randn(B, H, N, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for _ in range(3):
        forward(q, k, v, causal=causal)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    forward(q, k, v, causal=causal)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    print("tuned:", tuned_kernel.best_config)


if __name__ == "__main__":
    main()
