"""Ctrl-C and SIGTERM where iterations overlap: the first lets an iteration finish as the last, the second stops at once."""

import signal
import subprocess
import sys
import time

import pytest

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


@pytest.mark.parametrize("who", STAGES)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
@pytest.mark.parametrize("times", ["once", "twice"])
def test_a_signal_during_a_middleware(who, number, status, times):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", SCRIPT, who], **pipes, text=True) as process:
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
