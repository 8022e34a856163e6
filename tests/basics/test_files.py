"""Files of a run: what is in the way of one is named with the fix, and what killed processes left is removed."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ding_lite.basics import move_aside, remove_leftovers, require_writable, temporary_beside, write_atomically
from ding_lite.engine import WriteError, load_checkpoint, save_checkpoint

CAN_MOUNT = (
    shutil.which("unshare") is not None
    and subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"], capture_output=True, check=False
    ).returncode
    == 0
)


@contextlib.contextmanager
def protected_folder(*inside):
    """A folder, with these folders in it, that this user may not write to, also where the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        for folder in inside:
            (Path(name) / folder).mkdir()
        os.chmod(name, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)
            os.chmod(name, 0o755)


class TestObstacles:
    def test_a_broken_link_in_the_path_is_named_with_its_target(self, tmp_path):
        (tmp_path / "run").symlink_to(tmp_path / "gone")
        path = tmp_path / "run" / "ckpt" / "final.pt"
        expected = (
            f"cannot write {path}: {tmp_path}/run is a link to {tmp_path}/gone, which does not exist. "
            f"Make {tmp_path}/gone, or remove the link."
        )
        for write in (lambda: write_atomically(path, b"x"), lambda: require_writable(path), lambda: save_checkpoint({}, path)):
            with pytest.raises(WriteError) as caught:
                write()
            assert str(caught.value) == expected
            assert caught.value.filename == str(path)

    def test_a_file_in_the_place_of_a_folder_is_named(self, tmp_path):
        (tmp_path / "run").write_text("mine")
        path = tmp_path / "run" / "ckpt" / "final.pt"
        expected = (
            f"cannot write {path}: {tmp_path}/run is a file, but a folder is needed there. "
            "Move the file away, or choose another folder."
        )
        for write in (lambda: write_atomically(path, b"x"), lambda: require_writable(path)):
            with pytest.raises(WriteError) as caught:
                write()
            assert str(caught.value) == expected
        assert (tmp_path / "run").read_text() == "mine"

    def test_a_folder_in_the_place_of_the_file_is_named(self, tmp_path):
        path = tmp_path / "final.pt"
        path.mkdir()
        with pytest.raises(WriteError, match=rf"cannot write {path}: {path} is a folder\. Move it away"):
            write_atomically(path, b"x")

        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_without_the_right_to_write_is_named(self):
        with protected_folder() as folder:
            path = folder / "ckpt" / "final.pt"
            expected = (
                f"cannot write {path}: this user may not write to {folder}. "
                "Change its permissions (chmod u+w), or choose another folder."
            )
            for write in (lambda: write_atomically(path, b"x"), lambda: require_writable(path)):
                with pytest.raises(WriteError) as caught:
                    write()
                assert str(caught.value) == expected

    def test_what_an_earlier_run_left_cannot_be_moved_in_a_protected_folder(self):
        expected = r"cannot write .*/ckpt\.1: this user may not write to "
        with protected_folder("ckpt") as folder, pytest.raises(WriteError, match=expected):
            move_aside(folder / "ckpt")

    def test_a_file_larger_than_allowed_is_refused_with_the_limit_to_raise(self, tmp_path):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(WriteError) as caught:
                write_atomically(tmp_path / "a", bytes(2000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert str(caught.value) == (
            f"cannot write {tmp_path}/a: it is larger than a file may be here (File too large). "
            "Raise the limit (ulimit -f), or choose another folder."
        )
        assert caught.value.errno == errno.EFBIG
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.skipif(not CAN_MOUNT, reason="a small disk cannot be mounted here")
    def test_a_full_disk_and_a_read_only_disk_are_named(self, tmp_path):
        code = (
            "import pathlib, sys\nfrom ding_lite.basics.files import write_atomically, require_writable\n"
            "try: (write_atomically if sys.argv[1] == 'full' else lambda path, _: require_writable(path))"
            "(pathlib.Path(sys.argv[2]), bytes(100_000))\n"
            "except OSError as error: print(error)"
        )
        script = (
            'mount -t tmpfs -o size=64k none "$1" && "$2" -c "$3" full "$1/a" '
            '&& mount -o remount,ro "$1" && "$2" -c "$3" ro "$1/a"'
        )
        command = ["unshare", "-m", "sh", "-c", script, "sh", tmp_path, sys.executable, code]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

        assert said == [
            f"cannot write {tmp_path}/a: the disk is full (No space left on device). "
            "Delete something on it, or choose another folder.",
            f"cannot write {tmp_path}/a: {tmp_path} is on a disk that can only be read. "
            "Mount it for writing, or choose another folder.",
        ]

    def test_where_nothing_is_in_the_way_nothing_is_written(self, tmp_path):
        require_writable(tmp_path / "new" / "run" / "final.pt")

        assert list(tmp_path.iterdir()) == []

    def test_the_folder_of_a_file_is_made(self, tmp_path):
        write_atomically(tmp_path / "new" / "folder" / "a", b"x")

        assert (tmp_path / "new/folder/a").read_bytes() == b"x"

    def test_a_broken_link_of_the_next_free_name_is_not_written_over(self, tmp_path):
        (tmp_path / "ckpt").mkdir()
        (tmp_path / "ckpt.1").symlink_to(tmp_path / "gone")
        move_aside(tmp_path / "ckpt")

        assert (tmp_path / "ckpt.1").is_symlink()
        assert (tmp_path / "ckpt.2").is_dir()

    def test_what_is_moved_aside_together_gets_the_same_number(self, tmp_path):
        for name in ("a.txt", "b", "c.1.txt"):
            (tmp_path / name).touch()

        assert move_aside(*(tmp_path / name for name in ("a.txt", "b", "c.txt"))) == 2
        assert {path.name for path in tmp_path.iterdir()} == {"a.2.txt", "b.2", "c.1.txt"}


class TestLeftovers:
    def test_the_temporary_file_of_a_killed_process_is_removed_at_the_next_start(self, tmp_path):
        code = (
            "import os, pathlib, signal, sys\nfrom ding_lite.basics.files import write_atomically\n"
            "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
            "write_atomically(pathlib.Path(sys.argv[1]), b'half of it')"
        )
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "final.pt"], check=False)
        left = [path.name for path in tmp_path.iterdir()]
        remove_leftovers(tmp_path)

        assert done.returncode == -9
        assert len(left) == 1
        assert left[0].startswith("final.pt.")
        assert left[0].endswith(".tmp")
        assert list(tmp_path.iterdir()) == []

    def test_those_of_processes_that_run_of_other_machines_and_of_others_stay(self, tmp_path):
        own = temporary_beside(tmp_path / "final.pt")
        parent = own.with_name(own.name.replace(f".{os.getpid()}.", f".{os.getppid()}."))
        machine = own.name.split(".")[2]
        gone = own.with_name(f"final.pt.{machine}.{2**22 + 1}.tmp")  # above the largest number of a process
        kept = [own, parent, gone.with_name(gone.name.replace(machine, f"other-{machine}"))]
        kept += [tmp_path / name for name in ("final.pt", "notes.tmp", "mine.12.tmp", f"final.pt.{machine}.tmp")]
        for path in (*kept, gone):
            path.write_text("x")
        remove_leftovers(tmp_path)

        assert sorted(tmp_path.iterdir()) == sorted(kept)

    def test_without_a_folder_there_is_nothing_to_remove(self, tmp_path):
        remove_leftovers(tmp_path / "none")

    def test_a_checkpoint_beside_leftovers_is_read_as_before(self, tmp_path):
        path = save_checkpoint({"x": 1}, tmp_path / "a.pt")
        temporary_beside(path).write_bytes(b"half")

        assert load_checkpoint(path) == {"x": 1}


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    import os

    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(WriteError, match="it is a device or pipe, not a file. Choose another name."):
        write_atomically(path, b"content")
    assert path.is_fifo()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a file system that permits by its bits and takes no file")
@pytest.mark.parametrize("folder", ["/proc/x", "/proc/x/y", "/proc/self"])
def test_where_no_file_can_be_made_is_seen_by_trying(folder):
    with pytest.raises(WriteError, match=f"cannot write {folder}/final.pt"):
        require_writable(f"{folder}/final.pt")


def test_a_trial_leaves_nothing(tmp_path):
    (tmp_path / "final.pt").write_text("kept")
    for name in ("final.pt", "new.pt", "a/b/c.pt"):
        require_writable(tmp_path / name)

    assert [it.name for it in tmp_path.iterdir()] == ["final.pt"]
    assert (tmp_path / "final.pt").read_text() == "kept"


def test_a_name_with_nul_is_refused_like_every_other_path(tmp_path):
    words = r"cannot write .*a\\x00b: a name must not contain NUL \(\\x00\). Leave it out\."
    for write in (lambda path: write_atomically(path, b""), require_writable):
        with pytest.raises(WriteError, match=words):
            write(tmp_path / "a\0b")
