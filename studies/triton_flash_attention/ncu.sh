#!/bin/sh
# Nsight Compute on one call of the Triton kernel, tuned before, or of cuDNN's: what share of the SM, the tensor pipe and DRAM it keeps busy.
#
#   sh studies/triton_flash_attention/ncu.sh [B,H,N,D causal|full BLOCK_M,BLOCK_N,warps,stages|cudnn]...
#
# The tile is what bench.py said that the tuner chose: under ncu its timings mean nothing.
# The counters are those of `keyfold profile`.
set -eu
cd "$(dirname "$0")/../.."
metrics=sm__throughput.avg.pct_of_peak_sustained_elapsed
metrics=$metrics,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed
metrics=$metrics,dram__throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes.sum
metrics=$metrics,lts__t_sector_hit_rate.pct,sm__warps_active.avg.pct_of_peak_sustained_active
metrics=$metrics,launch__registers_per_thread,launch__shared_mem_per_block_dynamic,gpu__time_duration.sum
[ $# -gt 0 ] || set -- 2,16,4096,64 causal 64,64,4,3 2,16,4096,64 causal cudnn 2,16,4096,64 full 128,64,8,3 \
    4,32,4096,128 full 128,64,8,3 1,16,16384,128 full 128,128,8,3 1,16,16384,128 full cudnn 1,8,16384,256 full cudnn
while [ $# -gt 2 ]; do
    shape=$1 mask=$2 tile=$3
    shift 3
    echo "== $shape $mask, $([ "$tile" = cudnn ] && echo cudnn || echo "tile $tile")"
    ncu --clock-control none --profile-from-start off --kernel-name 'regex:forward_kernel|sdpa|fprop' --metrics "$metrics" \
        python3 -m studies.triton_flash_attention.once "$shape" "$mask" "$tile" | sed -n '/Context [0-9]/,$p'
done
