# SPDX-License-Identifier: Apache-2.0
"""What is refused: one exception a status, with the library's sentence, and nothing written."""

import threading

import numpy as np
import pytest

import keyfold


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_the_family():
    for kind, also in (
        (keyfold.InvalidArgument, ValueError),
        (keyfold.Unsupported, NotImplementedError),
        (keyfold.OutOfMemory, MemoryError),
        (keyfold.NoDevice, Exception),
        (keyfold.DeviceError, RuntimeError),
    ):
        assert issubclass(kind, keyfold.Error) and issubclass(kind, also)
    assert [keyfold._errors.BY_STATUS[status].status for status in range(1, 6)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5])
def test_every_status_has_its_exception(status):
    with pytest.raises(keyfold._errors.BY_STATUS[status]) as caught:
        keyfold._library.check(status)
    assert caught.value.status == status


def test_a_status_of_a_later_library_is_an_error():
    with pytest.raises(keyfold.Error):
        keyfold._library.check(99)


REFUSED = {
    "heads": (
        keyfold.InvalidArgument,
        (ones(1, 3, 4, 32), ones(1, 2, 4, 32), ones(1, 2, 4, 32)),
        {},
        r"attention: H = 3 .*Hkv = 2",
    ),
    "k's shape": (
        keyfold.InvalidArgument,
        (ones(1, 2, 4, 32), ones(1, 2, 4, 64), ones(1, 2, 4, 32)),
        {},
        r"attention: .*\bk\b",
    ),
    "dimensions": (
        keyfold.InvalidArgument,
        (ones(2, 4, 32), ones(1, 2, 4, 32), ones(1, 2, 4, 32)),
        {},
        r"attention: q has shape \[2, 4, 32\]",
    ),
    "last stride": (
        keyfold.InvalidArgument,
        (ones(1, 2, 4, 64)[..., ::2], ones(1, 2, 4, 32), ones(1, 2, 4, 32)),
        {},
        r"last stride of q is 2",
    ),
    "dtype": (
        keyfold.Unsupported,
        (ones(1, 2, 4, 32, dtype=np.float64), ones(1, 2, 4, 32), ones(1, 2, 4, 32)),
        {},
        r"attention: q",
    ),
    "window": (keyfold.InvalidArgument, (ones(1, 2, 4, 32),) * 3, dict(window_left=-1), r"window_left is -1"),
    "softcap": (keyfold.InvalidArgument, (ones(1, 2, 4, 32),) * 3, dict(softcap=-2.0), r"softcap is -2"),
    "scale": (keyfold.InvalidArgument, (ones(1, 2, 4, 32),) * 3, dict(scale=float("nan")), r"scale is"),
    "later": (keyfold.Unsupported, (ones(1, 2, 4, 32),) * 3, dict(page_table=[0]), r"page_table"),
    "key length": (keyfold.InvalidArgument, (ones(1, 2, 4, 32),) * 3, dict(key_lengths=[5]), r"key_lengths.*5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_refuses(name):
    kind, tensors, options, sentence = REFUSED[name]
    out = np.full(tensors[0].shape[:-1] + tensors[2].shape[-1:], 7, np.float32)
    with pytest.raises(kind, match=sentence) as caught:
        keyfold.attention(*tensors, out=out, **options)
    assert type(caught.value) is kind and caught.value.status == kind.status
    assert np.all(out == 7)
    with pytest.raises(kind, match=sentence):
        keyfold.attention(*tensors, **options)


def test_overlap():
    x = ones(4, 8)
    with pytest.raises(keyfold.InvalidArgument, match="softmax: .*y.*x"):
        keyfold.softmax(x[:3], out=x[1:])
    with pytest.raises(keyfold.InvalidArgument, match="softmax"):
        keyfold.softmax(ones(4, 8), out=np.lib.stride_tricks.as_strided(x, (4, 8), (16, 4)))


def test_none_has_the_librarys_or_our_sentence():
    with pytest.raises(keyfold.InvalidArgument, match="attention: k"):
        keyfold.attention(ones(1, 2, 4, 32), None, ones(1, 2, 4, 32))
    with pytest.raises(keyfold.InvalidArgument, match="softmax"):
        keyfold.softmax(None)


def test_names_of_options():
    with pytest.raises(keyfold.InvalidArgument, match="rmsnorm: cast is 'never', must be one of end, sum, llama"):
        keyfold.rmsnorm(ones(2, 8), cast="never")
    with pytest.raises(keyfold.InvalidArgument, match="rope pairing is 'xx', must be one of off, neox, gptj"):
        keyfold.rope(ones(1, 1, 2, 8), rope=keyfold.Rope(pairing="xx"))
    with pytest.raises(keyfold.InvalidArgument, match="linear: activations is 4"):
        keyfold.linear(ones(2, 8), ones(3, 8), activations=4)
    with pytest.raises(keyfold.InvalidArgument, match="isa is 'sse2'"):
        keyfold.Context(isa="sse2")
    with pytest.raises(keyfold.InvalidArgument, match="device is 'abacus'"):
        keyfold.Context(device="abacus")
    for device in ("cuda:-1", "cuda:x", "cuda:4294967296", (1 << 33, 0)):  # the last two are (cuda, 0) in 32 bits, and nothing
        with pytest.raises(keyfold.InvalidArgument, match="device is"):
            keyfold.Context(device=device)


def test_context_refuses():
    with pytest.raises((keyfold.Unsupported, keyfold.NoDevice), match="CUDA"):
        keyfold.Context(device="cuda:7")
    with pytest.raises(keyfold.InvalidArgument, match="threads"):
        keyfold.Context(-3)


def test_weights():
    with pytest.raises(keyfold.InvalidArgument, match="dtype is uint8; give type="):
        keyfold.Weight(ones(2, 34, dtype=np.uint8))
    with pytest.raises(keyfold.InvalidArgument, match="last stride is 2, must be 1"):
        keyfold.Weight(ones(2, 8)[:, ::2])
    with pytest.raises(keyfold.InvalidArgument, match="rows and cols must be given"):
        keyfold.Weight(bytes(34), "q8_0")
    with pytest.raises(keyfold.InvalidArgument, match="linear: .*weight"):
        keyfold.linear(ones(1, 64), keyfold.Weight(bytes(34), "q8_0", rows=2, cols=32))
    with pytest.raises(keyfold.InvalidArgument, match="bytes"):
        keyfold.linear(ones(1, 32), keyfold.Weight(bytes(34), "q8_0", rows=2, cols=32))


def test_a_packed_weight_of_another_isa():
    isas = sorted({row.isa for row in keyfold.support() if row.available and row.isa in ("scalar", "avx2", "avx512")})
    if len(isas) < 2:
        pytest.skip("one ISA only")
    one, other = keyfold.Context(1, isa=isas[0]), keyfold.Context(1, isa=isas[1])
    packed = keyfold.pack_weight(ones(32, 64), context=one)
    assert keyfold.linear(ones(1, 64), packed, context=one)[0, 0] == 64
    with pytest.raises(keyfold.InvalidArgument, match="pack"):
        keyfold.linear(ones(1, 64), packed, context=other)


def test_each_thread_has_its_own_sentence():
    """Two threads fail in different ways at the same time, and each reads its own."""
    wrong = []

    def fail(softcap):
        q = ones(1, 1, 1, 8)
        for _ in range(300):
            try:
                keyfold.attention(q, q, q, softcap=softcap)
            except keyfold.InvalidArgument as error:
                if f"softcap is {softcap:g}" not in str(error):
                    wrong.append(str(error))
            else:
                wrong.append("not refused")

    threads = [threading.Thread(target=fail, args=(-float(n),)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
