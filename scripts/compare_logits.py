#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What rounding costs: root mean square over all logits of the texts of tests/data/smollm2.json, keyfold beside llama.cpp (through
llama-cpp-python) on the same GGUF file. Each is held against its own fp32: llama.cpp on the weights dequantised to a GGUF of fp32, keyfold
with exact activations, both with an fp32 cache; a row tells how far these two lie apart.

    pip install llama-cpp-python==0.3.36 gguf
    python3 scripts/compare_logits.py MODEL.gguf [--keyfold build/keyfold] [--threads 2] [--json FILE]

llama.cpp rounds the activations of every product with quantised weights to 8 bits, in blocks of 32."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from compare_llama import commit, machine

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "smollm2.json"
GGML_TYPES = {"fp32": 0, "fp16": 1, "bf16": 30}  # ggml's numbers, for llama.cpp's cache


def dequantise(source, target):
    """The same model with every tensor in fp32."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = 0 if name == "general.file_type" else field.contents()
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, value, field.types[0], field.types[-1] if array else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_logits(path, texts, threads, cache, flash):
    import llama_cpp
    import numpy as np

    room = max(len(ids) for ids in texts)
    llm = llama_cpp.Llama(str(path), n_ctx=room, n_batch=room, n_ubatch=room, n_threads=threads, n_threads_batch=threads, flash_attn=flash,
                          type_k=GGML_TYPES[cache], type_v=GGML_TYPES[cache], logits_all=True, verbose=False)
    logits = []
    for ids in texts:
        llm.reset()
        llm.eval(ids)
        logits.append(np.array(llm.scores[: len(ids)], dtype=np.float64))
    llm.close()
    return logits


def keyfold_logits(command, path, texts, threads, cache, activations):
    import numpy as np

    logits = []
    with tempfile.TemporaryDirectory() as folder:
        for ids in texts:
            out = os.path.join(folder, "logits")
            subprocess.run([command, "generate", "-m", path, "--ids", ",".join(map(str, ids)), "--logits", out, "--cache", cache,
                            "--activations", activations, "--threads", str(threads)], check=True)
            logits.append(np.fromfile(out, dtype=np.float32).astype(np.float64).reshape(len(ids), -1))
    return logits


def rms(a, b):
    return (sum(((x - y) ** 2).sum() for x, y in zip(a, b)) / sum(x.size for x in a)) ** 0.5


def measure(o, texts, plain):
    """Rows of (what, keyfold's root mean square, llama.cpp's)."""
    theirs = lambda path, cache, flash: llama_logits(path, texts, o.threads, cache, flash)
    ours = lambda cache, activations: keyfold_logits(o.keyfold, o.model, texts, o.threads, cache, activations)
    our_exact, their_exact = ours("fp32", "exact"), theirs(plain, "fp32", False)
    rows = [("fp32 of the two, against each other", rms(our_exact, their_exact), None)]
    for cache in ("fp16", "bf16"):
        rows.append((f"{cache} cache", rms(ours(cache, "exact"), our_exact), rms(theirs(plain, cache, True), their_exact)))
    for cache in ("fp32", "fp16"):
        # llama.cpp's better figure of the two ways it has of computing attention.
        rounded = min(rms(theirs(o.model, cache, flash), their_exact) for flash in (False, True))
        rows.append((f"8-bit activations, {cache} cache", rms(ours(cache, "int8"), our_exact), rounded))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--keyfold", default="build/keyfold")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    o = parser.parse_args()
    try:
        import gguf  # noqa: F401
        import llama_cpp
    except ImportError as missing:
        sys.exit(f"{missing}: pip install llama-cpp-python==0.3.36 gguf")
    texts = [item["prompt_ids"] + item["float32"]["gen_ids"] for item in json.loads(DATA.read_text())["generate"]]
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "fp32.gguf")
        dequantise(o.model, plain)
        rows = measure(o, texts, plain)
    print(f"root mean square over {sum(map(len, texts))} tokens' logits; llama-cpp-python {llama_cpp.__version__}\n")
    print("| | keyfold | llama.cpp |\n|---|---|---|")
    for what, ours, theirs in rows:
        print(f"| {what} | {ours:.3g} | {'' if theirs is None else f'{theirs:.3g}'} |")
    if o.json:
        command = f"python3 scripts/compare_logits.py {os.path.basename(o.model)} --threads {o.threads}"
        report = {"command": command, "commit": commit(), "machine": machine(), "llama_cpp_python": llama_cpp.__version__,
                  "rows": [{"what": what, "keyfold": ours, "llama_cpp": theirs} for what, ours, theirs in rows]}
        pathlib.Path(o.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
