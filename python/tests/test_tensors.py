# SPDX-License-Identifier: Apache-2.0
"""Views: NumPy, buffers, lists and DLPack capsules; no copies; lifetimes; what is refused."""

import array as arrays
import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest

import keyfold
from keyfold import Tensor
from handmade import Handmade, alive
from reference import BF16


def test_numpy_without_copy():
    a = np.zeros((3, 4, 5), np.float32)
    t = Tensor(a)
    assert (t.data_ptr, t.shape, t.strides, t.dtype, t.device) == (a.ctypes.data, (3, 4, 5), (20, 5, 1), "fp32", "cpu")
    assert not t.readonly and t.framework == "numpy" and t.nbytes == a.nbytes


def test_numpy_views_keep_their_strides():
    a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    t = Tensor(a[::-1, ::2])
    assert (t.shape, t.strides, t.data_ptr) == ((3, 2, 5), (-20, 10, 1), a[2:].ctypes.data)
    assert Tensor(np.broadcast_to(a[0], (7, 4, 5))).strides == (0, 5, 1)


@pytest.mark.parametrize(
    "numpy_dtype, name",
    [("f4", "fp32"), ("f2", "fp16"), ("i4", "int32"), ("i8", "int64"), ("?", "bool"), ("f8", "fp64"), ("u1", "uint8")],
)
def test_numpy_dtypes(numpy_dtype, name):
    assert Tensor(np.zeros(3, numpy_dtype)).dtype == name


@pytest.mark.skipif(BF16 is None, reason="no ml_dtypes")
def test_numpy_bf16_of_ml_dtypes():
    t = Tensor(np.zeros((2, 3), BF16))
    assert (t.dtype, t.itemsize, t.strides) == ("bf16", 2, (3, 1))


def test_bf16_as_uint16():
    t = Tensor(np.zeros((2, 3), np.uint16), dtype="bf16")
    assert (t.dtype, t.struct.dtype.code, t.struct.dtype.bits, t.struct.dtype.lanes) == ("bf16", 4, 16, 1)


def test_a_tensor_of_a_tensor_is_the_same_memory():
    a = np.zeros((2, 3), np.uint16)
    t = Tensor(Tensor(a), dtype="bf16")
    assert t.dtype == "bf16" and t.array is a and t.data_ptr == a.ctypes.data


def test_a_dtype_of_another_width_is_refused():
    with pytest.raises(keyfold.InvalidArgument, match="dtype bf16 has 16 bits, the array's elements have 32"):
        Tensor(np.zeros(3, np.float32), dtype="bf16")


@pytest.mark.parametrize("name", ["bf16", "bfloat16", "torch.bfloat16"])
def test_names_of_dtypes(name):
    assert keyfold._tensors.dtype_name(name) == "bf16"
    assert keyfold._tensors.dtype_name(np.float16) == keyfold._tensors.dtype_name(np.dtype("f2")) == "fp16"
    with pytest.raises(keyfold.InvalidArgument, match="dtype is 'fp7', must be one of fp32, fp16, bf16"):
        keyfold._tensors.dtype_name("fp7")


def test_another_byte_order_is_refused():
    with pytest.raises(TypeError, match="byte order"):
        Tensor(np.zeros(3, ">f4" if sys.byteorder == "little" else "<f4"))


def test_strides_that_split_elements_are_refused():
    record = np.zeros(4, np.dtype([("a", "f4"), ("b", "u1")]))
    with pytest.raises(ValueError, match=r"strides of \(5,\) bytes are not multiples"):
        Tensor(record["a"])


def test_objects_and_strings_are_refused():
    for wrong in (np.array(["a"]), np.array([None]), "text", 5, None, np.ndarray, [[1, 2], [3, 4]], ["a"]):
        with pytest.raises(TypeError):
            Tensor(wrong)


def test_buffers():
    a = arrays.array("f", [1, 2, 3])
    t = Tensor(a)
    assert (t.dtype, t.shape, t.strides, t.readonly, t.framework) == ("fp32", (3,), (1,), False, None)
    assert t.data_ptr == a.buffer_info()[0]
    assert Tensor(b"abc").readonly and Tensor(b"abc").dtype == "uint8"
    m = memoryview(bytearray(48)).cast("f", (3, 4))
    assert Tensor(m).shape == (3, 4) and Tensor(m).strides == (4, 1)


