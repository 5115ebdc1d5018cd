#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests the tests: breaks the library on purpose, one place at a time, and fails unless `keyfold verify` notices.
#
#   sh tests/mutants.sh --quick      at least one for each operation (the default)
#   sh tests/mutants.sh --all        all of them
#   sh tests/mutants.sh NAME ...     those
#   sh tests/mutants.sh --cuda       the CUDA kernels': needs nvcc and a device
#   sh tests/mutants.sh --cuda-build DIR [NAME ...], then, where the device is: sh tests/mutants.sh --cuda-run DIR [NAME ...]
#
# A mutant is a line at the end of this file: the file, a text that must stand in it exactly once, what to put there instead, and the
# case of verify that must fail. Everything happens in a copy of the tree under BUILD/mutants (BUILD: KEYFOLD_BUILD, or build), compiled
# with little optimisation; CMAKE_ARGS are further options of CMake. With 77 as exit status nothing could be run here.
set -u
cd "$(dirname "$0")/.." || exit 1
wanted=quick step=both keep=
case ${1:-} in
    --all) wanted=all && shift ;;
    --quick) shift ;;
    --cuda) wanted=cuda && shift ;;
    --cuda-build | --cuda-run) wanted=cuda step=${1#--cuda-} keep=${2:?the folder of the programs} && shift 2 ;;
esac
asked=$*
work=${KEYFOLD_BUILD:-build}/mutants
mkdir -p "$work" "${keep:=$work/programs}" && work=$(cd "$work" && pwd) && keep=$(cd "$keep" && pwd) || exit 1
tree=$work/tree
build=$tree/build
pristine=$work/pristine
jobs=$(nproc 2>/dev/null || echo 2)
under=
caught=0 missed=0

say() { printf '%s\n' "$*"; }

compile() { cmake --build "$build" --target keyfold_command -j "$jobs" >"$work/build.log" 2>&1; }

# verify PROGRAM CASE LOG
verify() {
    # shellcheck disable=SC2086
    timeout 300 "$keep/$1" verify --quick $under --case "$2" >"$3" 2>&1
}

# The device's architecture, and no other.
cuda_options() {
    arch=${KEYFOLD_ARCH:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d .)}
    [ "$arch" != 90 ] || arch=90a
    echo "-DKEYFOLD_CUDA=ON -DKEYFOLD_CUDA_ARCHITECTURES=$arch"
}

# A copy of the tree, built once, and a copy of that build: each mutant starts from it, so that only what it changes is compiled.
prepare() {
    options=
    [ "$wanted" != cuda ] || options=$(cuda_options)
    rm -rf "$work/tree" "$work/pristine"
    mkdir -p "$tree"
    cp -pR CMakeLists.txt cmake include python src tools "$tree"/ || return 1
    # shellcheck disable=SC2086
    cmake -S "$tree" -B "$build" -DKEYFOLD_TESTS=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O1 $options ${CMAKE_ARGS:-} >"$work/build.log" 2>&1 && compile || {
        tail -n 30 "$work/build.log"
        return 1
    }
    cp -pR "$build" "$pristine"
    cp -p "$build/keyfold" "$keep/pristine"
}

# Makes the change; fails unless the text stands in the file exactly once.
change() {
    from=$2 to=$3 awk '
        BEGIN { from = ENVIRON["from"]; to = ENVIRON["to"] }
        {
            line = $0
            while ((at = index(line, from)) > 0) {
                seen++
                printf "%s%s", substr(line, 1, at - 1), to
                line = substr(line, at + length(from))
            }
            print line
        }
        END { exit seen == 1 ? 0 : 1 }' "$1" >"$work/changed" && cat "$work/changed" >"$1"
}

restore() {
    cp -p "$1" "$tree/$1"
    rm -rf "$build" && cp -pR "$pristine" "$build"
}

wrong() {
    say "WRONG    $1: $2"
    missed=$((missed + 1))
}

