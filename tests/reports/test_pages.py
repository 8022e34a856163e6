"""Pages, opened from a file in a real browser."""

import json
import re
from pathlib import Path

import pytest

from ding_lite.reports import write_page


@pytest.fixture(scope="module")
def report(tmp_path_factory, write_run, write_video, mp4) -> Path:
    """Of three seeds of DQN and three of PPO, with videos and, in one of them, lanes."""
    folder = tmp_path_factory.mktemp("report")
    for seed in range(3):
        write_video(write_run(folder / "runs" / f"dqn_{seed}", "dqn", seed, 150 + 10 * seed), 8, mp4)
        ppo = write_run(folder / "runs" / f"ppo_{seed}", "ppo", seed, 110)
    (ppo / "timeline.svg").write_text((ppo / "pipeline.svg").read_text().replace("interaction_evaluator", "lanes"))
    (ppo / "lanes.txt").write_text("busy: collect 60%, learn 90%\n" + "a long line " * 30)
    return write_page([folder / "runs"], folder / "report.html")


def test_offline_and_online_runs_have_curves_over_the_steps_of_both(tmp_path, write_run):
    for name, counters in (("cql", ("train_iter",)), ("dqn", ("env_step", "train_iter"))):
        values = [{**dict.fromkeys(counters, 10 * i), "time_s": i, "evaluate/episode_return_mean": i} for i in range(3)]
        folder = write_run(tmp_path / "runs" / name, changes={"max_step": 100 + len(counters)})
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, values)) + "\n")
    page = write_page([tmp_path / "runs"], tmp_path / "report.html").read_text()

    assert re.findall(r'name="axis" value="(\w+)"', page) == ["train_iter", "env_step", "time_s"]
    assert re.findall(r"<small>(\w+ steps)</small>", page) == ["gradient steps", "environment steps"]
    assert re.findall(r"Not drawn, [^.<]*\.", page) == ["Not drawn, without environment steps: cql."]


@pytest.mark.slow
def test_the_page_asks_for_nothing_but_itself_and_complains_about_nothing(report, open_page):
    opened = open_page(report)
    opened.unfold()
    opened.page.wait_for_timeout(200)

    assert [url for url in opened.asked if not url.startswith("data:")] == [report.as_uri()]
    assert opened.said == []


@pytest.mark.slow
def test_what_was_compared_is_named_and_every_picture_is_there(report, open_page):
    opened = open_page(report)
    opened.unfold()

    assert opened.page.title() == "dqn and ppo: CartPole-v1"
    assert opened.page.inner_text("h1") == "dqn and ppo"
    for place in ("#summary", "#curves", "#metrics", "#configuration", "#runs"):
        words = opened.page.inner_text(place)
        assert "dqn" in words
        assert "ppo" in words
    sizes = opened.look("[...document.querySelectorAll('img')].map(each => [each.complete, each.naturalWidth, each.alt])")
    assert len(sizes) == 2  # the pipeline, which is the same in all runs, and the lanes
    assert all(complete and width > 0 and alt for complete, width, alt in sizes)


@pytest.mark.slow
def test_the_curves_are_drawn_over_what_one_clicks_or_types(report, open_page):
    opened = open_page(report)
    shown = "[...document.querySelectorAll('#curves .chart')].filter(each => each.offsetParent).map(each => each.dataset.x)"
    assert opened.look(shown) == ["env_step", "env_step"]

    opened.page.get_by_role("radio", name="wall time").click()
    assert opened.look(shown) == ["time_s", "time_s"]
    assert opened.page.get_by_text("wall time (s)").first.is_visible()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.look(shown) == ["env_step", "env_step"]


@pytest.mark.slow
def test_what_is_folded_opens_by_click_and_by_key(report, open_page):
    opened = open_page(report)
    folded = opened.page.locator("#metrics details").first
    assert not folded.locator("svg").first.is_visible()

    folded.locator("summary").click()
    assert folded.locator("svg").first.is_visible()
    opened.page.keyboard.press("Enter")
    assert not folded.locator("svg").first.is_visible()


