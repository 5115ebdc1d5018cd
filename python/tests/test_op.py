# SPDX-License-Identifier: Apache-2.0
"""Contexts, ops and sequences: planning, binding, workspaces, items, threads, and who lives how long."""

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import keyfold
import reference
from handmade import Handmade, alive
from keyfold import Context, Op, Sequence, Tensor
from reference import close


@pytest.fixture
def q(rng):
    return rng.standard_normal((1, 4, 40, 64)).astype(np.float32)


def expected(q, k=None, v=None, **options):
    exact = [a.astype(np.float64) for a in (q, q if k is None else k, q if v is None else v)]
    return reference.attention(*exact, **options)[0]


# ------------------------------------------------------------------------------------------------------------- contexts


def test_context_says_what_it_is():
    context = Context(1, isa="scalar", fixed_split=True)
    assert (context.threads, context.isa, context.device, context.fixed_split) == (1, "scalar", "cpu", True)
    assert context.name and "scalar" in repr(context)
    assert Context().threads >= 1 and Context().isa in keyfold._context.ISAS[1:]


def test_default_context(q):
    first = keyfold.default_context()
    assert keyfold.default_context() is first
    mine = Context(1)
    try:
        keyfold.set_default_context(mine)
        assert Op(keyfold.attention, q, q, q).context is mine
    finally:
        keyfold.set_default_context(first)


def test_every_isa_and_thread_count(q):
    results = {}
    for isa in {row.isa for row in keyfold.support() if row.operation == "attention" and row.available}:
        if isa == "auto":
            continue
        one, two = (keyfold.attention(q, q, q, causal=True, context=Context(n, isa=isa)) for n in (1, 2))
        np.testing.assert_array_equal(one, two)
        results[isa] = one
    assert results
    for o in results.values():
        close(o, expected(q, causal=True), "fp32")


def test_context_outlives_what_stands_on_it(q):
    op = Op(keyfold.attention, q, q, q, context=Context(2))
    gone = weakref.ref(op.context)
    sequence = Sequence([op])
    handle = op
    del op
    gc.collect()
    sequence.run()
    del handle, sequence
    gc.collect()
    assert gone() is None


# ------------------------------------------------------------------------------------------------------------------ ops


def test_op_runs_again_on_new_values(q):
    op = Op(keyfold.attention, q, q, q, causal=True)
    o = op.run()
    close(o, expected(q, causal=True), "fp32")
    q[...] = q[:, ::-1].copy()
    assert op.run() is o
    close(o, expected(q, causal=True), "fp32")
    assert op.kind == "attention" and op.workspace_size >= 0 and "attention" in repr(op)


def test_op_reads_key_lengths_at_each_run(q):
    lengths = np.array([40])
    op = Op(keyfold.attention, q, q, q, key_lengths=lengths)
    for n in (40, 1, 17, 0):
        lengths[0] = n
        close(op.run(), expected(q, key_lengths=[n]), "fp32")
    lengths[0] = 41
    with pytest.raises(keyfold.InvalidArgument, match="41"):
        op.run()


def test_bind_by_name_and_by_place(rng, q):
    op = Op(keyfold.attention, q, q, q, causal=True)
    op.run()
    k, out = rng.standard_normal(q.shape).astype(np.float32), np.empty_like(q)
    op.bind(k=k, out=out)
    assert op.run() is out
    close(out, expected(q, k, causal=True), "fp32")
    op.bind(k, q)
    close(op.run(), expected(k, q, q, causal=True), "fp32")


def test_bind_refuses_another_shape_or_option_and_keeps_the_binding(q):
    op = Op(keyfold.attention, q, q, q)
    before = op.run().copy()
    for change in (dict(q=q[:, :, :3]), dict(q=q.astype(np.float16)), dict(causal=True), dict(scale=2.0)):
        with pytest.raises(keyfold.InvalidArgument):
            op.bind(**change)
    with pytest.raises(TypeError):
        op.bind(colour="red")
    np.testing.assert_array_equal(op.run(), before)


