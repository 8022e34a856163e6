"""task.timeline and task.report: what ran where and when, what it waited for, and what to do about it."""

import json
import time
import warnings
import xml.etree.ElementTree as ElementTree

import pytest

from ding_lite.engine import Task, contract

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]
SVG = "{http://www.w3.org/2000/svg}"


def rests(ctx):
    time.sleep(0.004)


def step(stage, work, uses=()):
    def run(ctx):
        work(ctx)

    run.__name__ = run.__qualname__ = stage
    return contract(uses=uses, stage=stage)(run)


def report(*middleware, steps=25, **mode):
    with Task().start(**{"async_mode": True, **mode}) as loop, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fn in middleware:
            loop.use(fn)
        loop.run(steps)
        return loop.report()


def told_in_some(wanted, *middleware):
    """Whether a report says so: one of several, since other work on this machine takes time from any run."""
    return any(wanted in report(*middleware) for _ in range(8))


@pytest.fixture
def ran():
    """A task that has run five iterations of generators on three lanes."""
    with Task().start(async_mode=True) as loop:

        def halves(stage):
            def both(ctx):
                yield

            both.__name__ = both.__qualname__ = f"{stage} <both>"  # to be escaped in a picture
            return contract(stage=stage)(both)

        for stage in STAGES:
            loop.use(halves(stage))
        loop.run(5)
        yield loop


class TestTimeline:
    def test_the_trace_has_one_event_for_each_half_of_each_iteration_and_a_thread_for_each_lane(self, ran, tmp_path):
        path = ran.timeline(tmp_path / "new" / "trace.json")
        events = json.loads(path.read_text())["traceEvents"]

        names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert list(names.values()) == STAGES
        seen = [
            (names[it["tid"]], it["name"], it["args"]["iteration"]) for it in events if it["ph"] == "X" and it["cat"] != "wait"
        ]
        halves = [(stage, f"{stage} <both>{half}") for stage in STAGES for half in ("", " (second half)")]
        assert sorted(seen) == sorted((stage, name, k) for stage, name in halves for k in range(5))

    def test_the_events_of_a_lane_have_times_and_do_not_overlap(self, ran, tmp_path):
        events = json.loads(ran.timeline(tmp_path / "trace.json").read_text())["traceEvents"]

        assert {event["ph"] for event in events} == {"M", "X"}
        for lane in {event["tid"] for event in events}:
            spans = [(it["ts"], it["dur"]) for it in events if it["ph"] == "X" and it["tid"] == lane and it["cat"] != "wait"]
            assert all(isinstance(number, (int, float)) and number >= 0 for span in spans for number in span)
            assert all(begun + spent <= later + 1e-3 for (begun, spent), (later, _) in zip(spans, spans[1:]))

    @pytest.mark.parametrize("ending", ["json", "svg"])
    def test_the_picture_is_a_drawing_with_a_row_for_each_lane(self, ran, tmp_path, ending):
        path = ran.timeline(str(tmp_path / f"lanes.{ending}"), iterations=2)
        assert path == tmp_path / f"lanes.{ending}"
        assert {it.name for it in tmp_path.iterdir()} == {"lanes.svg", path.name}

        root = ElementTree.parse(tmp_path / "lanes.svg").getroot()
        assert root.tag == f"{SVG}svg"
        texts = [element.text for element in root.iter(f"{SVG}text")]
        assert texts[0].startswith("iterations 3 to 4, ")
        assert [text for text in texts if text in STAGES] == STAGES
        titles = [element.text for element in root.iter(f"{SVG}title")]
        assert len(titles) == 2 * 3 * 2
        assert titles[0].startswith("evaluate <both>, iteration 3: ")

    @pytest.mark.parametrize("letter", ["\ud800", "\x01"])
    def test_a_name_may_have_any_characters(self, tmp_path, letter):
        def rests_here(ctx):
            rests(ctx)

        rests_here.__name__ = rests_here.__qualname__ = f"a {letter} b"
        with Task().start(max_lag=1) as loop:
            loop.use(contract(stage="learn")(rests_here)).run(3)
            loop.timeline(tmp_path / "lanes.json")
            loop.report(tmp_path / "report.txt")

        titles = [element.text for element in ElementTree.parse(tmp_path / "lanes.svg").getroot().iter(f"{SVG}title")]
        assert titles[0].startswith("a ? b, iteration 0: ")

    def test_a_picture_has_iterations_and_both_make_their_folder(self, tmp_path):
        with Task().start(max_lag=1) as loop:
            loop.use(step("collect", rests))
            loop.run(3)
            with pytest.raises(ValueError, match="iterations=0.* draws none: give 1 or more"):
                loop.timeline(tmp_path / "a/t.svg", iterations=0)
            assert loop.timeline(tmp_path / "a/t.svg").exists()
            assert loop.report(tmp_path / "b/c/r.txt") in (tmp_path / "b/c/r.txt").read_text()

    def test_one_thread_is_recorded_as_well(self, tmp_path):
        with Task().start(max_lag=1) as loop:
            loop.use(step("collect", rests)).use(step("learn", rests))
            loop.run(3)
            events = json.loads(loop.timeline(tmp_path / "trace.json").read_text())["traceEvents"]
        assert [event["name"] for event in sorted(events, key=lambda it: it.get("ts", -1)) if event["ph"] == "X"] == [
            "collect",
            "learn",
        ] * 3

    def test_a_wait_says_what_for(self, tmp_path):
        shared = object()
        with Task().start(async_mode=True) as loop:
            loop.use(step("learn", rests, (shared,))).use(step("collect", rests, (shared,)))
            loop.run(3)
            events = json.loads(loop.timeline(tmp_path / "trace.json").read_text())["traceEvents"]
        assert any(event.get("cat") == "wait" and event["name"] == "waits for learn: the object" for event in events)

    def test_another_ending_is_refused(self, ran, tmp_path):
        with pytest.raises(ValueError, match=r"lanes.png'\) writes .json or .svg: change the ending"):
            ran.timeline(tmp_path / "lanes.png")

    @pytest.mark.parametrize("verb", ["timeline", "report"])
    @pytest.mark.parametrize("runs", [False, True])
    def test_where_nothing_was_recorded_there_is_nothing_to_tell(self, tmp_path, verb, runs):
        with Task().start() as loop:
            if runs:
                loop.use(lambda ctx: None).run(1)
            call = loop.report if verb == "report" else lambda: loop.timeline(tmp_path / "x.json")
            with pytest.raises(RuntimeError, match=rf"task.{verb}\(\) has no data.*async_mode=True"):
                call()


