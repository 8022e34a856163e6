"""The house: who may import whom, and how."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "ding_lite.basics": 0,
    "ding_lite.pipeline": 0.2,
    "ding_lite.engine": 0.4,
    "ding_lite.functional": 0,
    "ding_lite.sinks": 0.2,
    "ding_lite.data": 1,
    "ding_lite.metrics": 1,
    "ding_lite.processes": 1,
    "ding_lite.contexts": 2,
    "ding_lite.envs": 2,
    "ding_lite.reports": 2,
    "ding_lite.nn": 3,
    "ding_lite.hooks": 3.3,
    "ding_lite.policy": 3.5,
    "ding_lite.rewards": 3.5,
    "ding_lite.config": 4,
    "ding_lite.rollout": 4,
    "ding_lite.middleware": 6,
    "ding_lite.commands": 7,
    "examples": 7,
    "benchmarks": 7,
}
TOP = {"contexts": "ding_lite.contexts", "middleware": "ding_lite.middleware"}
FILES = sorted(
    path
    for folder in ("ding_lite", "contexts", "middleware", "examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if not (ROOT / folder == ROOT / "ding_lite" and path.relative_to(ROOT).parts[1] in TOP)
)


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] in TOP:
        return TOP[parts[0]]
    return parts[0] if parts[0] != "ding_lite" or len(parts) == 2 else f"ding_lite.{parts[1]}"


def imports_of(path: Path) -> list[tuple[ast.stmt, str, list[str], bool]]:
    """(statement, module, names, whether it stands at the top of the file) of each import."""
    found = []
    body = ast.parse(path.read_text(encoding="utf-8"))
    top = set(body.body) | {inner for node in body.body if isinstance(node, (ast.If, ast.With)) for inner in node.body}
    for node in ast.walk(body):
        if isinstance(node, ast.Import):
            found += [(node, alias.name, [], node in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.append((node, module, [alias.name for alias in node.names], node in top))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_floors_below_its_own_and_its_own_room(path):
    room = room_of(path)
    for node, module, names, _ in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        assert not module.startswith("."), f"{where} imports relatively: write the whole name, from ding_lite...."
        assert module.partition(".")[0] not in TOP, f"{where} imports {module}, a second copy of it: write ding_lite.{module}."
        if not module.startswith("ding_lite"):
            continue
        assert "*" not in names, f"{where} imports *: name what it needs."
        private = [name for name in names if name.startswith("_") and not name.startswith("__")]
        assert not private, f"{where} imports {private}, private names of another file: make them public there, or move them."
        target = ".".join(module.split(".")[:2])
        if room == "ding_lite" or target in (room, "ding_lite"):
            continue
        assert target in FLOORS, (
            f"{where} imports {target}, which has no floor: give it one in this test and in docs/design.md."
        )
        assert FLOORS[target] < FLOORS[room], (
            f"{where}: {room} (floor {FLOORS[room]}) imports {target} (floor {FLOORS[target]}). Move what both need to a floor "
            "below, or pass it in as an argument."
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_own_imports_stand_at_the_top_of_the_file(path):
    for node, module, _, is_top in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        assert is_top or not module.startswith("ding_lite"), f"{where} imports {module} inside a function: move it to the top."


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_says_in_its_first_lines_what_it_is_and_in_which_room_it_stands(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert text, f"{path.relative_to(ROOT)} has no docstring: its first line says what it holds."
    if room_of(path) not in ("examples", "ding_lite"):
        assert "\nRoom: " in text, (
            f"{path.relative_to(ROOT)} does not name its room: add a line `Room: ding_lite...., floor N.`"
        )


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name == "__init__.py"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_an_init_only_hands_names_on(path):
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_name = isinstance(node, ast.Assign) and node.targets[0].id in ("__all__", "__version__")
        assert is_text or is_name or isinstance(node, ast.ImportFrom), (
            f"{path.relative_to(ROOT)}:{node.lineno} does more than that."
        )


def test_every_folder_with_python_in_it_is_a_package():
    folders = {path.parent for path in FILES if room_of(path) not in ("examples", "benchmarks")}
    missing = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()]
    assert not missing, f"{missing} would be missing from a wheel: add an __init__.py."


def test_the_engine_imports_nothing_but_the_standard_library_at_its_top():
    import sys

    for path in (file for room in ("basics", "pipeline", "engine") for file in (ROOT / "ding_lite" / room).glob("*.py")):
        for node, module, _, is_top in imports_of(path):
            root = module.partition(".")[0]
            assert not is_top or root in ("ding_lite", *sys.stdlib_module_names), f"{path.name}:{node.lineno} imports {module}"


@pytest.mark.parametrize("name", TOP)
def test_the_top_level_folders_are_linked_into_the_package(name):
    link = ROOT / "ding_lite" / name
    assert link.is_symlink(), f"ding_lite/{name} has to be a link to ../{name}"
    assert link.resolve() == ROOT / name
