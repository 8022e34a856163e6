"""Ctrl-C and SIGTERM where iterations overlap: the first lets an iteration finish as the last, the second stops at once."""

import dataclasses
import signal
import subprocess
import time

import pytest
from forked_scripts import Script

from ding_lite.engine import Context, Task, contract
from ding_lite.engine.token_networks import Network

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]

# Stands still in a middleware of one lane, in iteration 3, until it is told to go on, or the run breaks off.
SCRIPT = """
import signal, sys, threading, time, warnings
from ding_lite.engine import Task, contract
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
who = sys.argv[1]
warnings.simplefilter("ignore")  # the log is for all lanes
loop, log, go = Task(), [], threading.Event()
threading.Thread(target=lambda: sys.stdin.readline() and go.set(), daemon=True).start()

def say(text):
    print(text, flush=True)

def step(stage):
    @contract(stage=stage)
    def work(ctx):
        log.append((ctx.total_step, stage))
        if (ctx.total_step, stage) == (3, who):
            say("ready")
            while not go.is_set() and not loop.stopping:
                time.sleep(0.001)
        try:
            yield
        finally:
            log.append((ctx.total_step, stage, "end"))
    return work

@contract(stage="record")
def save(ctx):
    if loop.finish:
        say("saved")

try:
    with loop.start(async_mode=True, max_lag=0):
        for stage in ("evaluate", "collect", "learn"):
            loop.use(step(stage))
        loop.use(save).run()
finally:
    last = loop.ctx.total_step
    complete = all((last, stage, "end") in log for stage in ("evaluate", "collect", "learn"))
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("task.")]
    say(f"complete={complete} last={last} left={left}")
"""


@pytest.mark.few
@pytest.mark.parametrize("who", STAGES)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
@pytest.mark.parametrize("times", ["once", "twice"])
def test_a_signal_during_a_middleware(who, number, status, times):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Script(SCRIPT, who, **pipes, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stderr.readline().startswith(f"{number.name}: this iteration finishes")
        if times == "once":
            output, _ = process.communicate("go\n", timeout=30)
        else:
            process.send_signal(number)
            sent = time.monotonic()
            output, _ = process.communicate(timeout=30)
            seconds = time.monotonic() - sent
            print(f"after the second signal, the program ended in {seconds:.2f} s")
            assert seconds < 1

    assert process.returncode == (-number if number == signal.SIGINT and times == "twice" else status)
    *saved, end = output.splitlines()
    if times == "once":
        assert saved == ["saved"]
        assert end in ("complete=True last=3 left=[]", "complete=True last=4 left=[]")
    else:
        assert saved == []
        assert end.endswith(" last=3 left=[]")


@dataclasses.dataclass
class Sums(Context):
    item: int = 0
    total: int = dataclasses.field(default=0, metadata={"kept": True})


class Saver:
    """Saves the run when it is asked to; calls a function before the first iteration."""

    def __init__(self, loop, states, begin_run):
        self.loop, self.states, self.begin_run = loop, states, begin_run
        contract(stage="record")(self)

    def __call__(self, ctx):
        pass

    def save_run(self):
        self.states.append(self.loop.state_dict())


def summed(lag, states, state=None, begin_run=lambda: None):
    """Run a sum of squares, from a saved state if there is one. Returns the sum, plus 10,000 for each last iteration."""
    loop = Task()

    @contract(writes=("item",), stage="collect")
    def collect(ctx):
        ctx.item = ctx.total_step**2

    @contract(reads=("item", "total"), writes=("total",), stage="learn")
    def learn(ctx):
        ctx.total += ctx.item + 10_000 * loop.finish

    with loop.start(ctx=Sums(), async_mode=True, max_lag=lag):
        loop.use(collect).use(learn).use(Saver(loop, states, begin_run))
        if state is not None:
            loop.load_state_dict(state)
        loop.run(max_step=20)
        return loop.ctx.total


SUM = sum(number**2 for number in range(20)) + 10_000


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("completed", [0, 5])
def test_a_run_can_be_resumed_if_a_signal_comes_between_two_iterations_of_the_learn_lane(lag, completed, monkeypatch):
    """Another lane is as far ahead then as it can be, and waits for the next iteration of the learn lane."""
    step, is_sent, states = Network._step, [], []

    def slow_to_begin(network, work, lane):
        if lane is network._learn and work.is_first and lane.iteration + 1 == completed and not is_sent:
            while max(other.iteration for other in network.lanes) < completed + 1 + lag:
                time.sleep(0.001)
            is_sent.append(True)
            signal.raise_signal(signal.SIGINT)
        step(network, work, lane)

    monkeypatch.setattr(Network, "_step", slow_to_begin)
    with pytest.raises(KeyboardInterrupt):
        summed(lag, states)

    assert len(states) == 1
    assert summed(lag, [], states[0]) == SUM


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_run_can_be_resumed_if_a_signal_comes_before_the_first_iteration(lag):
    states = []
    with pytest.raises(KeyboardInterrupt):
        summed(lag, states, begin_run=lambda: signal.raise_signal(signal.SIGINT))

    assert states[0]["done"] == 1 + lag
    assert summed(lag, [], states[0]) == SUM


class Signalled:
    """A mutex; the first time that a thread takes it, a signal comes meanwhile."""

    def __init__(self, mutex):
        self.mutex, self.is_sent = mutex, False

    def __enter__(self):
        assert self.mutex.acquire(timeout=2), "a deadlock"
        if not self.is_sent:
            self.is_sent = True
            signal.raise_signal(signal.SIGINT)

    def __exit__(self, *error):
        self.mutex.release()


@pytest.mark.parametrize("mode", [{"max_lag": 1}, {"async_mode": True}], ids=["lag", "threads"])
def test_a_signal_while_a_save_is_being_asked_for_ends_the_run(mode):
    loop, states = Task(), []

    @contract(stage="learn")
    def learn(ctx):
        if ctx.total_step == 3:
            loop._network._mutex = Signalled(loop._network._mutex)
            loop.between_iterations(lambda: None)

    with loop.start(**mode):
        loop.use(learn).use(contract(stage="collect")(lambda ctx: None)).use(Saver(loop, states, lambda: None))
        with pytest.raises(KeyboardInterrupt):
            loop.run()
    assert 5 <= states[-1]["done"] <= 6
