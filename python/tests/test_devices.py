# SPDX-License-Identifier: Apache-2.0
"""Two CUDA devices: tensors and streams of one in calls on the other. Each is right, or refused with a sentence."""

import pytest

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip("two CUDA devices are needed", allow_module_level=True)

import keyfold as kf  # noqa: E402

SHAPES = [(1, 300), (5, 300), (70, 90)]  # queries, keys: the kernels of decode and of prefill


def tensors(device, queries, keys):
    torch.manual_seed(1)
    made = [torch.randn(2, heads, n, 64).bfloat16() for heads, n in ((4, queries), (2, keys), (2, keys))]
    return [t.to(device) for t in made]


def expected(q, k, v):
    q, k, v = (t.double().cpu() for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def close(o, q, k, v):
    return torch.allclose(o.double().cpu(), expected(q, k, v), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("queries, keys", SHAPES)
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_any_device_may_be_current(queries, keys, current, device):
    q, k, v = tensors(f"cuda:{device}", queries, keys)
    with torch.cuda.device(current):
        o = kf.attention(q, k, v)
        assert torch.cuda.current_device() == current
    assert o.device == q.device and close(o, q, k, v)


@pytest.mark.parametrize("queries, keys", SHAPES)
@pytest.mark.parametrize("moved", range(3))
def test_tensors_of_two_devices_are_refused(queries, keys, moved):
    given = tensors("cuda:0", queries, keys)
    given[moved] = given[moved].to("cuda:1")
    with pytest.raises(kf.Error, match="device"):
        kf.attention(*given)
    with pytest.raises(kf.Error, match="device"):
        kf.Op(kf.attention, *given)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)


def test_an_output_of_another_device_is_refused():
    q, k, v = tensors("cuda:0", 5, 300)
    with pytest.raises(kf.Error, match="device"):
        kf.attention(q, k, v, out=torch.empty_like(q, device="cuda:1"))


def test_bind_to_another_device_is_refused():
    q, k, v = tensors("cuda:0", 5, 300)
    op = kf.Op(kf.attention, q, k, v)
    with pytest.raises(kf.Error, match="device"):
        op.bind(q=q.to("cuda:1"))
    assert close(op.run(), q, k, v)


def test_a_stream_of_another_device_is_refused():
    stream = torch.cuda.Stream(device="cuda:1")
    with pytest.raises(kf.Error, match="device"):
        kf.Context(device="cuda:0", stream=stream.cuda_stream)


def test_a_context_of_another_device_is_refused():
    context = kf.Context(device="cuda:1")
    with pytest.raises(kf.Error, match="device"):
        kf.attention(*tensors("cuda:0", 5, 300), context=context)


def test_streams_of_each_device():
    """Each device's own stream, at once; one planned op a device, run in turn."""
    ops = []
    for device in (0, 1):
        stream = torch.cuda.Stream(device=device)
        with torch.cuda.stream(stream):
            q, k, v = tensors(f"cuda:{device}", 5, 300)
            stream.synchronize()
            ops.append((kf.Op(kf.attention, q, k, v), q, k, v))
    for _ in range(3):
        results = [op.run() for op, *_ in ops]
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    for o, (_, *given) in zip(results, ops):
        assert close(o, *given)


def test_a_graph_on_the_second_device():
    with torch.cuda.device(1):
        stream = torch.cuda.Stream()
        q, k, v = tensors("cuda:1", 5, 300)
        o = torch.full_like(q, float("nan"))
        with torch.cuda.stream(stream):
            op = kf.Op(kf.attention, q, k, v, out=o)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                op.run()
        graph.replay()
        torch.cuda.synchronize()
    assert close(o, q, k, v)


def test_the_other_operations_on_the_second_device():
    x = torch.randn(7, 640, device="cuda:1", dtype=torch.bfloat16)
    wide = x.double()
    assert torch.allclose(kf.softmax(x).double(), torch.softmax(wide, -1), atol=1e-2, rtol=1e-2)
    assert torch.allclose(kf.swiglu(x, x).double(), torch.nn.functional.silu(wide) * wide, atol=1e-2, rtol=1e-2)
    norm = wide / wide.pow(2).mean(-1, keepdim=True).add(1e-5).sqrt()
    weight = torch.ones(640, device="cuda:1", dtype=torch.bfloat16)
    assert torch.allclose(kf.rmsnorm(x, weight, eps=1e-5).double(), norm, atol=1e-2, rtol=1e-2)
    with pytest.raises(kf.Error, match="device"):
        kf.rmsnorm(x, weight.to("cuda:0"), eps=1e-5)
