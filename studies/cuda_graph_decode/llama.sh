#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# llama.cpp's llama-bench with CUDA, from the sources that the Python package llama-cpp-python carries on PyPI:
#
#     sh studies/cuda_graph_decode/llama.sh FOLDER [ARCHITECTURE, 90]
#
# leaves it as FOLDER/build/bin/llama-bench. Needs pip, CMake, Ninja, the CUDA toolkit, and an hour of two cores.
#
# On a machine without a GPU, for one that has no way to build: TRIM=1 leaves away what a token's step in bf16 at D = 64
# never launches (prefill's attention, products of quantised weights, operations of other architectures). Functions that
# are missing then are found missing when they are called, so a wrong cut ends in an error, not in another kernel.
set -e
folder=$1 architecture=${2:-90} version=0.3.36
mkdir -p "$folder" && cd "$folder"
[ -f llama_cpp_python-$version.tar.gz ] ||
    python3 -m pip download --no-deps --no-binary llama-cpp-python -d . llama-cpp-python==$version
[ -d llama_cpp_python-$version ] || tar xzf llama_cpp_python-$version.tar.gz
source=llama_cpp_python-$version/vendor/llama.cpp
kernels="acc add-id allreduce argmax binbcast clamp concat convert cpy fattn fattn-tile fill fwht getrows ggml-cuda mmf mmid
    mmq mmvf mmvq norm quantize rope scale set-rows softmax sum unary"
if [ -n "$TRIM" ]; then
    for file in "$source"/ggml/src/ggml-cuda/*.cu "$source"/ggml/src/ggml-cuda/template-instances/*.cu; do
        name=$(basename "$file" .cu)
        case " $(echo $kernels) fattn-vec-instance-f16-f16 " in *" $name "*) ;; *) rm "$file" ;; esac
    done
fi
cmake -S "$source" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="$architecture" \
    -DGGML_CUDA=ON -DGGML_CUDA_FA_QUANTS=f16-f16 -DGGML_CUDA_NCCL=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON \
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,-z,lazy" \
    -DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,lazy
cmake --build build --target llama-bench