def assert_nothing_reaches_over_the_edge(opened, width: int) -> None:
    opened.unfold()
    assert opened.look("document.documentElement.scrollWidth") <= width
    beyond = """[...document.querySelectorAll('body *')].filter(each => {
        const box = each.getBoundingClientRect();
        return box.width && !each.closest('.wide, svg') && box.right > innerWidth + 1;
    }).map(each => each.outerHTML.slice(0, 80))"""
    assert opened.look(beyond) == []
    cut = """[...document.querySelectorAll('.chart svg text')].filter(each => {
        const [box, whole] = [each.getBoundingClientRect(), each.closest('svg').getBoundingClientRect()];
        return box.width && (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1);
    }).map(each => each.textContent)"""
    assert opened.look(cut) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 768, 1079, 1081, 1280])
def test_nothing_reaches_over_the_edge(report, open_page, width):
    assert_nothing_reaches_over_the_edge(open_page(report, width=width), width)


@pytest.mark.slow
def test_many_experiments_with_long_names_fit_too(tmp_path, write_run, open_page):
    for number in range(9):
        name = f"runs/{'a_long_name_that_goes_on_' * (number % 3 + 1)}{number:x}x"
        write_run(tmp_path / str(number), exp_name=name, iterations=12, changes={"policy.learn.batch_size": 1 + number})
    page = write_page([tmp_path], tmp_path / "report.html")
    for width in (400, 1100):
        assert_nothing_reaches_over_the_edge(open_page(page, width=width), width)

    legend = open_page(page).look(
        "[...document.querySelectorAll('#curves .swatch line')].map(each => each.getAttribute('stroke') "
        "+ each.getAttribute('stroke-dasharray'))"
    )
    assert len(set(legend)) == 9


@pytest.mark.slow
def test_experiments_in_different_environments_have_charts_of_their_own(tmp_path, write_run, open_page):
    write_run(tmp_path / "a", iterations=12)
    write_run(tmp_path / "b", iterations=12, changes={"env.id": "Acrobot-v1"})
    opened = open_page(write_page([tmp_path], tmp_path / "report.html"))
    charts = opened.page.locator('#curves .chart[data-x="env_step"] figcaption').all_inner_texts()

    assert charts == [
        "mean return at evaluation CartPole-v1",
        "mean return at evaluation Acrobot-v1",
        "mean return while collecting CartPole-v1",
        "mean return while collecting Acrobot-v1",
    ]


@pytest.mark.slow
def test_no_two_things_on_the_page_have_the_same_id(report, open_page):
    ids = open_page(report).look("[...document.querySelectorAll('[id]')].map(each => each.id)")

    assert len(ids) > 100
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(report, open_page, scheme):
    opened = open_page(report, scheme=scheme)
    opened.unfold()
    contrasts = opened.look("""(() => {
        const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
        const behind = each => {
            for (; each; each = each.parentElement) {
                const colour = numbers(getComputedStyle(each).backgroundColor);
                if (colour.length < 4 || colour[3] > 0) return colour;
            }
        };
        return [...document.querySelectorAll('h1, h2, th, td, p, summary, a, label, figcaption, .chart svg text')].map(each => {
            const style = getComputedStyle(each);
            const inks = [numbers(each.closest('svg') ? style.fill : style.color), behind(each)].map(light);
            return [(Math.max(...inks) + 0.05) / (Math.min(...inks) + 0.05), each.textContent];
        });
    })()""")

    assert len(contrasts) > 100
    assert [text for contrast, text in contrasts if contrast < 4.5] == []


@pytest.mark.slow
def test_videos_play(report, open_page):
    opened = open_page(report)
    durations = opened.look("""Promise.all([...document.querySelectorAll('video')].map(each => new Promise(done => {
        const loaded = () => done(each.duration);
        each.readyState > 0 ? loaded() : each.addEventListener('loadedmetadata', loaded);
    })))""")
    assert durations == [1, 1, 1]

    shown = opened.look("""new Promise(done => {
        const video = document.querySelector('video');
        video.addEventListener('timeupdate', () => video.currentTime > 0 && done(video.videoWidth));
        video.play();
    })""")
    assert shown == 64


@pytest.mark.slow
def test_the_page_of_six_runs_is_small_and_the_same_each_time(report):
    page = report.read_bytes()
    without_videos = re.sub(rb"data:video/mp4;base64,[^\"]*", b"", page)

    assert len(without_videos) < 1_000_000
    assert write_page([report.parent / "runs"], report.parent / "again.html").read_bytes() == page
    assert sorted(path.name for path in report.parent.iterdir()) == ["again.html", "report.html", "runs"]