# make NAME FILE UNIT TEXT INSTEAD: the program with that change. FILE is what stands in the tree; UNIT, if not the same, is the one unit that
# gets the change, for headers of kernels are part of many, which take minutes: it includes a changed copy first, whose guard keeps FILE out.
make_mutant() {
    file=$2
    if [ "$3" != "$2" ]; then
        file=${2%/*}/mutant.${2##*.}
        cp "$tree/$2" "$tree/$file" && { echo "#include \"${file#src/}\"" && cat "$3"; } >"$tree/$3"
    fi
    if ! change "$tree/$file" "$4" "$5"; then
        wrong "$1" "\"$4\" does not stand in $2 exactly once"
    elif ! compile; then
        wrong "$1" "does not compile"
        grep error "$work/build.log" | head -n 5
    else
        cp -p "$build/keyfold" "$keep/$1" && made=$1
    fi
    [ "$file" = "$2" ] || rm -f "$tree/$file"
    restore "$3"
    [ "$made" = "$1" ]
}

# judge NAME CASE: says what came of it
judge() {
    if ! verify pristine "$2" "$work/$1.log"; then
        say "WRONG    $1: $2 fails without the change, or is not there"
    elif verify "$1" "$2" "$work/$1.log"; then
        say "MISSED   $1: $2 passes"
    else
        say "caught   $1: $(grep -v '^ *$' "$work/$1.log" | sed -n 2p | sed 's/^ *//')"
    fi
}

# count SENTENCE: of judge
count() {
    say "$1"
    case $1 in caught*) caught=$((caught + 1)) ;; *) missed=$((missed + 1)) ;; esac
}

# Of programs that are there, each is judged by a process of its own.
judged=
judge_all() {
    for name in $judged; do judge "$name" "$(cat "$work/$name.case")" >"$work/$name.said" & done
    wait
    for name in $judged; do count "$(cat "$work/$name.said")"; done
}

# mutant quick|slow|cuda NAME FILE TEXT INSTEAD CASE [UNIT]
mutant() {
    if [ -n "$asked" ]; then
        case " $asked " in *" $2 "*) ;; *) return ;; esac
    else
        case $wanted-$1 in quick-quick | all-quick | all-slow | cuda-cuda) ;; *) return ;; esac
    fi
    made=
    if [ "$step" = run ]; then
        [ -x "$keep/$2" ] && made=$2 || wrong "$2" "was not built"
    else
        make_mutant "$2" "$3" "${7:-$3}" "$4" "$5"
    fi
    if [ "$made" = "$2" ] && [ "$step" = build ]; then
        say "built    $2"
    elif [ "$made" = "$2" ] && [ "$step" = run ]; then
        judged="$judged $2"
        say "$6" >"$work/$2.case"
    elif [ "$made" = "$2" ]; then
        count "$(judge "$2" "$6")"
        rm -f "$keep/$2"
    fi
}

if [ "$step" != run ]; then
    command -v cmake >/dev/null || { say "skip: cmake is not here"; exit 77; }
    [ "$wanted" != cuda ] || command -v nvcc >/dev/null || { say "skip: nvcc is not here"; exit 77; }
    prepare || { say "the tree does not build"; exit 1; }
fi
if [ "$wanted" = cuda ]; then
    under="--backend cuda"
else
    under="--isa $("$keep/pristine" info --json | sed -n 's/.*"isa_highest": "\([a-z0-9]*\)".*/\1/p')"
fi

# ------------------------------------------------------------------------------------------------- the mask
mutant quick causal-bound src/math/mask.h \
    'kf_saturating_add(kf_saturating_add(p, mask->right), 1)' 'kf_saturating_add(p, mask->right)' \
    attention/report/causal-q3-k128
mutant slow window-bound src/math/mask.h \
    'kf_max64(0, kf_saturating_sub(p, mask->left))' 'kf_max64(0, kf_saturating_sub(p, mask->left) + 1)' \
    attention/report/window-of-5-tokens
mutant slow skipped-tile src/math/mask.h \
    'kf_interval keys = {first.lo, last.hi};' 'kf_interval keys = {first.lo, first.hi};' \
    attention/grid/causal
mutant slow alignment src/cpu/attention_rows.c \
    'offset = item->mask.length - problem->options.Nq;' 'offset = 0 * problem->options.Nq;' \
    attention/report/causal-q2-k6
