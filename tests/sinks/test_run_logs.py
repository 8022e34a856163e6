"""RunLog: what is logged while it is open stands in the file, and the logging of the program is as before afterwards."""

import gc
import io
import logging
import re
import sys
import warnings

import pytest

from ding_lite.basics import WriteError
from ding_lite.sinks import RunLog

LOGGER = logging.getLogger("ding_lite")


@pytest.fixture(autouse=True)
def nothing_stays():
    before = LOGGER.level, list(LOGGER.handlers), LOGGER.propagate, warnings.showwarning
    yield
    assert (LOGGER.level, LOGGER.handlers, LOGGER.propagate, warnings.showwarning) == before


def lines(path):
    return [re.sub(r"^[-\d]+ [:,\d]+ ", "", line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("level", "expected"),
    [("DEBUG", ["DEBUG 1", "INFO 2", "WARNING 3"]), ("INFO", ["INFO 2", "WARNING 3"]), ("ERROR", [])],
)
def test_lines_of_the_level_and_above_are_written_with_their_time(tmp_path, level, expected):
    log = RunLog(tmp_path / "deep/run.log", level)
    for number, severity in enumerate((logging.DEBUG, logging.INFO, logging.WARNING), 1):
        logging.getLogger("ding_lite.middleware.loggers").log(severity, "%d", number)
    log.close()
    LOGGER.error("after its end")

    assert lines(tmp_path / "deep/run.log") == expected


def test_a_second_log_continues_the_file(tmp_path):
    for number in range(2):
        log = RunLog(tmp_path / "run.log")
        LOGGER.info("%d", number)
        log.close()
        log.close()

    assert lines(tmp_path / "run.log") == ["INFO 0", "INFO 1"]


def test_logs_that_overlap_each_get_their_lines(tmp_path):
    mine = []
    first = RunLog(tmp_path / "first.log", "INFO", is_mine=lambda: "first" in mine)
    second = RunLog(tmp_path / "second.log", "DEBUG", is_mine=lambda: "second" in mine)
    for names in (["first"], ["second"], ["first", "second"]):
        mine[:] = names
        LOGGER.debug("%s", names)
        LOGGER.info("%s", names)
    first.close()
    LOGGER.info("the last one")
    second.close()

    assert lines(tmp_path / "first.log") == ["INFO ['first']", "INFO ['first', 'second']"]
    both = [f"{level} {names}" for names in (["second"], ["first", "second"]) for level in ("DEBUG", "INFO")]
    assert lines(tmp_path / "second.log") == [*both, "INFO the last one"]


def test_warnings_are_written_to_the_file_and_shown(tmp_path, recwarn):
    log = RunLog(tmp_path / "run.log", "WARNING")
    warnings.warn("beware", stacklevel=1)
    log.close()
    warnings.warn("too late", stacklevel=1)

    (line,) = lines(tmp_path / "run.log")
    assert line.startswith(f"WARNING UserWarning: beware ({__file__}:")
    assert [str(one.message) for one in recwarn] == ["beware", "too late"]


def test_a_log_that_is_closed_while_other_code_catches_warnings_leaves_no_loop(tmp_path, recwarn):
    show, log = warnings.showwarning, RunLog(tmp_path / "first.log")
    with warnings.catch_warnings():
        log.close()
    again = RunLog(tmp_path / "second.log")
    warnings.warn("beware", stacklevel=1)
    again.close()

    assert len(lines(tmp_path / "second.log")) == len(recwarn) == 1
    assert warnings.showwarning is show


def test_the_own_level_and_handlers_of_a_program_stay(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, "ding_lite"):
        log = RunLog(tmp_path / "run.log", "ERROR")
        LOGGER.debug("seen by the program")
        log.close()

        assert LOGGER.level == logging.DEBUG
    assert lines(tmp_path / "run.log") == []
    assert "seen by the program" in caplog.text


def test_a_log_that_is_gone_is_closed(tmp_path):
    log = RunLog(tmp_path / "run.log")
    del log
    gc.collect()
    LOGGER.error("nobody listens")

    assert lines(tmp_path / "run.log") == []


def test_a_file_that_cannot_be_opened_is_an_error_with_the_fix(tmp_path):
    (tmp_path / "run.log").mkdir()
    with pytest.raises(WriteError, match=r"run\.log is a folder\. Move it away"):
        RunLog(tmp_path / "run.log")


def test_a_full_disk_is_one_warning():
    log = RunLog("/dev/full")
    with pytest.warns(UserWarning, match=r"/dev/full cannot be written, and gets no further lines"):
        LOGGER.info("1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LOGGER.info("2")
    log.close()


def test_a_warning_is_written_to_the_file_also_where_standard_error_is_closed(tmp_path, monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(warnings, "showwarning", lambda *one: sys.stderr.write("shown"))  # which raises an error
    log = RunLog(tmp_path / "run.log")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("beware", stacklevel=1)
    log.close()
    assert "beware" in lines(tmp_path / "run.log")[0]