def test_a_buffer_is_held_while_a_view_is():
    a = bytearray(16)
    t = Tensor(a)
    with pytest.raises(BufferError):
        a.append(1)
    del t
    a.append(1)


def test_numpy_scalars_are_held():
    t = Tensor(np.float32(3))
    assert (t.shape, t.dtype) == ((), "fp32") and ctypes.c_float.from_address(t.data_ptr).value == 3


def test_lists():
    assert (Tensor([1, 2]).dtype, Tensor([1, 2.5]).dtype, Tensor([]).shape) == ("int64", "fp32", (0,))


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("strides", [True, False])
def test_dlpack(versioned, strides):
    source = Handmade(np.arange(12).reshape(3, 4), versioned=versioned, byte_offset=64, strides=strides)
    t = Tensor(source)
    assert (t.shape, t.strides, t.dtype, t.device, t.data_ptr) == (
        (3, 4),
        (4, 1),
        "fp32",
        "cpu",
        source.memory.ctypes.data,
    )
    assert source.streams[-1] is None


def test_dlpack_memory_is_given_back_with_the_view():
    before = len(alive)
    t = Tensor(Handmade(np.ones((2, 2))))
    assert len(alive) == before + 1
    again = Tensor(t)
    del t
    gc.collect()
    assert len(alive) == before + 1
    del again
    gc.collect()
    assert len(alive) == before


def test_dlpack_read_only_flag():
    assert Tensor(Handmade(np.ones(2), readonly=True)).readonly
    with pytest.raises(keyfold.InvalidArgument, match="softmax: y is read-only"):
        keyfold.softmax(np.zeros(2, np.float32), out=Handmade(np.ones(2), readonly=True))


def test_dlpack_of_a_later_major_version_is_refused():
    with pytest.raises(BufferError, match=r"DLPack version 2\.0"):
        Tensor(Handmade(np.ones(2), major=2))


def test_dlpack_pinned_host_memory_is_the_cpus():
    assert Tensor(Handmade(np.ones(2), device=(3, 0))).device == "cpu"


def test_dlpack_of_a_gpu_asks_for_no_synchronisation():
    source = Handmade(np.ones(2), device=(2, 1))
    assert Tensor(source).device == "cuda:1"
    assert source.streams[-1] == -1
    with pytest.raises(keyfold.Error):
        keyfold.softmax(source, out=source)


def test_dlpack_with_a_wrong_capsule():
    class Wrong:
        def __dlpack__(self, **_):
            import ctypes

            from handmade import new_capsule

            return new_capsule(
                ctypes.addressof(ctypes.c_int.in_dll(ctypes.pythonapi, "Py_OptimizeFlag")), b"other", None
            )

    with pytest.raises(BufferError, match="capsule named b'other'"):
        Tensor(Wrong())


def test_read_only_numpy_is_an_input_and_no_output():
    a = np.zeros((2, 3), np.float32)
    a.setflags(write=False)
    assert Tensor(a).readonly
    keyfold.softmax(a)
    with pytest.raises(keyfold.InvalidArgument, match="softmax: y is read-only, an output must be writable"):
        keyfold.softmax(np.zeros((2, 3), np.float32), out=a)


def test_placeholder():
    t = Tensor.placeholder((2, 3), "bf16", strides=(8, 1))
    assert (t.shape, t.strides, t.dtype, t.data_ptr, t.device) == ((2, 3), (8, 1), "bf16", 0, "cpu")
    assert Tensor.placeholder((2,), device="cuda:1").device == "cuda:1"
    with pytest.raises(keyfold.InvalidArgument, match="device is 'tpu'"):
        Tensor.placeholder((2,), device="tpu")


def test_a_view_keeps_its_array():
    a = np.zeros(3, np.float32)
    gone = weakref.ref(a)
    t = Tensor(a)
    del a
    gc.collect()
    assert gone() is not None
    del t
    gc.collect()
    assert gone() is None


def test_repr():
    assert repr(Tensor(np.zeros((2, 3), np.float16))) == "keyfold.Tensor(fp16[2, 3], cpu, numpy)"
