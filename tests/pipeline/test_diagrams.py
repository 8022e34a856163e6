"""A pipeline as a picture: every middleware is in it, the file is whole, and what cannot be drawn is refused."""

import struct
import sys
import zlib
from xml.etree import ElementTree

import pytest

from ding_lite.engine import Context, Task, contract

NAMES = ["step_collector", "<lambda>", "Odd<&\"'>Name", "save"]


class Named:
    def __init__(self, name):
        self.__name__ = name

    def __call__(self, ctx):
        return None


def pipeline(loop):
    fields = tuple(f"field_{number}_of_many" for number in range(12))
    loop.use(contract(writes=("trajectories",), stage="collect")(Named(NAMES[0])))
    loop.use(lambda ctx: None)
    loop.use(contract(reads=fields, may_read=("maybe",), reads_after=("late",), stage="learn")(Named(NAMES[2])))
    loop.use(contract(writes_after=("saved",))(Named(NAMES[3])))
    return loop


def texts(path):
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return [element.text for element in root.iter() if element.tag.endswith("text")]


def png_size(path):
    """Width and height of a PNG all of whose parts fit their checksums."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    position, kinds, size = 8, [], None
    while position < len(content):
        length, kind = struct.unpack(">I4s", content[position : position + 8])
        body = content[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack(">I", content[position + 8 + length : position + 12 + length])
        assert zlib.crc32(kind + body) == checksum
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        kinds.append(kind)
        position += 12 + length
    assert kinds[-1] == b"IEND"
    return size


class TestSvg:
    def test_it_names_every_middleware_its_stage_and_its_fields(self, tmp_path):
        with Task().start() as loop:
            path = pipeline(loop).draw(tmp_path / "pipeline.svg")
        words = texts(path)

        assert [word for word in words if word in NAMES] == NAMES
        assert [word for word in words if word in ("collect", "no contract", "learn")] == [
            "collect",
            "no contract",
            "learn",
            "no contract",
        ]
        together = " ".join(words)
        for field in ("trajectories", "field_0_of_many", "field_11_of_many", "maybe?", "late", "saved"):
            assert field in together

    def test_it_names_the_context_and_a_plain_functions_place(self, tmp_path):
        class Mine(Context):
            pass

        with Task().start(ctx=Mine()) as loop:
            together = " ".join(texts(pipeline(loop).draw(tmp_path / "pipeline.svg")))

        assert "Mine" in together
        assert "test_diagrams.py:" in together

    def test_its_boxes_stand_below_each_other_and_inside_the_picture(self, tmp_path):
        with Task().start() as loop:
            root = ElementTree.parse(pipeline(loop).draw(tmp_path / "pipeline.svg")).getroot()
        boxes = [element for element in root.iter() if element.tag.endswith("rect") and "rx" in element.attrib]
        edges = [edge for box in boxes for edge in (float(box.get("y")), float(box.get("y")) + float(box.get("height")))]

        assert len(boxes) == len(NAMES)
        assert edges == sorted(edges)
        assert edges[-1] <= float(root.get("height"))


def test_a_png_is_a_whole_picture(tmp_path):
    with Task().start() as loop:
        pipeline(loop)
        width, height = png_size(loop.draw(tmp_path / "pipeline.png"))
        root = ElementTree.parse(loop.draw(tmp_path / "pipeline.svg")).getroot()

    assert width == pytest.approx(float(root.get("width")), abs=1)
    assert height == pytest.approx(float(root.get("height")), abs=1)


@pytest.mark.parametrize("name", ["lone \ud800 surrogate", "control \x01 character"])
def test_a_name_may_have_any_characters(tmp_path, name):
    with Task().start() as loop:
        loop.use(Named(name))
        assert name.replace(name[name.index(" ") + 1], "?", 1) in texts(loop.draw(tmp_path / "pipeline.svg"))
        png_size(loop.draw(tmp_path / "pipeline.png"))


@pytest.mark.parametrize("name", ["new/folder/pipeline.svg", "pipeline.svg"])
def test_a_path_may_be_a_string_and_its_folder_need_not_exist(tmp_path, name):
    with Task().start() as loop:
        path = pipeline(loop).draw(str(tmp_path / name))

    assert path == tmp_path / name
    assert path.is_file()


def test_one_middleware_is_a_pipeline_too(tmp_path):
    with Task().start() as loop:
        assert "save" in texts(loop.use(Named("save")).draw(tmp_path / "pipeline.svg"))


@pytest.mark.parametrize("name", ["pipeline.pdf", "pipeline"])
def test_another_ending_is_refused_with_those_that_exist(tmp_path, name):
    with Task().start() as loop, pytest.raises(ValueError, match=r"task\.draw\('.*pipeline.*'\) writes \.svg or \.png: change"):
        pipeline(loop).draw(tmp_path / name)


def test_nothing_to_draw_is_refused_and_leaves_no_file(tmp_path):
    with Task().start() as loop, pytest.raises(ValueError, match=r"nothing to draw: use\(\) some middleware first"):
        loop.draw(tmp_path / "pipeline.svg")
    assert list(tmp_path.iterdir()) == []


def test_a_png_without_matplotlib_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with Task().start() as loop, pytest.raises(ImportError, match=r"needs matplotlib, .* pip install 'ding_lite\[plot\]'"):
        pipeline(loop).draw(tmp_path / "pipeline.png")
