# SPDX-License-Identifier: Apache-2.0
"""What a machine without a GPU can hold the study to: the files' values, the models' shapes, the static cache's text,
the arithmetic of the table; with a GPU also that every way gives the same tokens."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from studies.cuda_graph_decode import bench, gguf, models, table, text, trace  # noqa: E402
from studies.cuda_graph_decode.decode import WAYS, Decoder, common, margin  # noqa: E402

TINY = models.Shape("tiny", 2, 64, 128, 4, 2, 16, 100, True, 10000.0)
UNTIED = models.Shape("untied", 2, 64, 96, 4, 1, 16, 90, False, 5000.0)
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
ROOT = Path(__file__).resolve().parents[2]


def lively(shape, device="cpu", dtype=torch.float32):
    """A model whose text is no single token."""
    model = models.random_model(shape, device, dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


# --------------------------------------------------------------------------------------------------------------- files


def packed(kind, count):
    """(bytes, values) of random blocks, value by value from the definition."""
    generator = torch.Generator().manual_seed(kind)
    data, values = b"", []
    for _ in range(count):
        d, m = (struct.unpack("<e", struct.pack("<e", float(x)))[0] for x in torch.rand(2, generator=generator) - 0.5)
        if kind == gguf.Q8_0:
            q = torch.randint(-128, 128, (32,), generator=generator).tolist()
            data += struct.pack("<e32b", d, *q)
            values += [d * x for x in q]
            continue
        q = torch.randint(0, 16, (32,), generator=generator).tolist()
        nibbles = bytes(q[i] | q[i + 16] << 4 for i in range(16))
        data += struct.pack("<e", d) + (struct.pack("<e", m) if kind == gguf.Q4_1 else b"") + nibbles
        values += [d * x + m if kind == gguf.Q4_1 else d * (x - 8) for x in q]
    return data, torch.tensor(values)


@pytest.mark.parametrize("kind", [gguf.Q4_0, gguf.Q4_1, gguf.Q8_0])
def test_blocks(kind):
    data, values = packed(kind, 12)
    got = gguf.Tensor((6, 64), kind, memoryview(bytearray(data))).values()
    torch.testing.assert_close(got, values.reshape(6, 64), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind,name", [(gguf.Q4_0, "q4_0"), (gguf.Q4_1, "q4_1"), (gguf.Q8_0, "q8_0")])
def test_blocks_as_keyfold_reads_them(keyfold, kind, name):
    data, _ = packed(kind, 12)
    got = gguf.Tensor((6, 64), kind, memoryview(bytearray(data))).values()
    blocks = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    ids = torch.arange(6, dtype=torch.int32)
    theirs = keyfold.embedding(keyfold.Weight(blocks, name, rows=6, cols=64), ids, dtype="float32")
    torch.testing.assert_close(got, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [TINY, UNTIED])
def test_a_file_gives_the_model_back(tmp_path, shape):
    model = lively(shape, dtype=torch.bfloat16)
    models.write_file(tmp_path / "m.gguf", shape, model)
    read, copy = models.model_of_file(tmp_path / "m.gguf", "cpu", torch.bfloat16, shape.name)
    assert read == shape
    assert dict(copy.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for name, parameter in copy.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(copy(ids).logits, model(ids).logits)


def test_pairs_and_halves():
    """Row 2i + s of a head in a file is row i + s D/2 of transformers'."""
    pairs = torch.arange(8.0)[:, None]  # 2 heads of D = 4
    assert models.to_halves(pairs, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert torch.equal(models.to_pairs(models.to_halves(pairs, 2), 2), pairs)


# ------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    "name,weights", [("smollm2-135m", 134515008), ("tinyllama-1.1b", 1100048384), ("llama-3.2-1b", 1235814400)]
)
def test_shapes(name, weights):
    shape = models.SHAPES[name]
    with torch.device("meta"):
        model = models.LlamaForCausalLM(shape.config())
    assert sum(p.numel() for p in model.parameters()) == weights
    norms = (2 * shape.layers + 1) * shape.width
    rows = 0 if shape.tied else shape.vocabulary * shape.width  # of which a step reads one
    assert shape.matrix_weights() == weights - norms - rows


