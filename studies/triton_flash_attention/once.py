# SPDX-License-Identifier: Apache-2.0
"""One call of the kernel, or of cuDNN's, between cudaProfilerStart and Stop, for ncu.sh:

python -m studies.triton_flash_attention.once B,H,N,D causal|full BLOCK_M,BLOCK_N,warps,stages|cudnn
"""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .forward import forward


def main():
    B, H, N, D = (int(x) for x in sys.argv[1].split(","))
    causal, tile = sys.argv[2] == "causal", sys.argv[3]
    q, k, v = (torch.randn(B, H, N, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def call():
        if tile == "cudnn":
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return
        blocks = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), (int(x) for x in tile.split(","))))
        forward(q, k, v, causal=causal, blocks=blocks)

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
