#!/bin/sh
# Nsight Compute on one call of the Triton kernel, tuned before: what share of the SM, the tensor pipe and DRAM it keeps busy.
#
#   sh studies/triton_flash_attention/ncu.sh [B,H,N,D [causal|full]]...
#
# The counters are those of `keyfold profile`.
set -eu
cd "$(dirname "$0")/../.."
metrics=sm__throughput.avg.pct_of_peak_sustained_elapsed
metrics=$metrics,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed
metrics=$metrics,dram__throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes.sum
metrics=$metrics,lts__t_sector_hit_rate.pct,sm__warps_active.avg.pct_of_peak_sustained_active
metrics=$metrics,launch__registers_per_thread,launch__shared_mem_per_block_dynamic,gpu__time_duration.sum
[ $# -gt 0 ] || set -- 2,16,4096,64 causal 4,32,4096,128 full
while [ $# -gt 0 ]; do
    shape=$1 mask=${2:-causal}
    shift
    [ $# -eq 0 ] || shift
    echo "== $shape $mask"
    ncu --clock-control none --profile-from-start off --kernel-name regex:forward_kernel --metrics "$metrics" \
        python3 -m studies.triton_flash_attention.once "$shape" "$mask" | sed -n '/forward_kernel/,$p'
done