def test_shapes_are_those_of_the_c_bench():
    source = (ROOT / "tools" / "bench_model_random.c").read_text()
    for shape in models.SHAPES.values():
        numbers = [
            shape.layers,
            shape.width,
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.vocabulary,
        ]
        line = f'{{"{shape.name}", {", ".join(map(str, numbers))}, {int(shape.tied)}, {shape.rope_base:.0f}}}'
        assert line in source


# --------------------------------------------------------------------------------------------------------------- text


def test_the_static_cache_gives_the_text_of_no_cache():
    model, ids = lively(TINY), [3, 5, 7, 9]
    whole = list(ids)
    for _ in range(10):
        whole.append(int(model(torch.tensor([whole])).logits[0, -1].argmax()))
    decoder = Decoder(model, 32)
    assert decoder.generate(ids, 10) == whole[4:]
    assert decoder.generate(ids, 10) == whole[4:], "a second text in the same cache"
    assert len(set(whole[4:])) > 2


def test_a_compiled_step_is_one_piece():
    """Whatever the backend makes of it: the forward is traced as a whole (fullgraph) and gives the same tokens."""
    model, ids = lively(TINY), [3, 5, 7, 9]
    decoder = Decoder(model, 32)
    compiled = torch.compile(lambda x: decoder.forward(x), fullgraph=True, backend="aot_eager")
    assert decoder.generate(ids, 10, decoder.stepper(compiled)) == decoder.generate(ids, 10)


def test_common_and_margin():
    assert common([1, 2, 3], [1, 2, 4]) == 2 and common([], [1]) == 0 and common([1], [1]) == 1
    model = lively(TINY)
    logits = model(torch.tensor([[1, 2]])).logits[0, -1]
    assert margin(model, [1, 2], 5, 9) == pytest.approx(float(logits[5] - logits[9]), abs=1e-6)
    row = text.compare(model, [1, 2], [7, 8, 9], [7, 8, 6])
    assert row["same"] == 2 and row["margin"] == pytest.approx(margin(model, [1, 2, 7, 8], 6, 9), abs=1e-4)


def test_smollm2_says_the_same():
    """The demo's model, its blocks in fp32 on both sides: torch and the keyfold command give the same tokens."""
    model = Path(os.environ.get("KEYFOLD_MODEL") or Path.home() / ".cache" / "keyfold" / SMOLLM2)
    command = shutil.which("keyfold") or ROOT / "build" / "keyfold"
    if not model.exists() or not Path(command).exists():
        pytest.skip(f"the demo's model or the keyfold command is not there: {model}, {command}")
    ids, theirs, _ = text.keyfold_text(str(command), str(model), text.PROMPTS[0], 12, "cpu", ["--cache", "fp32"])
    exact = models.model_of_file(model, "cpu", torch.float32)[1]
    assert Decoder(exact, 32).generate(ids, 12) == theirs


def test_rows_of_another_part_stay(tmp_path):
    path = tmp_path / "text.json"
    ways = text.Rows(path, {"commit": "a"}, 4, ["ways"])
    ways.add(True, way="graph", same=4)
    ways.add(False, way="compile", same=3)
    assert ways.bad == 0
    both = text.Rows(path, {"commit": "b"}, 4, ["keyfold"])
    both.add(True, dtype="fp32", same=3)
    assert both.bad == 1
    rows = json.loads(path.read_text())
    assert [(row["commit"], row["same"]) for row in rows] == [("b", 3), ("a", 4), ("a", 3)]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_tokens(gpu, way):
    model = lively(TINY, "cuda", torch.bfloat16)
    decoder, ids = Decoder(model, 64), [3, 5, 7, 9]
    expected = decoder.generate(ids, 20)
    found = decoder.generate(ids, 20, decoder.step(way))
    same = common(found, expected)
    if same < 20:  # a compiled step rounds elsewhere: two tokens as good as equal may change places
        assert "graph" != way and abs(margin(model.float(), ids + found[:same], expected[same], found[same])) < 0.5


# --------------------------------------------------------------------------------------------------------- arithmetic


