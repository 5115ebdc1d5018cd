#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# keyfold profile over a table as ncu --csv --page raw --print-units base writes it: numbers found by their names, sentences beside them.
. "$(dirname "$0")/command.sh"

cat >"$work/table" <<'TABLE'
==PROF== Connected to process 4242 (/usr/bin/keyfold)
==PROF== Profiling "kf_prefill_kernel" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","l1tex__throughput.avg.pct_of_peak_sustained_active","launch__registers_per_thread","lts__t_sector_hit_rate.pct","lts__throughput.avg.pct_of_peak_sustained_elapsed","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active","smsp__issue_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","%","ns","%","register/thread","%","%","%","%","%","%"
"0","4242","keyfold","127.0.0.1","void kf_prefill_kernel<kf_prefill<__nv_bfloat16, 128, ""x"">>(kf_cuda_attention)","1","13","(128, 1, 1)","(512, 1, 1)","0","9.0","33,554,432","1.20","809,220","61.5","255","98.7","20.1","52.3","52.27","12.5","30.2"
"1","4242","keyfold","127.0.0.1","kf_merge_kernel(kf_cuda_attention)","1","13","(128, 1, 1)","(32, 1, 1)","0","9.0","1,048,576","88.0","2,048","10","32","5","12","0","3","40","n/a"
TABLE
"$keyfold" profile --from "$work/table" >"$work/out" 2>"$work/err" || complain "status $?: $(cat "$work/err")"
for line in '^void kf_prefill_kernel<kf_prefill<__nv_bfloat16, 128, "x">>(kf_cuda_attention)$' '^  time  *809\.2 us' '^  SM  *52\.3 %' \
    '^  tensor pipe  *52\.3 %' '^  issue slots  *30\.2 %' '^  DRAM  *1\.2 %  *33\.55 MB, 41 GB/s: memory.s bandwidth does not limit it$' '^  L2 hits  *98\.7 %' \
    '^  occupancy  *12\.5 %  *of the warps there is room for (255 registers a thread): few' '^kf_merge_kernel' '^  time  *2\.0 us' \
    '^  tensor pipe  *0\.0 %  *no matrix products$' '512 GB/s: memory.s bandwidth is the limit$'; do
    grep -q "$line" "$work/out" || complain "no line $line in: $(cat "$work/out")"
done
[ "$(grep -c 'issue slots' "$work/out")" -eq 1 ] || complain "a number that ncu did not give is shown"

echo "==ERROR== ERR_NVGPUCTRPERM" >"$work/table"
"$keyfold" profile --from "$work/table" >"$work/out" 2>"$work/err" && complain "a file without a table is taken"
grep -q ERR_NVGPUCTRPERM "$work/err" || complain "ncu's error is not shown: $(cat "$work/err")"
"$keyfold" profile --from "$work/nothing" >/dev/null 2>&1 && complain "a file that is not there is taken"
"$keyfold" profile >/dev/null 2>&1
[ $? -eq 2 ] || complain "without an operation: not status 2"
"$keyfold" profile attention '$(true)' >/dev/null 2>&1
[ $? -eq 2 ] || complain "a word for the shell: not status 2"
[ "$failures" -eq 0 ]