def test_placeholders_are_bound_before_the_first_run(q):
    empty = Tensor.placeholder(q.shape)
    op = Op(keyfold.attention, empty, empty, empty, out=empty)
    with pytest.raises(keyfold.InvalidArgument):
        op.run()
    op.bind(q, q, q, out=np.empty_like(q))
    close(op.run(), expected(q), "fp32")


def test_workspace_of_the_caller(q):
    q = np.repeat(q, 12, axis=2)
    op = Op(keyfold.attention, q[:, :, :1], q, q, context=Context(2))
    size = op.workspace_size
    o = op.run(workspace=np.empty(size + 1, np.uint8)[1:]).copy()
    close(o, expected(q[:, :, :1], q, q), "fp32")
    if size:
        with pytest.raises(keyfold.InvalidArgument, match="workspace"):
            op.run(workspace=np.empty(size - 1, np.uint8))
        with pytest.raises(keyfold.InvalidArgument, match="workspace is read-only"):
            op.run(workspace=bytes(size))


def test_run_items_by_threads_of_our_own(q):
    context = Context(2)
    op = Op(keyfold.attention, q, q, q, causal=True, context=context)
    whole = op.run().copy()
    op.result()[...] = 0
    op.prepare()
    for phase in range(op.phases):
        waiting, lock = iter(range(op.items(phase))), threading.Lock()

        def work(worker, phase=phase, waiting=waiting, lock=lock):
            while True:
                with lock:
                    item = next(waiting, None)
                if item is None:
                    return
                op.run_items(worker, phase, item, 1)

        with ThreadPoolExecutor(context.threads) as pool:
            list(pool.map(work, range(context.threads)))
    np.testing.assert_array_equal(op.result(), whole)
    with pytest.raises(keyfold.InvalidArgument):
        op.run_items(0, op.phases, 0, 1)
    with pytest.raises(keyfold.InvalidArgument):
        op.run_items(context.threads, 0, 0, 1)


def test_an_op_keeps_its_arrays():
    before = len(alive)
    out = np.empty((2, 3), np.float32)
    op = Op(keyfold.softmax, Handmade(np.zeros((2, 3))), out=out)
    gc.collect()
    assert len(alive) == before + 1
    op.run()
    assert out == pytest.approx(1 / 3)
    op.bind(x=Handmade(np.array([[0, 0, -np.inf]] * 2)))
    gc.collect()
    assert len(alive) == before + 1
    op.run()
    assert out[:, 2] == pytest.approx(0)
    del op
    gc.collect()
    assert len(alive) == before


def test_a_call_gives_its_arrays_back():
    before = len(alive)
    for _ in range(10):
        keyfold.softmax(Handmade(np.zeros((2, 3))))
    gc.collect()
    assert len(alive) == before


def test_op_of_something_else():
    with pytest.raises(TypeError, match="Op plans keyfold's operations"):
        Op(np.exp, np.zeros(3))
    with pytest.raises(TypeError):
        Op(keyfold.softmax)


@pytest.mark.parametrize(
    "name", ["softmax", "merge_states", "rmsnorm", "swiglu", "rope", "kv_append", "embedding", "linear"]
)
def test_every_operation_plans(name, rng):
    a = rng.standard_normal((2, 3, 4, 32)).astype(np.float32)
    arguments = {
        "softmax": (a,),
        "merge_states": (a, a[..., 0].copy()),
        "rmsnorm": (a, a[0, 0, 0]),
        "swiglu": (a, a),
        "rope": (a,),
        "kv_append": (a, a, np.zeros((2, 3, 8, 32), np.float32), np.zeros((2, 3, 8, 32), np.float32)),
        "embedding": (a[0, 0], np.array([3, 1])),
        "linear": (a[0, 0], a[0, 1]),
    }[name]
    function = getattr(keyfold, name)
    op = Op(function, *arguments)
    assert op.kind == name
    once, planned = function(*arguments), op.run()
    if name == "kv_append":
        assert planned is None
        np.testing.assert_array_equal(arguments[2][:, :, :4], a)
    else:
        np.testing.assert_array_equal(once, planned)