mutant slow hidden-nan src/cpu/attention_tiles.c \
    'bool careful = partial && !finite' 'bool careful = false && partial && !finite' \
    attention/hostile/nan-v-seen-by-some
mutant slow packed-of-batch src/cpu/attention_tiles.c \
    'index = (b * n->Hkv + kv_head) * blocks' 'index = (b - b + kv_head) * blocks' \
    attention/shape

# ------------------------------------------------------------------------------------------------ the state
mutant quick rescale src/cpu/attention_loops.h \
    'd[r] = d[r] * alpha[r] + sum;' 'd[r] = d[r] + sum;' \
    attention/hostile/rising-scores
mutant slow base-of-logarithm src/math/state.h \
    '(float)((top + log2(d)) * ln2)' '(float)(top + log2(d))' \
    attention/report/lse-natural
mutant slow scale-twice src/cpu/attention_rows.c \
    'return (scale < 0.0f ? -scale : scale) * KF_LOG2E;' 'return scale * scale * KF_LOG2E;' \
    attention/grid/none
mutant slow no-log2e src/cpu/attention_rows.c \
    'return (scale < 0.0f ? -scale : scale) * KF_LOG2E;' 'return scale < 0.0f ? -scale : scale;' \
    attention/grid/none
mutant quick split-weight src/cpu/attention_rows.c \
    'all.d += w * call->states' 'all.d += call->states' \
    attention/decode/mha
mutant slow sink-base src/math/state.h \
    '(double)*sink / ln2' '(double)*sink' \
    attention/grid/sinks
mutant slow empty-row src/math/state.h \
    'if (state.d == 0.0f) {' 'if (state.d == -1.0f) {' \
    attention/report/causal-more-queries-than-keys

# ------------------------------------------------------------------------------------ attention: data and options
mutant slow tail-scores-zero src/cpu/attention_few.c \
    'block.s[r * KF_SCORE_STRIDE + j] = -INFINITY;' 'block.s[r * KF_SCORE_STRIDE + j] = 0.0f;' \
    attention/report/query-of-one
mutant slow head-map src/cpu/attention_rows.c \
    'view->head = item->kv_head * heads + (row0 + r) % heads;' 'view->head = (row0 + r) % heads;' \
    attention/decode/gqa
mutant slow stride-of-v src/cpu/attention_few.c \
    '.v_stride = v->stride[2] *' '.v_stride = options->Dv *' \
    attention/grid
mutant slow alibi-distance src/cpu/attention_rows.c \
    'row.distance = (float)(view->position - k0);' 'row.distance = (float)(view->position - k0 + 1);' \
    attention/grid/alibi
mutant slow positions-of-batch src/cpu/attention_rows.c \
    'kf_view_int2(&problem->positions, item->b, view->query)' 'kf_view_int2(&problem->positions, 0, view->query)' \
    attention/random

# ------------------------------------------------------------------------------------------------ operations on rows
mutant quick softmax-again src/cpu/rows_loops.h \
    'again = again || !good_sum(d);' '' \
    softmax/hostile/last-high
mutant slow softmax-all-hidden src/cpu/rows_loops.h \
    'm == -INFINITY ? 0.0f : m' 'm' \
    softmax/hostile/all-minus-inf
mutant slow rmsnorm-kept src/cpu/rows_loops.h \
    'bool kept = r->sum && (r->sum == r->x || r->sum == r->residual);' 'bool kept = false;' \
    rmsnorm/sum-is-residual
mutant quick merge-weight src/cpu/merge_states.c \
    'weight[s] * inverse;' 'weight[s];' \
    merge_states/two-parts
mutant slow merge-empty-part src/cpu/merge_states.c \
    'part == -INFINITY ? -1.0f : weight[s] * inverse' 'weight[s] * inverse' \
    merge_states/empty-parts
mutant quick rmsnorm-offset src/cpu/rmsnorm.c \
    '.weight_offset = p->options.weight_offset' '.weight_offset = 0 * p->options.weight_offset' \
    rmsnorm/gemma
mutant slow rmsnorm-cast src/cpu/rows_loops.h \
    'r->cast == KF_CAST_END ? KF_TYPE_F32 : sum_type' 'r->cast != KF_CAST_LLAMA ? KF_TYPE_F32 : sum_type' \
    rmsnorm/residual/sum
