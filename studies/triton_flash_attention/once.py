# SPDX-License-Identifier: Apache-2.0
"""One call of the kernel between cudaProfilerStart and Stop, for ncu.sh:

python -m studies.triton_flash_attention.once B,H,N,D causal|full BLOCK_M,BLOCK_N,warps,stages
"""

import sys

import torch

from .forward import forward


def main():
    B, H, N, D = (int(x) for x in sys.argv[1].split(","))
    causal = sys.argv[2] == "causal"
    blocks = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), (int(x) for x in sys.argv[3].split(","))))
    q, k, v = (torch.randn(B, H, N, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for _ in range(3):
        forward(q, k, v, causal=causal, blocks=blocks)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    forward(q, k, v, causal=causal, blocks=blocks)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
