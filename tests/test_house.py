"""The arrows of the house: imports only ever point downwards."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import radixserve

ROOT = Path(radixserve.__file__).parent
REPOSITORY = ROOT.parent
TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))

BASE = {"bounded", "common", "errors", "config", "folders", "tenant", "tokens", "__init__"}
"""What everyone may import, and what imports nobody."""

ARROWS = {
    "cache": set(),
    "scheduling": {"cache"},
    "attention": {"scheduling", "kernels"},
    "model": {"attention", "scheduling", "cache", "kernels"},
    "text": set(),
    "explain": {"cache"},
    "engine": {"scheduling", "cache", "model", "text"},
    "server": {"engine", "text", "scheduling", "cache", "tenants", "simulation", "explain"},
    "terminal": {
        *("engine", "text", "model", "scheduling", "cache", "tenants", "simulation", "explain"),
        "remote",
        "lint",
    },
    "rag": {"engine", "scheduling", "prompts", "remote"},
    "cli": {"terminal", "server", "engine"},
    "kernels": set(),
    "prompts": set(),
    "simulation": {"cache"},
    "tenants": set(),
    "remote": set(),
    "lint": {"explain", "simulation", "server", "text"},
}
PURE = ("cache", "scheduling")
IMPURE = {"torch", "numpy", "asyncio", "time", "datetime", "os", "socket", "threading"}


def modules() -> list[tuple[str, Path]]:
    """Each module with the part of the house that it belongs to."""
    found = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        found.append((relative.parts[0].removesuffix(".py"), path))
    for folder in ("kernels", "prompts"):
        found += [(folder, path) for path in (REPOSITORY / folder).rglob("*.py")]
    return found


def imported(path: Path) -> set[str]:
    """Dotted names of everything that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def parts(names: set[str]) -> set[str]:
    """The parts of radixserve among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("radixserve.")}


@pytest.mark.parametrize(
    ("part", "path"), modules(), ids=lambda value: getattr(value, "stem", value)
)
def test_imports_point_downwards(part: str, path: Path):
    used = {each for each in parts(imported(path)) if not each.startswith("__")}
    if part in BASE:
        assert used <= BASE
        return
    assert part in ARROWS, f"{part} has no place in the house"
    assert used - BASE - {part} <= ARROWS[part]


@pytest.mark.parametrize("part", PURE)
def test_cache_and_scheduling_know_no_tensor_no_clock_and_no_thread(part: str):
    for path in (ROOT / part).rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & IMPURE, f"{path} imports {roots & IMPURE}"


def test_an_arrow_that_points_upwards_is_seen(tmp_path: Path):
    module = tmp_path / "module.py"
    module.write_text("def late():\n    from radixserve.server import app\n", encoding="utf-8")
    assert parts(imported(module)) == {"server"}


def test_no_file_outgrows_its_idea():
    long = {
        str(path.relative_to(REPOSITORY)): count
        for path in (*(path for _, path in modules()), *TESTS)
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long


def test_tests_take_nothing_from_other_tests():
    taken = {
        f"{path.relative_to(REPOSITORY)} from {name}"
        for path in TESTS
        for name in imported(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    }
    assert not taken


def test_every_folder_of_the_package_is_installed():
    told = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    named = set(told["tool"]["setuptools"]["packages"])
    found = {path.parent for _, path in modules() if path.name == "__init__.py"}
    there = {".".join(folder.relative_to(REPOSITORY).parts) for folder in found}
    mapped = {name if name.startswith("radixserve") else f"radixserve.{name}" for name in there}
    assert mapped == named


@pytest.mark.parametrize("page", ["architecture.md", "architecture.svg"])
def test_every_folder_has_its_place_in_the_pictures(page: str):
    shown = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    folders = {part for part in ARROWS if part not in {path.stem for path in ROOT.glob("*.py")}}
    assert [folder for folder in folders if f"{folder}/" not in shown] == []


def test_the_kernels_are_not_importable_by_their_bare_name(tmp_path: Path):
    code = "import importlib.util as u; print(u.find_spec('kernels'), u.find_spec('prompts'))"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["None", "None"]
