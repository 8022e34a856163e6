"""The house: who may import whom, and how."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = {
    "ding_lite.basics": 0,
    "ding_lite.pipeline": 0.1,
    "ding_lite.engine": 0.2,
    "ding_lite.functional": 0,
    "ding_lite.sinks": 0.1,
    "ding_lite.data": 1,
    "ding_lite.metrics": 1,
    "ding_lite.ranks": 1,
    "ding_lite.processes": 1,
    "ding_lite.contexts": 2,
    "ding_lite.envs": 2,
    "ding_lite.reports": 2,
    "ding_lite.datasets": 3,
    "ding_lite.nn": 3,
    "ding_lite.policy_state": 3.1,
    "ding_lite.policy_check": 3.2,
    "ding_lite.compiling": 3.3,
    "ding_lite.policy_base": 3.4,
    "ding_lite.run_configs": 3.5,
    "ding_lite.policy_parts": 3.6,
    "ding_lite.policy": 3.7,
    "ding_lite.rewards": 3.7,
    "ding_lite.config": 4,
    "ding_lite.rollout": 4,
    "ding_lite.distributed": 5,
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


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] in TOP:
        return TOP[parts[0]]
    return parts[0] if parts[0] != "ding_lite" or len(parts) == 2 else f"ding_lite.{parts[1]}"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(path: Path) -> list[tuple[str, str, list[str], bool]]:
    """(file and line, module, names, whether it stands at the top of the file) of each import."""
    found = []
    body = parsed(path)
    top = set(body.body) | {inner for node in body.body if isinstance(node, (ast.If, ast.With)) for inner in node.body}
    for node in ast.walk(body):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        if isinstance(node, ast.Import):
            found += [(where, alias.name, [], node in top) for alias in node.names]
        else:
            module = "." * node.level + (node.module or "")
            found.append((where, module, [alias.name for alias in node.names], node in top))
    return found


def breach_of(package: str, module: str, names: list[str]) -> str | None:
    """What is wrong with an import of `names` from `module` in a file of `package`."""
    if module.startswith("."):
        return "imports relatively: write the whole name, from ding_lite...."
    if module.partition(".")[0] in TOP:
        return f"imports {module}, a second copy of it: write ding_lite.{module}."
    if not module.startswith("ding_lite"):
        return None
    if "*" in names:
        return "imports *: name what it needs."
    if private := [name for name in names if name.startswith("_") and not name.startswith("__")]:
        return f"imports {private}, private names of another file: make them public there, or move them."
    target = ".".join(module.split(".")[:2])
    if package == "ding_lite" or target in (package, "ding_lite"):
        return None
    if target not in LAYERS:
        return f"imports {target}, which has no layer: give it one in this test and in docs/design.md."
    if LAYERS[target] >= LAYERS[package]:
        return (
            f"is in {package} (layer {LAYERS[package]}) and imports {target} (layer {LAYERS[target]}). "
            "Move what both need to a layer below, or pass it in as an argument."
        )
    return None


def test_files_import_only_layers_below_their_own_and_their_own_package():
    found = [
        (where, breach_of(package_of(path), module, names)) for path in FILES for where, module, names, _ in imports_of(path)
    ]
    breaches = [f"{where} {breach}" for where, breach in found if breach]
    assert not breaches, "\n".join(breaches)


def test_policies_and_environments_do_not_load_the_datasets():
    """They are for offline pipelines, and take their time."""
    code = "import sys, ding_lite.policy, ding_lite.envs; print([it for it in sys.modules if '.datasets' in it])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "module", "names", "words"),
    [
        ("ding_lite.data", ".trees", ["tree"], "imports relatively"),
        ("ding_lite.policy", "contexts.online", ["OnlineRLContext"], "a second copy"),
        ("ding_lite.policy", "ding_lite.nn", ["*"], "name what it needs"),
        ("ding_lite.policy", "ding_lite.nn", ["_width"], "private names"),
        ("ding_lite.policy", "ding_lite.cellar", ["wine"], "has no layer"),
        ("ding_lite.nn", "ding_lite.policy", ["Policy"], "layer 3) and imports ding_lite.policy (layer 3.7)"),
        ("ding_lite.functional", "ding_lite.basics", ["plain"], "layer 0) and imports ding_lite.basics (layer 0)"),
    ],
)
def test_each_breach_of_the_layers_is_named(package, module, names, words):
    assert words in breach_of(package, module, names)


def test_the_table_of_the_design_has_these_layers():
    rows = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("| layer |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = {}
    for row in rows:
        _, layer, packages, *_ = row.split("|")
        for package in re.findall(r"`([a-z_/]+)/`", packages):
            listed[TOP.get(package, package.replace("/", "."))] = float(layer)
    assert listed == LAYERS
    assert list(listed.values()) == sorted(listed.values(), reverse=True)


def module_of(path: Path) -> str:
    """The name that a file is imported under."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    whole = ["ding_lite", *parts] if parts[0] in TOP else parts
    return ".".join(whole[:-1] if whole[-1] == "__init__" else whole)


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one once more at the end; empty where there is none."""
    done: set[str] = set()
    for start in imports:
        way, waiting = [start], [iter(sorted(imports[start]))]
        while way:
            target = next((it for it in waiting[-1] if it not in done), None)
            if target is None:
                done.add(way.pop())
                waiting.pop()
            elif target in way:
                return [*way[way.index(target) :], target]
            else:
                way.append(target)
                waiting.append(iter(sorted(imports[target])))
    return []


def test_no_files_import_each_other_in_a_circle_not_even_for_types_alone():
    modules = {module_of(path): path for path in FILES}
    imports = {
        name: {
            target
            for _, module, names, _ in imports_of(path)
            for target in (module, *(f"{module}.{one}" for one in names))
            if target in modules and target != name
        }
        for name, path in modules.items()
    }
    assert sum(map(len, imports.values())) > len(imports)
    assert not (circle := circle_in(imports)), f"{' -> '.join(circle)}: a lower file asks for a Protocol of what it uses."


@pytest.mark.parametrize(
    ("imports", "circle"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": set(), "b": {"a", "d"}, "c": {"b"}, "d": {"c"}}, ["b", "d", "c", "b"]),
    ],
)
def test_a_circle_of_imports_is_found(imports, circle):
    assert circle_in(imports) == circle


def test_our_own_imports_stand_at_the_top_of_the_file():
    breaches = [
        f"{where} imports {module} inside a function: move it to the top."
        for path in FILES
        for where, module, _, is_top in imports_of(path)
        if module.startswith("ding_lite") and not is_top
    ]
    assert not breaches, "\n".join(breaches)


def test_files_say_in_their_first_line_what_they_hold():
    breaches = [
        f"{path.relative_to(ROOT)} has no docstring: its first line says what it holds."
        for path in FILES
        if not ast.get_docstring(parsed(path))
    ]
    assert not breaches, "\n".join(breaches)


def test_an_init_only_hands_names_on():
    breaches = []
    for path in (path for path in FILES if path.name == "__init__.py"):
        for node in parsed(path).body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_name = isinstance(node, ast.Assign) and node.targets[0].id in ("__all__", "__version__")
            # Names for type checkers alone, or hidden from them.
            is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "not TYPE_CHECKING")
            handed_on = [*node.body, *node.orelse] if is_for_types else [node]
            if not (is_text or is_name or all(isinstance(it, ast.ImportFrom) for it in handed_on)):
                breaches.append(f"{path.relative_to(ROOT)}:{node.lineno} does more than that.")
    assert not breaches, "\n".join(breaches)


def test_every_folder_with_python_in_it_is_a_package():
    folders = {path.parent for path in FILES if package_of(path) not in ("examples", "benchmarks")}
    missing = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()]
    assert not missing, f"{missing} would be missing from a wheel: add an __init__.py."


def test_the_engine_imports_nothing_but_the_standard_library_at_its_top():
    breaches = [
        f"{where} imports {module}"
        for package in ("basics", "pipeline", "engine")
        for path in (ROOT / "ding_lite" / package).glob("*.py")
        for where, module, _, is_top in imports_of(path)
        if is_top and module.partition(".")[0] not in ("ding_lite", *sys.stdlib_module_names)
    ]
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize("name", TOP)
def test_the_top_level_folders_are_linked_into_the_package(name):
    link = ROOT / "ding_lite" / name
    assert link.is_symlink(), f"ding_lite/{name} has to be a link to ../{name}"
    assert link.resolve() == ROOT / name