mutant slow rmsnorm-llama src/cpu/rows_loops.h \
    'residual_type, y_type, x_type, woven, stream)' 'residual_type, y_type, KF_TYPE_F32, woven, stream)' \
    rmsnorm/plain/llama
mutant slow rmsnorm-eps src/cpu/rows_loops.h \
    'mean + ldexp((double)eps, -2 * power)' 'mean' \
    rmsnorm/eps-large
mutant quick swiglu-sign src/cpu/rows_loops.h \
    'kf_vec_exp(kf_vec_sub(kf_vec_zero(), gate))' 'kf_vec_exp(gate)' \
    swiglu/separate
mutant quick rope-sign src/cpu/rows_loops.h \
    'store(y, y_type, c + pairs, step, kf_vec_fma(a, sn, kf_vec_mul(b, cs)));' \
    'store(y, y_type, c + pairs, step, kf_vec_fnma(a, sn, kf_vec_mul(b, cs)));' \
    rope/neox
mutant slow rope-llama3 src/math/rope.h \
    'if (turns > high) return frequency;' 'if (turns > low) return frequency;' \
    rope/llama3
mutant slow rope-tail src/cpu/rows_loops.h \
    'rows_convert(y + dims * size_of(y_type), y_type, x + dims * size_of(x_type), x_type, D - dims);' ';' \
    rope/neox-partial
mutant quick append-slot src/cpu/kv_append.c \
    'kf_head_row(&p->v_cache, b, h, slot)' 'kf_head_row(&p->v_cache, b, h, slot - n)' \
    kv_append/no-rotation
mutant slow append-capacity src/cpu/kv_append.c \
    'if (slot < 0 || slot > last)' 'if (slot < 0)' \
    kv_append/past-the-cache

# ------------------------------------------------------------------------------------------------- weights and linear
mutant quick embedding-scale src/cpu/linear.c \
    'values[i] *= p->options.scale;' 'values[i] *= 1.0f;' \
    embedding/q8_0
mutant slow block-scale src/math/blocks.h \
    '(s[j - 4] >> 6) << 4' '(s[j - 4] >> 6) << 3' \
    linear/q4_k
mutant quick linear-minimum src/cpu/linear_tile.h \
    'if (kf_block_affine(type)) acc[r] = kf_vec_fma(m, kf_vec_set1(x[r].sum), acc[r]);' '' \
    linear/q4_1

mutant slow int8-scale src/cpu/linear_tile.h \
    'const float scale = largest / 127.0f;' 'const float scale = largest / 128.0f;' \
    linear/q8_0/packed-int8
mutant slow packed-codes src/cpu/pack.c \
    'word |= (read32(code + 4 * g) >> 4 & one) << g;' 'word |= (read32(code + 4 * g) >> 4 & one) << (7 - g);' \
    linear/q5_0/packed-exact

# ------------------------------------------------------------------------------------------------------ CUDA kernels
mutant cuda cuda-masked-tile src/cuda/prefill.cuh \
    'const bool partial = t * KEYS < kept->full_lo || (t + 1) * KEYS > kept->full_hi;' \
    'const bool partial = t * KEYS < kept->full_lo;' \
    attention/shape/1x8x2048x64 src/cuda/prefill_64.cu
mutant cuda cuda-decode-sum src/cuda/decode.cuh \
    'x.d[m][half] += p0 + p1;' 'x.d[m][half] = p0 + p1;' \
    attention/decode src/cuda/decode_64.cu
mutant cuda cuda-decode-warps src/cuda/decode.cuh \
    'tile0 = w.lo / KEYS + warp,' 'tile0 = w.lo / KEYS + warp % 4,' \
    attention/full-lists/plain src/cuda/decode_128.cu
mutant cuda cuda-turn-step src/cuda/decode_turn.cuh \
    'angle[i] = kf_rope_and(angle[i], step[0]), ' '' \
    attention/turning/merged src/cuda/decode_turn.cu
