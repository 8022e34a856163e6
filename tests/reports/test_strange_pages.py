"""Pages of runs that mean harm, and of runs that have almost nothing in them, or far too much."""

import pytest

from ding_lite.reports import ReportError, write_page

EVIL = "<script>alert(1)</script>"
EVIL_PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50" onload="alert(2)"><script>alert(3)</script>'
    '<image href="http://127.0.0.1:9/x.png" width="9" height="9"/><rect width="100" height="50"/></svg>'
)


@pytest.mark.slow
def test_nothing_that_comes_from_a_run_is_run(tmp_path, write_run, write_video, mp4, open_page):
    folder = write_run(
        tmp_path / "runs" / '"><img src=x onerror=alert(4)>', iterations=12, exp_name=EVIL, changes={"env.id": EVIL}
    )
    write_run(tmp_path / "runs" / "other", iterations=12, exp_name="{{ 7 * 7 }}", changes={"policy.learn.batch_size": 3})
    with open(folder / "metrics.jsonl", "a") as file:
        for step in (10_000, 10_001):
            file.write(f'{{"env_step": {step}, "<img src=x onerror=alert(5)>/\'\\"{EVIL}": {step}}}\n')
    for name in ("pipeline.svg", "timeline.svg"):
        (folder / name).write_text(EVIL_PICTURE)
    (folder / "lanes.txt").write_text("</pre>" + EVIL)
    write_video(folder, 1, mp4).with_suffix(".json").write_text('{"evaluation": "<img src=x onerror=alert(6)>"}')
    (folder / "videos" / "evaluation_000001_return_101.mp4").rename(folder / "videos" / "<img src=x onerror=alert(7)>.mp4")
    opened = open_page(write_page([tmp_path / "runs"], tmp_path / "report.html"))
    opened.unfold()
    opened.page.wait_for_timeout(300)

    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [(tmp_path / "report.html").as_uri()]
    assert opened.page.inner_text("h1") == f"{EVIL} and {{{{ 7 * 7 }}}}"
    assert opened.look("document.querySelectorAll('script').length") == 1
    assert opened.look("[...document.querySelectorAll('img')].every(each => each.src.startsWith('data:'))")


@pytest.mark.slow
def test_even_a_script_that_got_onto_the_page_would_not_run(tmp_path, write_run, open_page):
    page = write_page([write_run(tmp_path / "dqn", iterations=12)], tmp_path / "report.html").read_text()
    (tmp_path / "page.html").write_text(page.replace("</footer>", "</footer><script>document.title = 'taken'</script>"))
    opened = open_page(tmp_path / "page.html")

    assert opened.page.title() == "dqn: CartPole-v1"
    assert "Content Security Policy" in opened.said[0]


def test_runs_with_almost_nothing_in_them_have_a_page_too(tmp_path, open_page):
    for name, content in (("empty", ""), ("one", '{"env_step": 1}\n'), ("rubbish", "rubbish\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(content)
    opened = open_page(write_page([tmp_path], tmp_path / "report.html"))

    assert opened.said == []
    words = opened.page.inner_text("#runs")
    assert "there is no config.json." in words
    assert "metrics.jsonl has no row yet." in words
    assert opened.page.locator("#curves").count() == 0


@pytest.mark.slow
def test_too_many_metrics_are_named_and_not_drawn(tmp_path, write_run, monkeypatch):
    monkeypatch.setattr("ding_lite.reports.pages._MOST_CHARTS", 5)
    folder = write_run(tmp_path / "dqn", iterations=2)
    names = [f"zz/{number:03}" for number in range(20)]
    with open(folder / "metrics.jsonl", "a") as file:
        for step in (500, 600):
            file.write("{" + ", ".join(f'"{name}": {step}' for name in ["env_step", *names]) + "}\n")
    page = write_page([folder], tmp_path / "report.html").read_text()

    assert page.count("<svg xmlns") < 20
    assert "zz/019" in page[page.index("Not drawn, for there are too many") :]


@pytest.mark.slow
def test_where_there_is_no_run_there_is_no_page(tmp_path):
    with pytest.raises(ReportError, match="is not a run"):
        write_page([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
