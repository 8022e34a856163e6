"""Frames of threads: those of every thread, without a collection of garbage meanwhile."""

import gc
import threading

import pytest

from ding_lite.basics.thread_frames import frames_of_threads


def test_each_thread_has_its_innermost_frame():
    begun, ended = threading.Event(), threading.Event()

    def waits():
        begun.set()
        ended.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait()
    frames, names = frames_of_threads(), []
    frame = frames[thread.ident]
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    ended.set()
    thread.join()

    assert "waits" in names
    assert frames[threading.get_ident()].f_code.co_name == "frames_of_threads"


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_not_collected_meanwhile(is_enabled, monkeypatch):
    seen, before = [], gc.isenabled()
    monkeypatch.setattr("sys._current_frames", lambda: seen.append(gc.isenabled()))
    try:
        (gc.enable if is_enabled else gc.disable)()
        frames_of_threads()
        seen.append(gc.isenabled())
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, is_enabled]