mutant cuda cuda-turn-neighbours src/cuda/decode_turn.cuh \
    '2 * (c & 3) + (c >> 2 & 1);' '2 * (c & 3) + (c >> 3 & 1);' \
    attention/turning/cluster-gptj src/cuda/decode_turn.cu
mutant cuda cuda-merge-gaps src/cuda/merge.cu \
    'if (state[i].y != 0.0f && column < a.Dv)' 'if (state[i].y == 0.0f && column < a.Dv)' \
    attention/prefill/chunk
mutant cuda cuda-split-weight src/cuda/merge.cu \
    'd = fmaf(weight, state[i].y, d);' 'd += state[i].y;' \
    attention/decode
mutant cuda cuda-softmax-rescale src/cuda/softmax.cu \
    'if (most > m) d *= weight_of(m, most), m = most;' 'if (most > m) m = most;' \
    softmax/fixed-split
mutant cuda cuda-softmax-blocks src/cuda/softmax.cu \
    '*d += room.from[rank].y * weight_of(room.from[rank].x, *m);' '*d += room.from[rank].y;' \
    softmax/fixed-split
mutant cuda cuda-rmsnorm-offset src/cuda/rmsnorm.cu \
    's[i][e] *= weight_offset + w[e];' 's[i][e] *= w[e];' \
    rmsnorm/aligned-gemma
mutant cuda cuda-rmsnorm-warps src/cuda/rows.cuh \
    'third = OP::of(OP::of(a.z, c.z), OP::of(b.z, d.z))' 'third = OP::of(a.z, c.z)' \
    rmsnorm/aligned src/cuda/rmsnorm.cu
mutant cuda cuda-rmsnorm-chunk src/cuda/rmsnorm.cu \
    'kf_chunk_load(residual + i * stride)' 'kf_chunk_load(residual)' \
    rmsnorm/aligned
mutant cuda cuda-rmsnorm-half src/cuda/rmsnorm.cu \
    '(i * stride >> half_y())' '(i * stride >> 2 * half_y())' \
    rmsnorm/narrow-y
mutant cuda cuda-swiglu-sign src/cuda/swiglu.cu \
    '(gate >= 0.0f ? s : t * s)' '(gate >= 0.0f ? s : s)' \
    swiglu/separate
mutant cuda cuda-rope-sign src/cuda/rope.cuh \
    'fmaf(-b, t.y, a * t.x)' 'fmaf(b, t.y, a * t.x)' \
    rope/neox src/cuda/rope.cu
mutant cuda cuda-append-capacity src/cuda/kv_append.cu \
    'int64_t room = a.capacity - a.deal.N;' 'int64_t room = a.capacity;' \
    kv_append/past-the-cache
mutant cuda cuda-merge-states src/cuda/merge_states.cu \
    'sum[e] = fmaf(weight, v[e], sum[e]);' 'sum[e] += v[e];' \
    merge_states/two-parts
mutant cuda cuda-embedding-scale src/cuda/embedding.cu \
    'v[e] *= a.scale;' 'v[e] *= 1.0f;' \
    embedding/q8_0
mutant cuda cuda-decode-fp32 src/cuda/decode_fp32.cu \
    'x.d[r] += weight;' 'x.d[r] = weight;' \
    attention/decode
mutant cuda cuda-prefill-fp32-parts src/cuda/prefill_fp32.cu \
    'x.o[n][e] += fmaf(small[e], CUT, sum[e]);' 'x.o[n][e] += sum[e];' \
    attention/size/300x500x64/fp32
mutant cuda cuda-rotated-scale src/cuda/rotate_keys.cu \
    '= kf_row_unscale(scales[row0 + lane]);' '= 1.0f;' \
    attention/report/rope-small-keys
mutant cuda cuda-rotated-whole-scale src/cuda/rotate_keys.cu \
    '= kf_row_unscale(scale);' '= 1.0f;' \
    attention/report/rope-small-keys-whole
mutant cuda cuda-rotated-whole-live src/cuda/rotate_keys.cu \
    '.live = key < length,' '.live = key < length - 1,' \
    attention/report/rope-small-keys-whole
