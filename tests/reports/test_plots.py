"""Plots: which file comes out, of what, and why not."""

import json
from xml.etree import ElementTree

import pytest

from ding_lite.reports import ReportError, find_runs, group_runs, plot_runs
from ding_lite.reports.plots import panels_of


def texts(path):
    return {"".join(node.itertext()) for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "begins"), [("curve.png", b"\x89PNG"), ("curve.SVG", b"<?xml"), ("deep/down/curve.pdf", b"%PDF")]
)
def test_the_ending_of_the_file_decides_what_it_is(tmp_path, six_runs, name, begins):
    path = plot_runs([six_runs], out=tmp_path / name)

    assert path == tmp_path / name
    assert path.read_bytes().startswith(begins)
    assert [file.name for file in path.parent.iterdir() if "tmp" in file.name] == []


def test_without_a_metric_the_return_at_evaluation_is_drawn_or_that_while_collecting(tmp_path, write_run):
    folder = write_run(tmp_path / "dqn", iterations=20)
    assert "mean return at evaluation" in texts(plot_runs([folder], out=tmp_path / "a.svg"))

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left = [{name: value for name, value in row.items() if not name.startswith("evaluate/")} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in left))
    assert "mean return while collecting" in texts(plot_runs([folder], out=tmp_path / "b.svg"))


def test_runs_without_environment_steps_are_drawn_over_gradient_steps(tmp_path, write_run):
    folder = write_run(tmp_path / "cql", iterations=20)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left = [{name: value for name, value in row.items() if name != "env_step"} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in left))
    assert "gradient steps" in texts(plot_runs([folder], out=tmp_path / "a.svg"))
    with pytest.raises(ReportError, match="--x env_step: the runs have no such metric"):
        plot_runs([folder], x="env_step", out=tmp_path / "b.svg")
    write_run(tmp_path / "dqn", iterations=20)
    with pytest.warns(UserWarning, match="cql: not drawn, because no row has both .* and env_step"):
        assert "environment steps" in texts(plot_runs([tmp_path], out=tmp_path / "c.svg"))


def test_every_environment_has_axes_of_its_own(tmp_path, write_run):
    write_run(tmp_path / "a", iterations=20)
    write_run(tmp_path / "b", iterations=20, changes={"env.id": "Acrobot-v1"})

    assert {"CartPole-v1", "Acrobot-v1", "a", "b", "stop value"} <= texts(plot_runs([tmp_path], out=tmp_path / "c.svg"))


def test_the_goal_is_drawn_for_the_metric_that_is_compared_with_it(tmp_path, write_run):
    def drawn(metric, *folders):
        (panel,) = panels_of(group_runs(find_runs([tmp_path / it for it in folders])), metric, "env_step")
        return panel.threshold == 475.0

    mean, collected, score = "evaluate/episode_return_mean", "collect/episode_return_mean", "evaluate/score"
    folder = write_run(tmp_path / "scored", iterations=20)
    values = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**row, score: 470.0}) + "\n" for row in values))
    write_run(tmp_path / "plain", iterations=20, changes={"policy.learn.batch_size": 3})

    assert drawn(score, "scored")
    assert not drawn(mean, "scored")
    assert not drawn(collected, "scored")
    assert drawn(mean, "plain")
    assert drawn(collected, "plain")
    assert not drawn(mean, "plain", "scored")
    assert drawn(score, "plain", "scored")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "learn/los"}, r"--metric learn/los: .* did you mean 'learn/loss'\?"),
        ({"metric": "zzz"}, r"--metric zzz: the runs have no such metric\. They have collect/"),
        ({"x": "env_steps"}, r"--x env_steps: .* did you mean 'env_step'\?"),
        ({"out": "curve.gif"}, r"--out curve.gif ends in '.gif', expected .png, .svg or .pdf"),
        ({"out": "curve"}, "ends in 'nothing'"),
        ({"smooth": 0}, "--smooth 0: expected a whole number of rows, 1 or more"),
        ({"smooth": 2.5}, "--smooth 2.5: expected a whole number of rows"),
        ({"smooth": "3"}, "--smooth '3': expected a whole number of rows"),
        ({"metric": "learn/loss", "x": "evaluate/episodes"}, "no row has both learn/loss and evaluate/episodes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, write_run, monkeypatch, settings, message):
    write_run(tmp_path / "dqn", iterations=20)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match=message):
        plot_runs([tmp_path / "dqn"], **settings)
    assert not list(tmp_path.glob("curve*"))


def test_runs_without_any_row_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ReportError, match="They have no metrics"):
        plot_runs([tmp_path])


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_are_drawn(tmp_path):
    for seed in (0, 1):
        rows = [{"env_step": step, "evaluate/episode_return_mean": (-1) ** (step + seed) * 1.7e308} for step in range(4)]
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    assert plot_runs([tmp_path], out=tmp_path / "curve.svg").stat().st_size > 1000


@pytest.mark.parametrize("place", ["file/curve.svg", "folder.svg"])
def test_a_picture_that_cannot_be_written_is_refused_with_its_path(place, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"env_step": 1, "evaluate/episode_return_mean": 2.0}\n')
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(OSError, match=f"cannot write {tmp_path / place}: .*is a f"):
        plot_runs([tmp_path], out=tmp_path / place)
