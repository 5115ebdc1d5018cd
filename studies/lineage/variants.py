# SPDX-License-Identifier: Apache-2.0
"""The prefill kernel with one refinement taken back at a time, each a change of a few lines in a copy of src/.

    python -m studies.lineage.variants FOLDER [NAME ...]      compiles them there (nvcc; sm_90a, or the architecture in ARCH)

A text to be replaced must stand in its file exactly once: where the kernel moves on, this fails rather than measure something else.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFILL, COMMON = "cuda/prefill.cuh", "cuda/attention.cuh"

# name: (what is taken back, flags, [(file, text, instead), ...])
VARIANTS = {
    "unchanged": ("the kernel as it is", [], []),
    "divided": (
        "o is divided by d after every tile and multiplied again before the next one, as FlashAttention-1 keeps it",
        [],
        [
            (
                PREFILL,
                "    static __device__ __forceinline__ void raise_origins(",
                """    static __device__ __forceinline__ void times_sums(state &x, bool inverse) {
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float d = kf_quad_sum(x.d[mt][half]), f = inverse ? (d > 0.0f ? 1.0f / d : 0.0f) : d;
#pragma unroll
                for (int n = 0; n < DV / 8; n++) x.o[mt][n][2 * half] *= f, x.o[mt][n][2 * half + 1] *= f;
            }
    }

    static __device__ __forceinline__ void raise_origins(""",
            ),
            (
                PREFILL,
                "            raise_origins(x, s, c);\n",
                "            times_sums(x, false);\n            raise_origins(x, s, c);\n",
            ),
            (
                PREFILL,
                "fold(x, s, c, v + (t & 1) * V_BYTES, SCALED ? kf_thread() & 31 : lane, seen);\n",
                "fold(x, s, c, v + (t & 1) * V_BYTES, SCALED ? kf_thread() & 31 : lane, seen);\n                times_sums(x, true);\n",
            ),
            (
                PREFILL,
                "        kf_copy_wait<0>();\n        __syncthreads(); // q, k and v are no longer read\n",
                "        kf_copy_wait<0>();\n        __syncthreads(); // q, k and v are no longer read\n        times_sums(x, false);\n",
            ),
        ],
    ),
    "serial": (
        "one block a head goes through all its queries: no parallelism over the sequence",
        ["-DLINEAGE_SERIAL"],
        [
            (PREFILL, "run(const kf_cuda_attention &a) {", "run(const kf_cuda_attention &a, uint32_t index) {"),
            (PREFILL, "kf_block_find(a, blockIdx.x, TILE)", "kf_block_find(a, index, TILE)"),
            (
                PREFILL,
                "    P::run(a);\n",
                "#pragma unroll 1\n    for (int t = 0; t < a.tiles; t++) {\n        P::run(a, t * a.lists + blockIdx.x);\n        __syncthreads();\n    }\n",
            ),
        ],
    ),
    "rescaled": (
        "o and d are rescaled to the true maximum after every tile, not only where it rose by 8 powers of two",
        [],
        [(PREFILL, "if (__any_sync(0xffffffffu, passed)) kf_rescale<GENERAL>", "kf_rescale<GENERAL>")],
    ),
    "between": (
        "D = 128: the exponentials of the next 16 keys between the products of these, as at D = 64 (reports before 4b4efb2 have it the"
        " other way round: there the kernel was so, and 'in turns' was the variant)",
        [],
        [
            (
                PREFILL,
                "static constexpr bool IN_TURNS = D == 128 && MT == 2 && !GENERAL;",
                "static constexpr bool IN_TURNS = false;",
            )
        ],
    ),
    "natural": (
        "e^(scale s - m) with its own multiplication by log2(e), not folded into one multiply-add",
        [],
        [
            (
                COMMON,
                ": fmaf(s, c, -origin);",
                ": __fmul_rn(__fsub_rn(__fmul_rn(s, c * (1.0f / KF_LOG2E)), origin * (1.0f / KF_LOG2E)), KF_LOG2E);",
            )
        ],
    ),
    "first rows first": (
        "blocks with few keys start first under a causal mask",
        [],
        [(COMMON, "    w.tile = a.tiles - 1 - tile;\n", "    w.tile = tile;\n")],
    ),
    "nothing skipped": (
        "all tiles are computed and masked pair by pair",
        [],
        [
            (
                PREFILL,
                "int32_t t0 = w.lo / KEYS, t1 = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : t0;",
                "int32_t t0 = 0, t1 = (w.length + KEYS - 1) / KEYS;",
            ),
            (
                PREFILL,
                "const bool partial = t * KEYS < kept->full_lo || (t + 1) * KEYS > kept->full_hi;",
                "const bool partial = true;",
            ),
            (PREFILL, "            if (partial && !some_row_sees(keys + row0, t * KEYS, lane)) continue;\n", ""),
        ],
    ),
}


def changed(name, tree):
    """A copy of src/ at `tree` with the variant's changes."""
    shutil.copytree(ROOT / "src", tree, dirs_exist_ok=True)
    for file, text, instead in VARIANTS[name][2]:
        path = tree / file
        source = path.read_text()
        if source.count(text) != 1:
            raise SystemExit(f"{name}: stands {source.count(text)} times in {file}: {text.strip()}")
        path.write_text(source.replace(text, instead))


def library(folder, name):
    return pathlib.Path(folder) / f"{name.replace(' ', '_')}.so"


def build(folder, name):
    """Compiles a variant; its registers and spills, as ptxas says them."""
    tree = pathlib.Path(folder) / "src" / name.replace(" ", "_")
    changed(name, tree)
    command = [
        "nvcc",
        "-std=c++17",
        "-O3",
        f"-arch={os.environ.get('ARCH', 'sm_90a')}",
        "-shared",
        "-Xcompiler",
        "-fPIC",
    ]
    command += ["-Xptxas", "-v", f"-I{tree}", f"-I{ROOT / 'include'}", *VARIANTS[name][1]]
    command += [str(pathlib.Path(__file__).with_name("lineage.cu")), "-o", str(library(folder, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{name}:\n{done.stdout}")
    return [
        line.split(":", 1)[-1].strip() for line in done.stdout.splitlines() if "registers" in line or "spill" in line
    ]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or VARIANTS:
        print(f"{name}: {'; '.join(build(folder, name))}", flush=True)


if __name__ == "__main__":
    main()