mutant cuda cuda-rotated-again src/cuda/prefill.cuh \
    'if (!SCALED && kf_uniform(odd)) return false;' 'if (!SCALED && kf_uniform(odd) > 1) return false;' \
    attention/report/rope-small-keys-whole src/cuda/prefill_rotated_128.cu
mutant cuda cuda-rotated-queries src/cuda/prefill_rotated.cuh \
    'angle[e] = kf_rope_and(angle[e], step[e]);' 'angle[e] = kf_rope_and(angle[e], angle[e]);' \
    attention/tile/128x128/bf16/70x129/rope src/cuda/prefill_rotated_128.cu
mutant cuda cuda-decode-second-mask src/cuda/decode.cuh \
    'const int row = TILE * m + 8 * half + lane / 4;' 'const int row = 8 * half + lane / 4;' \
    attention/decode/32-rows-causal src/cuda/decode_64.cu
mutant cuda cuda-decode-second-queries src/cuda/decode.cuh \
    'kf_shared(memory) + kf_swizzle<D>(m * TILE + (lane & 15)' 'kf_shared(memory) + kf_swizzle<D>((lane & 15)' \
    attention/tile/64x64 src/cuda/decode_64.cu
mutant cuda cuda-decode-second-loaded src/cuda/decode.cuh \
    'q_shared + kf_swizzle<D>(m * TILE + (lane & 15)' 'q_shared + kf_swizzle<D>((lane & 15)' \
    attention/decode/32-rows-lengths src/cuda/decode_128.cu
mutant cuda cuda-decode-second-state src/cuda/decode.cuh \
    'const float d = kf_quad_sum(x.d[m][half]), most' 'const float d = kf_quad_sum(x.d[0][half]), most' \
    attention/decode/32-rows-lengths src/cuda/decode_128.cu
mutant cuda cuda-prefill-part src/cuda/prefill.cuh \
    '((int64_t)w.list * a.rows + r) * a.splits + w.split;' '((int64_t)w.list * a.rows + w.row0) * a.splits + w.split;' \
    attention/few-tiles src/cuda/prefill_64.cu
mutant cuda cuda-prefill-part-maximum src/cuda/prefill.cuh \
    'make_float2(kf_maximum(x.origin[mt][half], d), d);' 'make_float2(x.origin[mt][half] + 1.0f, d);' \
    attention/few-tiles src/cuda/prefill_64.cu
mutant cuda cuda-merge-rows-weight src/cuda/merge.cu \
    'd = fmaf(kf_exp2_fast((states[s].x - origin) * a.unit), states[s].y, d);' 'd += states[s].y;' \
    attention/few-tiles
mutant cuda cuda-merge-rows-empty src/cuda/merge.cu \
    'if (states[s].y == 0.0f) continue; // no keys: o was not written' '' \
    attention/few-tiles
mutant cuda cuda-append-before src/cuda/kv_append.cu \
    'if (first < 0 || first > room) return;' 'if (first > room) return;' \
    kv_append/before-the-cache
mutant cuda cuda-append-pair-row src/cuda/kv_append.cu \
    'k.store(first + p.n, pairing, turn);' 'k.store(first, pairing, turn);' \
    kv_append/aligned
mutant cuda cuda-append-pair-position src/cuda/kv_append.cu \
    'int64_t position = first + p.n;' 'int64_t position = first;' \
    kv_append/aligned
mutant cuda cuda-append-pair-sequence src/cuda/kv_append.cu \
    'a.slots + p.b * a.slot_stride *' 'a.slots + 0 * a.slot_stride *' \
    kv_append/aligned
mutant cuda cuda-append-pair-head src/cuda/kv_append.cu \
    'to(cache.data + p.b * cache.stride[0] + p.first * cache.stride[1])' 'to(cache.data + p.b * cache.stride[0])' \
    kv_append/aligned
