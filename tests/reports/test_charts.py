"""Charts: what is in the file, whoever the user is and whatever things are called."""

import math
import re
import subprocess
import sys
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from ding_lite.reports import aggregate_seeds
from ding_lite.reports.charts import PALETTE, Line, Panel, draw, inline_svg, style_of, write
from ding_lite.reports.labels import format_value, label_of, tick, time_unit


def panel(*names, x="env_step", metric="learn/loss", length=50, **settings):
    seeds = [(np.arange(1.0, length + 1), np.sin(np.arange(length) / 9 + seed)) for seed in range(3)]
    lines = [Line(name, aggregate_seeds(seeds), place) for place, name in enumerate(names)]
    return Panel(lines, metric, x, **settings)


def texts(svg):
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.slow
def test_a_chart_names_its_axes_with_their_units_its_experiments_and_its_goal():
    figure = draw([panel("dqn", "ppo", x="time_s", metric="time/learn", length=600, threshold=0.5)], legend=True)

    assert {"wall time (min)", "time/learn (s)", "dqn", "ppo", "stop value 0.5"} <= set(texts(write(figure, "svg")))


def test_the_legend_stands_outside_the_axes():
    figure = draw([panel(*(f"experiment {number}" for number in range(9)))], legend=True)
    figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes

    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0 + 1


def test_nothing_is_cut_off_however_long_the_name():
    short, long = (write(draw([panel(name)], legend=True), "svg") for name in ("short", "long " * 40))
    widths = [float(ElementTree.fromstring(svg).get("width").removesuffix("pt")) for svg in (short, long)]

    assert widths[1] > 2 * widths[0]


@pytest.mark.few
@pytest.mark.parametrize("name", ["$x^2$", "$\\frac{", "_hidden", "<b>&amp;", "a\nb", ""])
def test_a_name_is_shown_as_it_is(name):
    figure = draw([panel(name, metric="learn/$" + name.strip())], legend=True)

    assert name.replace("\n", "") in "".join(texts(write(figure, "svg"))).replace("\n", "")


def test_half_a_letter_is_a_question_mark():
    found = texts(write(draw([panel("a\ud800b", metric="\udfff", title="\udc80")], legend=True), "svg"))

    assert {"a?b", "?"} <= set(found)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes():
    for kind in ("svg", "png", "pdf"):
        assert write(draw([panel("dqn")], legend=True), kind) == write(draw([panel("dqn")], legend=True), kind)


def test_the_settings_of_a_user_change_nothing():
    import matplotlib

    before = write(draw([panel("dqn")], legend=True), "svg")
    with matplotlib.rc_context({"text.usetex": True, "axes.grid": False, "svg.fonttype": "path", "font.size": 30}):
        assert write(draw([panel("dqn")], legend=True), "svg") == before


def test_ids_of_several_charts_on_a_page_do_not_clash_and_what_refers_to_them_still_does():
    svgs = [inline_svg(draw([panel("dqn")]), f"chart{number}", {}) for number in range(2)]
    ids = [re.findall(r'\bid="([^"]*)"', svg) for svg in svgs]

    assert not set(ids[0]) & set(ids[1])
    for svg, own in zip(svgs, ids):
        referred = re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", svg)
        assert referred
        assert {first or second for first, second in referred} <= set(own)


def test_an_inlined_chart_is_one_element_without_size_whose_colours_are_those_of_the_page():
    svg = inline_svg(draw([panel("dqn", "ppo")]), "c", {colour: f"var(--{place})" for place, colour in enumerate(PALETTE)})

    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert " width=" not in svg.partition(">")[0]
    assert "<style" not in svg
    assert "var(--0)" in svg
    assert not any(colour in svg for colour in PALETTE)


def test_more_experiments_than_colours_differ_in_their_dashes():
    styles = [style_of(place) for place in range(3 * len(PALETTE))]

    assert len(set(styles)) == len(styles)


def test_where_not_all_seeds_were_measured_the_line_is_dotted():
    x = np.arange(10.0)
    curve = aggregate_seeds([(x, x), (x[:5], x[:5])])
    figure = draw([Panel([Line("dqn", curve, 0)], "learn/loss", "env_step")])
    thick = [line for line in figure.axes[0].lines if line.get_linewidth() > 1]

    assert [line.get_linestyle() for line in thick] == ["-", ":"]
    assert np.flatnonzero(np.isfinite(thick[0].get_ydata())).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(np.isfinite(thick[1].get_ydata())).tolist() == [4, 5, 6, 7, 8, 9]


def test_a_single_point_can_be_seen():
    point = (np.array([3.0]), np.array([7.0]))
    figure = draw([Panel([Line("dqn", aggregate_seeds([point]), 0)], "learn/loss", "env_step")])

    assert figure.axes[0].lines[-1].get_marker() == "o"


@pytest.mark.slow
def test_drawing_warns_about_nothing_and_leaves_pyplot_alone():
    code = (
        "import sys, numpy as np\nfrom ding_lite.reports import aggregate_seeds\n"
        "from ding_lite.reports.charts import *\nx = np.arange(9.0)\n"
        "figure = draw([Panel([Line('a', aggregate_seeds([(x, x), (x, -x)]), 0)], 'm', 'env_step')], legend=True)\n"
        "write(figure, 'png'), write(figure, 'svg')\nprint('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("False\n", "")


def test_numbers_of_any_size_are_drawn():
    for size in (1e-12, 1e12, 0.0):
        x = np.arange(20.0) * 1e6
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            write(draw([Panel([Line("a", aggregate_seeds([(x, x * size), (x, -x * size)]), 0)], "m", "env_step")]), "svg")


def test_labels_have_units_and_ticks_are_short():
    assert [time_unit(seconds)[1] for seconds in (5, 180, 181, 10_800, 10_801)] == ["s", "s", "min", "min", "h"]
    assert [label_of(name) for name in ("system/gpu_memory_mb", "collect/env_steps_throughput", "my/own_mb")] == [
        "GPU memory (MB)",
        "collect/env_steps_throughput (1/s)",
        "my/own_mb (MB)",
    ]
    assert [tick(value) for value in (-1500, 0.30000000000000004, 2e9, 1e-7)] == ["\u22121.5k", "0.3", "2G", "1e\u221207"]


def test_different_options_have_different_texts():
    values = [12.345678, 12.345671, 1234567.0, 1234568.0, 1e-7, 0.5, 100.00025, math.nan, True, None, [0.1, 1 / 3]]
    found = [format_value(value) for value in values]
    assert found[:2] == ["12.345678", "12.345671"]
    assert found[4:] == ["1e-07", "0.5", "100.00025", "nan", "true", "none", "[0.1, 0.3333333333333333]"]
    assert len({*found}) == len(values)
