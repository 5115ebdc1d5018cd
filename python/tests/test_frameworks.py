# SPDX-License-Identifier: Apache-2.0
"""torch, JAX and CuPy: in without a copy, out in the same framework. Each is skipped where it is not installed."""

import gc
import importlib
import weakref

import numpy as np
import pytest

import keyfold
import reference
from keyfold import Op, Tensor


def framework(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"no {name}")


@pytest.fixture
def torch():
    return framework("torch")


@pytest.fixture
def jax():
    return framework("jax")


@pytest.fixture
def cupy():
    return framework("cupy")


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int32", "int64", "bool"])
def test_torch_dtypes_and_no_copy(torch, name):
    x = torch.zeros(3, 4, dtype=getattr(torch, name))
    t = Tensor(x)
    assert (t.data_ptr, t.shape, t.strides, t.framework) == (x.data_ptr(), (3, 4), (4, 1), "torch")
    assert t.dtype == keyfold._tensors.dtype_name(x.dtype)


def test_torch_attention(torch):
    torch.manual_seed(0)
    q = torch.randn(2, 5, 4, 64, dtype=torch.bfloat16).transpose(1, 2)
    k, v = torch.randn(2, 2, 2, 9, 64, dtype=torch.bfloat16)
    mask = torch.rand(2, 1, 5, 9) < 0.7
    o, lse = keyfold.attention(q, k, v, mask=mask, return_lse=True)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32 and o.shape == (2, 4, 5, 64)
    expected, expected_lse = reference.attention(*(t.double().numpy() for t in (q, k, v)), mask=mask.numpy())
    np.testing.assert_allclose(o.float().numpy(), expected, atol=2e-2)
    np.testing.assert_allclose(lse.numpy(), expected_lse, atol=1e-3)


def test_torch_agrees_with_sdpa(torch):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 33, 64)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(keyfold.attention(q, k, v, causal=True), expected, atol=1e-5, rtol=1e-5)


def test_torch_out_and_in_place(torch):
    x = torch.zeros(2, 4)
    assert keyfold.softmax(x, out=x) is x and torch.all(x == 0.25)
    op = Op(keyfold.softmax, torch.zeros(2, 4, dtype=torch.float16), dtype="fp32")
    assert op.run() is op.run() and op.result().dtype == torch.float32


def test_torch_refuses_gradients_in_its_own_words(torch):
    with pytest.raises((BufferError, RuntimeError), match="grad"):
        keyfold.softmax(torch.zeros(2, 4, requires_grad=True))


def test_torch_empty(torch):
    assert keyfold.softmax(torch.zeros(0, 4)).shape == (0, 4)


def test_torch_lifetime(torch):
    x = torch.zeros(2, 4)
    gone = weakref.ref(x)
    op = Op(keyfold.softmax, x)
    del x
    gc.collect()
    assert gone() is not None
    del op
    gc.collect()
    assert gone() is None


def test_torch_weight(torch):
    x, w = torch.randn(3, 64), torch.randn(8, 64).bfloat16()
    torch.testing.assert_close(keyfold.linear(x, w), x @ w.float().T, atol=1e-4, rtol=1e-4)
    assert keyfold.embedding(w, torch.tensor([1, 5])).equal(w[[1, 5]])


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int32", "bool"])
def test_jax_dtypes(jax, name):
    x = jax.numpy.zeros((3, 4), getattr(jax.numpy, name if name != "bool" else "bool_"))
    t = Tensor(x)
    assert t.dtype == keyfold._tensors.dtype_name(name)
    assert (t.shape, t.strides, t.framework, t.readonly) == ((3, 4), (4, 1), "jax", True)
    assert t.data_ptr == x.unsafe_buffer_pointer()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_jax_attention(jax, name):
    q = jax.random.normal(jax.random.key(0), (1, 2, 9, 64), dtype=name)
    o = keyfold.attention(q, q, q, causal=True)
    assert isinstance(o, jax.Array) and o.dtype == q.dtype
    exact = np.asarray(q).astype(np.float64)
    expected = reference.attention(exact, exact, exact, causal=True)[0]
    np.testing.assert_allclose(np.asarray(o).astype(np.float64), expected, atol=1e-5 if name == "float32" else 2e-2)


def test_jax_results_do_not_change_when_the_op_runs_again(jax):
    x = np.zeros((1, 4), np.float32)
    op = Op(keyfold.softmax, jax.numpy.zeros((1, 4)))
    first = op.run()
    op.bind(x=jax.numpy.array([[0.0, 0.0, -np.inf, -np.inf]]))
    second = op.run()
    assert np.all(np.asarray(first) == 0.25) and np.asarray(second).tolist() == [[0.5, 0.5, 0.0, 0.0]]
    with pytest.raises(keyfold.InvalidArgument, match="read-only"):
        keyfold.softmax(x, out=first)


def test_cupy(cupy):
    try:
        x = cupy.zeros((2, 4), cupy.float32)
    except Exception as error:
        pytest.skip(f"no device for cupy: {error}")
    t = Tensor(x)
    assert (t.data_ptr, t.device, t.framework, t.shape) == (x.data.ptr, f"cuda:{x.device.id}", "cupy", (2, 4))