def test_a_trace():
    events = [
        {"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_kernel<4, float>(int)", "dur": 2.0},
        {"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_kernel<2, half>(int)", "dur": 4.0},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "dur": 1.0},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "a range", "dur": 100.0},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5.0},
        {"ph": "s", "cat": "kernel", "name": "an arrow"},
    ]
    found = trace.summary(trace.on_device(events), 1)
    assert found["kernels"] == 3 and found["kernel_us"] == 7.0
    assert found["heaviest"] == {"vectorized_kernel": [2.0, 6.0], "Memcpy DtoD": [1.0, 1.0]}


def test_one_step_of_nsight():
    names = ["kf_norm", "kf_embedding<1>", "kf_norm", "kf_linear<3>(int)", "kf_embedding<1>", "kf_norm"]
    lines = ["==PROF== Connected", '"ID","Kernel Name","gpu__time_duration.sum"', '"","","ns"']
    lines += [f'"{i}","{name}","{1000 * (i + 1):,}"' for i, name in enumerate(names)]
    assert trace.one_step("\n".join(lines)) == [("kf_embedding<1>", 2.0), ("kf_norm", 3.0), ("kf_linear<3>(int)", 4.0)]
    assert trace.one_step("\n".join(lines[:6])) is None


def test_one_step_between_the_largest_kernels():
    us = [9, 1, 2, 40, 3, 1, 2, 39, 3, 1, 2, 41, 3]
    lines = ['"ID","Kernel Name","gpu__time_duration.sum"', '"","","us"']
    lines += [f'"{i}","k{i}","{time}"' for i, time in enumerate(us)]
    assert trace.step_between_largest("\n".join(lines)) == [("k8", 3.0), ("k9", 1.0), ("k10", 2.0), ("k11", 41.0)]
    assert trace.step_between_largest("\n".join(lines[:7])) is None and trace.step_between_largest("no table") is None


FAKE_LLAMA = """#!/bin/sh
echo 'a word before'
echo '[{"n_gen": 128, "samples_ns": [256000000, 128000000, 128000000], "build_commit": "b", "gpu_info": "g"},'
echo '{"n_gen": 32, "samples_ns": [64000000], "build_commit": "b", "gpu_info": "g"}]'
"""


def test_llama_bench_is_read(tmp_path):
    (tmp_path / "llama-bench").write_text(FAKE_LLAMA)
    (tmp_path / "llama-bench").chmod(0o755)
    found, reason = bench.measure_llama(str(tmp_path / "llama-bench"), "x.gguf", 2, "")
    row = found["llama.cpp"]
    assert reason is None and (row["step_us"], row["tokens"]) == (1000.0, 128)
    assert row["by_tokens"] == {128: 1000.0, 32: 2000.0}


def test_what_follows_from_the_times():
    row = {
        "bytes": 4e9,
        "ways": {
            "eager": {"step_us": 10000.0, "replay_us": 9900.0, "kernel_us": 2500.0},
            "graph": {"step_us": 2200.0, "replay_us": 2000.0},
            "keyfold": {"step_us": 1600.0, "replay_us": 1500.0, "heaviest": {"a kernel": [3.0, 900.0]}},
            "keyfold, dependent graph": {"step_us": 1250.0, "replay_us": 1200.0},
        },
    }
    found = table.finish({**row, "model": "a model", "weights": "random"}, 4.0)
    assert found["limit_us"] == 1000.0 and found["tokens_per_s"]["keyfold_dependent_graph"] == 800.0
    assert found["ways"]["graph"]["share_of_limit"] == pytest.approx(1000 / 2200, abs=1e-4)
    assert found["torch_launch_share"] == 0.8 and found["torch_launch_share_by_kernels"] == 0.75
    assert found["keyfold_launch_share"] == 0.25
    assert found["kernel_us"] == {"eager": 2500.0} and found["replay_us"]["graph"] == 2000.0
    assert found["heaviest_us"] == {"keyfold": {"a_kernel": 900.0}}
    assert found["heaviest_count"] == {"keyfold": {"a_kernel": 3.0}}
    assert "| eager | 100 | 10000.0 | 9900.0 |" in table.show(found) and json.dumps(found)
