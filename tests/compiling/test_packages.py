"""The cache of packages, and a step that is really compiled: damaged and foreign files, full disks, other machines."""

import contextlib
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import interpreted_steps
import pytest
import torch
from interpreted_steps import assert_close, batch_of, compiled, interpreting, learn, no_warning, same, state_of

from ding_lite.compiling import cache_folder, packages
from ding_lite.compiling.compiler import end_with
from ding_lite.compiling.functional_steps import trace_step
from ding_lite.compiling.programs import graph_of


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory, worker_id):
    """A cache with the package of DQN's step, which is compiled once for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "packages"
    folder.mkdir(exist_ok=True)
    with open(folder.parent / "packages.lock", "w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv(packages.FOLDER_VARIABLE, str(folder))
        before, _ = torch.get_num_threads(), torch.set_num_threads(1)
        if not list(folder.glob("*.json")):
            packages.Compilation(program()).package()
        torch.set_num_threads(before)
    return folder


@pytest.fixture
def cache(shared_cache, tmp_path, monkeypatch):
    """A copy of it for one test. No other step may be compiled."""
    folder = tmp_path / "cache"
    shutil.copytree(shared_cache, folder)
    monkeypatch.setenv(packages.FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def compiler(cache, monkeypatch):
    """Counts compilations, whose result is the compiled package."""
    content, runs = next(cache.glob("*.pt2")).read_bytes(), []

    class Finished(packages.Compilation):
        def __init__(self, program):
            runs.append(program)
            self._content, self._program = content, program

        def package(self):
            with contextlib.suppress(OSError):
                packages._keep(self._program, self._content)
            return packages.Package(self._content)

    monkeypatch.setattr("ding_lite.compiling.compiled_steps.Compilation", Finished)
    return runs


HIDDEN = {"model.encoder_hidden_size_list": [8]}


def made(**settings):
    """A policy with a hidden layer, since its step is really compiled."""
    return interpreted_steps.made(**{**HIDDEN, **settings})


def program(**settings):
    return trace_step(made(**settings), batch_of(), False).program


def manifest_of(cache) -> Path:
    return next(cache.glob("*.json"))


def package_of(cache) -> Path:
    return next(cache.glob("*.pt2"))


def changed(cache, **values):
    manifest = json.loads(manifest_of(cache).read_text())
    manifest.update({name: {**manifest[name], **value} if isinstance(value, dict) else value for name, value in values.items()})
    manifest_of(cache).write_text(json.dumps(manifest))


@pytest.mark.slow
def test_a_package_from_the_cache_takes_the_steps_of_dqn(cache, compiler):
    policy, plain = made(), made(compiles="off")
    with no_warning():
        learn(policy, 50)
    learn(plain, 50)
    assert (compiled(policy), len(compiler)) == (50, 0)
    assert_close(policy, plain)


@pytest.mark.slow
def test_a_run_with_a_package_resumes_bit_for_bit(cache, compiler):
    whole, first, resumed = made(), made(), made()
    learn(whole, 20)
    learn(first, 10)
    resumed.load_state_dict(first.state_dict())
    learn(resumed, 10, 10)
    assert same(state_of(whole), state_of(resumed))
    assert (compiled(resumed), len(compiler)) == (10, 0)


@pytest.mark.slow
def test_a_package_is_what_its_program_says(cache):
    step = program()
    inputs = [meta.empty().zero_() if meta.dtype is not torch.float32 else torch.rand(meta.shape) for meta in step.metas]
    found, wanted = ([tensor.clone() for tensor in inputs] for _ in range(2))
    package = packages.load_package(step)
    assert package is not None
    outputs = package.run([*found])
    with torch.no_grad():
        expected = graph_of(step)(*wanted)
    for one, other in zip([*outputs, *found], [*expected, *wanted], strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6)


def flipped(cache):
    content = bytearray(package_of(cache).read_bytes())
    content[len(content) // 2] ^= 1
    package_of(cache).write_bytes(content)


def cut_off(cache):
    content = package_of(cache).read_bytes()
    package_of(cache).write_bytes(content[:-10])


def foreign(cache):
    package_of(cache).write_bytes(b"PK\x03\x04 of another program")


DAMAGES = {
    "a bit of the package": flipped,
    "the end of the package": cut_off,
    "another file": foreign,
    "no package": lambda cache: package_of(cache).unlink(),
    "no manifest": lambda cache: manifest_of(cache).unlink(),
    "an empty manifest": lambda cache: manifest_of(cache).write_text(""),
    "a manifest of something else": lambda cache: manifest_of(cache).write_text("[1, 2]"),
    "a manifest of bytes": lambda cache: manifest_of(cache).write_bytes(b"\xff\xfe\x00"),
    "another program": lambda cache: changed(cache, key="0" * 40),
    "another torch": lambda cache: changed(cache, environment={"torch": "2.0.0"}),
    "another processor": lambda cache: changed(cache, environment={"processor": "0" * 16}),
    "fewer instruction sets": lambda cache: changed(cache, environment={"capability": "DEFAULT"}),
    "other threads": lambda cache: changed(cache, environment={"threads": 64}),
    "a package that others may write": lambda cache: package_of(cache).chmod(0o666),
    "a manifest that others may write": lambda cache: manifest_of(cache).chmod(0o622),
    "a folder in its place": lambda cache: (package_of(cache).unlink(), (cache / "x.pt2").mkdir()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_package_that_is_damaged_or_foreign_is_never_loaded_and_made_again(name, cache, compiler, monkeypatch):
    sound, loaded = package_of(cache).read_bytes(), []
    real = packages.Package
    monkeypatch.setattr(packages, "Package", lambda content: loaded.append(content) or real(content))
    DAMAGES[name](cache)
    policy = made()
    with no_warning():
        learn(policy)
    assert (compiled(policy), len(compiler)) == (4, 1)
    assert set(loaded) == {sound}
    with no_warning():
        learn(made())
    assert len(compiler) == 1  # the second run has found the new one


@pytest.mark.slow
def test_the_threads_of_this_process_are_part_of_the_name(cache):
    assert packages.load_package(program()) is not None
    torch.set_num_threads(2)
    assert packages.load_package(program()) is None
    torch.set_num_threads(1)


def read_only(cache, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError("read-only")

    monkeypatch.setattr("tempfile.mkstemp", refuse)


def full(cache, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")))


def a_file(cache, monkeypatch):
    shutil.rmtree(cache)
    cache.write_text("not a folder")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [read_only, full, a_file])
def test_a_cache_that_cannot_be_written_to_does_not_stop_the_run(fault, cache, compiler, monkeypatch):
    for path in cache.iterdir():
        path.unlink()
    fault(cache, monkeypatch)
    policy = made()
    with no_warning():
        learn(policy)
    assert (compiled(policy), len(compiler)) == (4, 1)
    assert cache.is_file() or not list(cache.iterdir())


@pytest.mark.slow
def test_two_writers_at_once_leave_a_package_that_can_be_loaded(cache):
    content, step = package_of(cache).read_bytes(), program()
    errors = []

    def write(kind):
        try:
            for _ in range(20):
                packages._keep(step, content + kind)
        except Exception as error:  # noqa: BLE001  any is a failure
            errors.append(error)

    writers = [threading.Thread(target=write, args=(kind,)) for kind in (b"", b" ")]
    for writer in writers:
        writer.start()
    seen = []
    while any(writer.is_alive() for writer in writers):
        manifest = json.loads(manifest_of(cache).read_text())
        seen.append((cache / f"{manifest_of(cache).stem}-{manifest['sha256'][:16]}.pt2").exists())
    for writer in writers:
        writer.join()
    assert not errors
    assert seen
    assert all(seen)
    assert len(list(cache.iterdir())) == 3  # a manifest, and both packages
    assert packages.load_package(step) is not None


@pytest.mark.slow
def test_the_packages_that_were_not_used_for_longest_are_deleted(cache, monkeypatch):
    content, step = package_of(cache).read_bytes(), program()
    for age in range(1, 5):
        old = cache / f"old{age}-0.pt2"
        old.write_bytes(bytes(len(content)))
        os.utime(old, (1e9 - age, 1e9 - age))
        left = cache / f".{age}.tmp"
        left.write_bytes(bytes(len(content)))
        os.utime(left, (1e8 - age, 1e8 - age))
    monkeypatch.setenv(packages.SIZE_VARIABLE, str(3.5 * len(content) / 1e6))
    packages._keep(step, content)
    assert {path.name for path in cache.iterdir() if path.suffix != ".json"} == {
        package_of_name(cache, step, content),
        "old1-0.pt2",
        "old2-0.pt2",
    }
    (cache / "old1.json").write_text('{"sha256": "0"}')
    monkeypatch.setenv(packages.SIZE_VARIABLE, "0.000001")
    packages._keep(step, content)
    assert not (cache / "old1.json").exists()
    assert [path.name for path in cache.glob("*.pt2")] == [package_of_name(cache, step, content)]


@pytest.mark.slow
def test_a_size_that_is_no_number_is_named(cache, monkeypatch):
    monkeypatch.setenv(packages.SIZE_VARIABLE, "many")
    with pytest.raises(ValueError, match="DING_LITE_CACHE_MB = 'many': expected a number of megabytes"):
        packages._keep(program(), b"")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [("DING_LITE_CACHE_MB", "many", "expected a number of megabytes"), ("CXX", "g++ 'x", "expected the command of a C")],
)
def test_settings_that_cannot_be_read_are_named_before_the_first_step(name, given, words, monkeypatch):
    monkeypatch.setenv(name, given)
    with pytest.raises(ValueError, match=words):
        made()
    made(compiles="off")


def package_of_name(cache, step, content):
    manifest = json.loads((cache / f"{packages._name_of(step.key)}.json").read_text())
    return f"{packages._name_of(step.key)}-{manifest['sha256'][:16]}.pt2"


def test_without_a_compiler_steps_are_not_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv(packages.FOLDER_VARIABLE, str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    policy, plain = made(), made(compiles="off")
    with pytest.warns(UserWarning, match=r"there is no C\+\+ compiler g\+\+: install g\+\+, or set CXX") as found:
        learn(policy)
    learn(plain)
    assert (compiled(policy), len(found)) == (0, 1)
    assert same(state_of(policy), state_of(plain))


def test_a_compiler_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(packages.FOLDER_VARIABLE, str(tmp_path / "none"))
    monkeypatch.setattr(packages.sys, "executable", shutil.which("false"))
    with pytest.warns(UserWarning, match=r"torch cannot compile it: .*Such gradient steps are not compiled"):
        learn(made())


def test_the_folder_is_a_setting(monkeypatch):
    monkeypatch.setenv(packages.FOLDER_VARIABLE, "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv(packages.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/ding_lite")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "ding_lite"


def test_the_same_program_has_the_same_key_and_another_one_another():
    assert program().key == program().key
    assert program().key != program(discount_factor=0.5).key
    assert program().key != program(double=False).key
    with interpreting():
        assert trace_step(made(), batch_of(rows=7), False).program.key != program().key


PROGRAM = f"""
import sys
from interpreted_steps import compiled, learn, made
policy = made(**{HIDDEN})
learn(policy)
print(compiled(policy), [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


@pytest.mark.compiled
def test_a_run_with_a_package_does_not_import_the_compiler(cache):
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests/helpers'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "4 []\n"
    assert not done.stderr


@pytest.fixture
def compiling(tmp_path, monkeypatch):
    """Replaces the compiler by a program that starts another one, as it starts g++, and waits."""
    script = tmp_path / "compiler"
    script.write_text("#!/bin/sh\nsleep 60 &\necho $!\nwait\n")  # what it prints is in the file of errors
    script.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(script))

    def started(compilation):
        while not (text := (compilation._folder / "errors").read_text()).endswith("\n"):
            assert compilation._process.poll() is None
        return int(text)

    return started


def has_ended(pid):
    """Whether a process that is not a child of this one has ended, perhaps without being waited for."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_compilation_that_nobody_waits_for_ends_with_what_it_has_started(compiling):
    compilation = packages.Compilation(program())
    process, folder, inner = compilation._process, compilation._folder, compiling(compilation)
    assert process.poll() is None
    assert os.getpgid(inner) == process.pid != os.getpgid(0)  # Ctrl-C in a terminal does not reach it
    del compilation
    gc.collect()
    assert process.poll() is not None
    deadline = time.monotonic() + 5
    while not has_ended(inner):
        assert time.monotonic() < deadline
    assert not folder.exists()


def test_an_interrupted_compilation_leaves_nothing(compiling, monkeypatch):
    compilation = packages.Compilation(program())
    compiling(compilation)
    wait = compilation._process.wait

    def is_interrupted(*seconds):
        if seconds:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(compilation._process, "wait", is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        compilation.package()
    assert compilation._process.poll() == -signal.SIGKILL
    assert not compilation._folder.exists()


def test_the_compiler_ends_after_a_parent_that_was_killed(tmp_path):
    (tmp_path / "files").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks with threads
        pid = os.fork()
    if not pid:
        try:
            os.setpgid(0, 0)
            end_with(-1, tmp_path / "files")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "files").exists()