class TestReport:
    def test_it_is_printed_and_names_each_lane_that_ran_with_its_waits_and_the_speed_up(self, capsys):
        text = report(step("collect", rests), step("learn", lambda ctx: None), steps=10)
        lines = text.splitlines()

        assert capsys.readouterr().out == text + "\n"
        assert lines[0].startswith("10 iterations in 0.")
        assert lines[1].startswith("  collect  busy ")
        assert "waits" in lines[1]
        assert lines[2].startswith("  learn    busy ")
        assert "for collect (the iteration is complete when all lanes are)" in lines[2]
        assert lines[3].startswith("speed-up over sequential: ")
        assert "; best possible for this pipeline: 1.0" in lines[3]
        assert "evaluate" not in text

    @pytest.mark.parametrize(
        ("computing", "is_advised"), [((0, 480, 0, 470), True), ((0, 250, 0, 300), False), ((0, 10, 0, 940), False)]
    )
    def test_python_against_python_holds_the_interpreter(self, ran, computing, is_advised):
        ran._timeline.begun, ran._timeline.ended = 0, 1000  # as measured on a quiet machine: both busy, one core at work
        ran._timeline.busy_ns, ran._timeline.cpu_ns = [0, 950, 0, 960], list(computing)
        ran._timeline.released_ns = [0, 0, 0, 0]
        text = ran.report()

        wanted = "advice: collection takes 51% of the time and holds the GIL: use make_envs(..., workers=2, backend='process')."
        assert (wanted in text) == is_advised
        assert not is_advised or "speed-up over sequential: 0.95;" in text

    def test_it_can_be_written_instead_of_printed(self, ran, tmp_path, capsys):
        text = ran.report(tmp_path / "lanes.txt")

        assert (tmp_path / "lanes.txt").read_text() == f"{text}\n"
        assert capsys.readouterr().out == ""

    def test_a_function_without_a_contract_is_what_is_waited_for(self):
        assert told_in_some("waiting for middleware without a contract", step("collect", rests), rests)

    def test_balanced_lanes_are_as_good_as_it_gets(self):
        text = "overlapping cannot gain more"
        assert told_in_some(text, step("evaluate", rests), step("collect", rests), step("learn", rests))

    @pytest.mark.parametrize(
        ("busy", "who", "fix"), [("collect", "collection", "more workers"), ("learn", "training", "collect more")]
    )
    def test_where_one_lane_takes_nearly_all_the_time_it_says_what_to_change(self, busy, who, fix):
        others = [step(stage, rests if stage == busy else lambda ctx: None) for stage in ("collect", "learn")]
        text = report(*others, steps=10)
        assert f"advice: {who} takes " in text
        assert fix in text


@pytest.mark.parametrize("place", ["file/x", "folder", "a\0b"])
def test_a_file_that_cannot_be_written_is_refused_with_its_path_and_the_fix(place, tmp_path):
    (tmp_path / "file").write_text("")
    for ending in ("svg", "json", "txt"):
        (tmp_path / f"folder.{ending}").mkdir()
    task = Task()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with task.start(async_mode=True):
            task.use(lambda ctx: None)
            task.run(2)
            for write, ending in ((task.draw, "svg"), (task.timeline, "svg"), (task.timeline, "json"), (task.report, "txt")):
                with pytest.raises(OSError, match=r"cannot write .*: .*(is a file|is a folder|NUL).*\. [A-Z].*\."):
                    write(tmp_path / f"{place}.{ending}")