mutant cuda cuda-direct-end src/cuda/linear_direct.cuh \
    'if (i == 0) piece[0] = piece[1];' '' \
    linear/q4_0 src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-rows src/cuda/linear_direct.cuh \
    'return min(lane, (T - 1) * 4 + (lane & 3));' 'return lane & 3;' \
    linear/q4_0 src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-later-rows src/cuda/linear_direct.cuh \
    'row += AHEAD, from += AHEAD * row_bytes,' 'row += AHEAD,' \
    linear/q4_0 src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-warps src/cuda/linear_direct.cuh \
    'each[w] = w < a.ways ?' 'each[w] = w < a.ways && w < 5 ?' \
    linear/q4_0 src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-elements src/cuda/linear_direct.cuh \
    '(i >> 2) * 8 + (i & 1) * 4 + (i & 2)' '(i >> 2) * 8 + (i & 3) * 2' \
    linear/q4_0 src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-minimum src/cuda/linear_direct.cuh \
    'ROWS == 1 ? 1 : (int)KF_UNIT_BLOCKS' 'ROWS == 1 ? 1 : KF_UNIT_BLOCKS - 1' \
    linear/q4_1 src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-one-minimum src/cuda/linear_direct.cuh \
    'kf_mma_step<__nv_bfloat16>(sum, ones, 1, x);' '' \
    linear/q4_1/units src/cuda/linear_vector_q4.cu
mutant cuda cuda-direct-one-row src/cuda/linear_direct.cuh \
    'if (p.there && !a.x_aligned)' 'if (false)' \
    linear/q4_0 src/cuda/linear_vector_q4.cu
mutant cuda cuda-wide-warps src/cuda/linear_wide.cuh \
    'w < KF_WIDE_WARPS;' 'w < KF_WIDE_WARPS - PARTS;' \
    linear/q4_0/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-wide-minimum src/cuda/linear_wide.cuh \
    '(beside, quad * 4 + k, lane)' '(beside, k, lane)' \
    linear/q4_1/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-wide-high src/cuda/linear_wide.cuh \
    'at & 0x00f000f0u' 'at & 0x007000f0u' \
    linear/q4_0/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-many-last src/cuda/linear_many.cuh \
    'next >= whole && next < pairs' 'next > whole && next < pairs' \
    linear/q4_0/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-many-ahead src/cuda/linear_many.cuh \
    'ahead += gridDim.x * 2 * a.octet_bytes;' 'ahead += gridDim.x * a.octet_bytes;' \
    linear/q4_0/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-one-column src/cuda/linear_one.cuh \
    '(lane & 3) == j / 2' '(lane & 3) == (j + 1) / 2' \
    linear/q4_1/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-one-minimum src/cuda/linear_one.cuh \
    'x.sum[0] = sum.x, x.sum[1] = sum.y;' 'x.sum[0] = sum.y, x.sum[1] = sum.x;' \
    linear/q4_1/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-one-scales src/cuda/linear_one.cuh \
    't < 2 ? y & 0x3f3fu' 't < 3 ? y & 0x3f3fu' \
    linear/q4_k/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-one-end src/cuda/linear_one.cuh \
    'next >= whole && next < pairs' 'next > whole && next < pairs' \
    linear/q4_1/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-one-pairs src/cuda/linear_one.cuh \
    '(first + (i >> 4) * gridDim.x)' '(first + (i >> 4))' \
    linear/q4_1/wide src/cuda/linear_vector_q4.cu
mutant cuda cuda-codes-five src/cuda/linear.cuh \
    'more >> 5 * (j - 1)' 'more >> 5 * (j & 1)' \
    linear/q5_0 src/cuda/linear_vector_q5.cu
mutant cuda cuda-codes-five-first src/cuda/linear.cuh \
    'more >> 11 & 0x00100010u' 'more >> 11 & 0x00100000u' \
    linear/q5_0 src/cuda/linear_vector_q5.cu
mutant cuda cuda-codes-six src/cuda/linear.cuh \
    '8 + 2 * (j & 1)' '8' \
    linear/q6_k src/cuda/linear_vector_q8.cu
mutant cuda cuda-linear-ring src/cuda/linear_stream.cuh \
    'if (++slot == a.ring) slot = 0;' 'if (++slot > a.ring) slot = 0;' \
    linear/bf16 src/cuda/linear_stream_dense.cu

if [ "$step" = build ]; then
    say "mutants: $missed not built"
    [ "$missed" -eq 0 ]
    exit
fi
judge_all
say "mutants: $caught caught, $missed not"
[ "$missed" -eq 0 ] && [ "$caught" -gt 0 ]
