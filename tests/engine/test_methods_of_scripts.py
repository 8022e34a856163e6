"""Methods of a script whose names the engine knows from its own classes: they are the script's business."""

import threading

import pytest

from ding_lite import Context, Task, contract

MODES = pytest.mark.parametrize("mode", [{}, {"async_mode": True}, {"max_lag": 2}], ids=str)


class Everything:
    """A middleware and an object of a script with methods of its own."""

    def __init__(self):
        self.called = []

    def __call__(self, ctx):
        self.called.append("call")

    def release(self):
        self.called.append("release")

    def agree(self, votes):
        self.called.append("agree")

    def choose_state(self):
        self.called.append("choose_state")


@MODES
def test_methods_of_a_script_are_not_called(mode):
    mine = Everything()
    task = Task().start(ctx=Context(), **mode)
    task.use(contract(uses=(mine,), stage="collect")(mine)).run(max_step=2)
    task.stop()

    assert mine.called == ["call", "call"]


@MODES
def test_a_lock_in_a_contract_stays_as_it_is(mode):
    lock, slots = threading.Lock(), threading.Semaphore(1)

    @contract(uses=(lock, slots), stage="collect")
    def locked(ctx):
        with lock, slots:
            pass

    task = Task().start(ctx=Context(), **mode)
    task.use(locked).run(max_step=2)
    task.stop()

    assert not lock.locked()
    assert slots.acquire(blocking=False)
    assert not slots.acquire(blocking=False)