# ------------------------------------------------------------------------------------------------------------ sequences


def test_sequence(rng):
    """norm → product → swiglu → product, each on the output of the one before."""
    context = Context(2)
    x, w = rng.standard_normal((5, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    up, down = rng.standard_normal((256, 64)).astype(np.float32), rng.standard_normal((64, 128)).astype(np.float32)
    norm = Op(keyfold.rmsnorm, x, w, context=context)
    wide = Op(keyfold.linear, norm.result(), keyfold.pack_weight(up, context=context), context=context)
    gated = Op(keyfold.swiglu, wide.result(), context=context)
    narrow = Op(keyfold.linear, gated.result(), down, context=context)
    sequence = Sequence([norm, wide, gated, narrow])
    assert len(sequence) == 4 and sequence.ops[2] is gated and sequence.workspace_size >= 0
    for _ in range(2):
        sequence.run()
        hidden = reference.rmsnorm(x.astype(np.float64), w.astype(np.float64)) @ up.T.astype(np.float64)
        y = reference.swiglu(hidden[:, :128], hidden[:, 128:]) @ down.T.astype(np.float64)
        close(narrow.result(), y, "fp32", sums=1e-4)
        x[...] = rng.standard_normal((5, 64))
    with pytest.raises(keyfold.InvalidArgument, match="workspace"):
        sequence.run(workspace=np.empty(0, np.uint8)) if sequence.workspace_size else narrow.bind(x=x)


def test_sequence_keeps_its_ops_and_takes_one_twice():
    x = np.zeros((2, 8), np.float32)
    op = Op(keyfold.softmax, x, out=x)
    sequence = Sequence(context=op.context)
    sequence.add(op)
    sequence.add(op)
    del op
    gc.collect()
    sequence.run()
    assert x == pytest.approx(1 / 8)


def test_sequence_of_another_contexts_op():
    one, other = Context(1), Context(1)
    op = Op(keyfold.softmax, np.zeros((2, 8), np.float32), context=one)
    with pytest.raises(keyfold.InvalidArgument):
        Sequence([op], context=other)


def test_sequence_checks_everything_before_it_writes():
    x, y = np.zeros((2, 8), np.float32), np.full((2, 8), 7, np.float32)
    ids = np.array([0, 99])
    first = Op(keyfold.softmax, x, out=y)
    second = Op(keyfold.embedding, np.zeros((4, 8), np.float32), ids)
    sequence = Sequence([first, second])
    with pytest.raises(keyfold.InvalidArgument, match="99"):
        sequence.run()
    assert np.all(y == 7)
    ids[1] = 3
    sequence.run()
    assert y == pytest.approx(1 / 8)


# -------------------------------------------------------------------------------------------------------------- threads


def test_many_threads_on_one_context(rng):
    """One caller has the team; the others work alone; all have the same bits."""
    context = Context(2)
    inputs = [rng.standard_normal((1, 2, 64, 32)).astype(np.float32) for _ in range(6)]
    alone = [keyfold.attention(x, x, x, context=context) for x in inputs]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            for a, b in zip(alone, pool.map(lambda x: keyfold.attention(x, x, x, context=context), inputs)):
                np.testing.assert_array_equal(a, b)


def test_many_threads_on_one_op(q):
    """An op serves one thread at a time; the others wait."""
    op = Op(keyfold.attention, q, q, q)
    once = op.run().copy()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: op.run(), range(40)))
    np.testing.assert_array_equal(op.result(), once)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes(q):
    context = Context(2)
    once = keyfold.attention(q, q, q, context=context)
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = np.array_equal(keyfold.attention(q, q, q, context=context), once)
            del context
            gc.collect()
        finally:
            os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
