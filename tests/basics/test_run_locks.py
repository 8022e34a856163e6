"""RunLock: one process at a time writes to a folder, and the lock of a process that has ended is free."""

import errno
import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from ding_lite.basics import FolderInUseError, RunLock

HOLD = """
import sys
from ding_lite.basics import RunLock
lock = RunLock(sys.argv[1])
lock.take()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "taken\n"
    yield process
    process.kill()
    process.communicate()


def is_free(folder):
    """Whether another open file could be locked, as by another process."""
    try:
        file = os.open(folder / ".lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def test_a_second_process_is_refused_at_once_with_folder_process_host_and_fix(tmp_path, other):
    begun = time.monotonic()
    with pytest.raises(FolderInUseError) as caught:
        RunLock(tmp_path).take()

    assert time.monotonic() - begun < 1
    assert caught.value.errno == errno.EBUSY
    for part in (str(tmp_path), f"process {other.pid} on {socket.gethostname()}", "exp_name", "end that process"):
        assert part in str(caught.value)


def test_the_lock_of_a_killed_process_is_free(tmp_path, other):
    lock = RunLock(tmp_path)
    with pytest.raises(FolderInUseError):
        lock.take()
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    lock.take()

    assert f'"pid": {os.getpid()},' in (tmp_path / ".lock").read_text()
    lock.free()
    assert list(tmp_path.iterdir()) == []


def test_another_path_to_the_folder_is_the_same_folder(tmp_path, other, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("link", ".", tmp_path / "link" / "link"):
        with pytest.raises(FolderInUseError):
            RunLock(path).take()


def test_objects_of_one_process_share_it_until_the_last_one_frees_it(tmp_path):
    first, second = RunLock(tmp_path / "run"), RunLock(tmp_path / "run" / ".")
    for lock in (first, second, first):
        lock.take()
    first.free()
    first.free()

    assert not is_free(tmp_path / "run")
    second.free()
    assert is_free(tmp_path / "run")
    first.take()
    assert not is_free(tmp_path / "run")
    first.free()


def test_an_object_that_is_gone_has_freed_it(tmp_path):
    lock = RunLock(tmp_path)
    lock.take()
    assert not is_free(tmp_path)
    del lock
    gc.collect()

    assert is_free(tmp_path)


def test_child_processes_do_not_keep_it(tmp_path):
    lock, (seen, tell) = RunLock(tmp_path), os.pipe()
    lock.take()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as program:
        fork = os.fork()
        if not fork:
            try:
                lock.take()
            except FolderInUseError as error:
                os.write(tell, str(error).encode())
            finally:
                signal.pause()
        try:
            refusal = os.read(seen, 4096).decode()
            assert f"process {os.getpid()} on" in refusal
            assert not is_free(tmp_path)
            lock.free()
            assert is_free(tmp_path)
        finally:
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)
            program.communicate(b"\n")
            os.close(seen)
            os.close(tell)


def test_a_folder_that_was_removed_is_locked_again(tmp_path):
    first, second = RunLock(tmp_path / "run"), RunLock(tmp_path / "run")
    first.take()
    (tmp_path / "run/.lock").unlink()
    (tmp_path / "run").rmdir()
    second.take()

    assert not is_free(tmp_path / "run")
    first.free()
    second.free()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_was_removed_and_then_locked_elsewhere_is_freed_without_an_error(tmp_path):
    folder = tmp_path / "run"
    first, second = RunLock(folder), RunLock(folder)
    first.take()
    (folder / ".lock").unlink()
    folder.rmdir()
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "taken\n"
        with pytest.raises(FolderInUseError):
            second.take()
        first.free()
        assert not is_free(folder)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.filterwarnings("error")
def test_a_file_system_without_locks_gives_one_warning(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    with pytest.warns(UserWarning, match=r"has no locks \(No locks available\): start no second run") as caught:
        first.take()
    second.take()  # a second warning would be an error

    assert len(caught) == 1
    first.free()
    second.free()


def test_a_folder_that_cannot_be_made_is_left_to_the_errors_of_writing(tmp_path):
    (tmp_path / "file").touch()
    RunLock(tmp_path / "file").take()
    RunLock(tmp_path / "file" / "run").take()

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_is_locked_in_the_constructor_of_a_saver_only_if_it_exists(tmp_path, other):
    RunLock(tmp_path / "new").take_if_exists()
    with pytest.raises(FolderInUseError):
        RunLock(tmp_path).take_if_exists()

    assert not (tmp_path / "new").exists()


def test_threads_that_take_and_free_it_do_not_refuse_each_other(tmp_path):
    errors = []

    def work():
        try:
            for _ in range(200):
                lock = RunLock(tmp_path)
                lock.take()
                assert not is_free(tmp_path)
                lock.free()
        except BaseException as error:  # noqa: BLE001  it is shown below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert is_free(tmp_path)
