"""Rules that no single module can keep: the wheel, the clock, who catches what, documentation.

Each check of the sources is itself checked on a snippet that breaks the rule.
"""

from __future__ import annotations

import ast
import email
import functools
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import xbench

ROOT = Path(__file__).parent.parent
LINKED = ("models", "exporters", "runners", "reports")
FORBIDDEN = {"torch.py", "onnx.py", "tensorflow.py"}
SOURCES = [
    *sorted((ROOT / "xbench").glob("*.py")),
    *(path for name in LINKED for path in sorted((ROOT / name).rglob("*.py"))),
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    """Every source file of the product, by name and parsed."""
    return [(name_of(path), ast.parse(path.read_bytes())) for path in SOURCES]


def test_the_sources_are_found() -> None:
    names = {name_of(path) for path in SOURCES}
    assert {"xbench/bench.py", "models/prednet/pt.py", "exporters/tf.py"} <= names
    assert {"runners/ort.py", "reports/terminal.py"} <= names


# -- the wheel ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the repository: building leaves traces in the folder it builds."""
    copy = tmp_path_factory.mktemp("copy") / "repository"
    unwanted = ("*cache*", "*.egg-info", "build", "benchmarks", "docs", ".*")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*unwanted))
    out = copy.parent / "out"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(out), str(copy)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_one_top_level_package(wheel: Path) -> None:
    top = {name.split("/")[0] for name in files_of(wheel)}
    assert top == {"xbench", f"xbench-{xbench.__version__}.dist-info"}


def test_the_wheel_has_every_source_file_and_no_other(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        if path.is_relative_to(ROOT / "xbench")
        else f"xbench/{name_of(path)}"
        for path in SOURCES
    }
    assert {name for name in files_of(wheel) if name.endswith(".py")} == expected


def test_the_wheel_has_what_belongs_to_the_sources(wheel: Path) -> None:
    readmes = {f"xbench/{name_of(path)}" for path in (ROOT / "models").glob("*/README.md")}
    assert "xbench/models/prednet/README.md" in readmes
    assert readmes | {"xbench/py.typed"} <= files_of(wheel)


def test_only_the_package_can_be_imported_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import importlib.util, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import xbench, xbench.models, xbench.runners, xbench.exporters, xbench.reports\n"
        "print(xbench.__file__)\n"
        "for name in sys.argv[2:]:\n    assert importlib.util.find_spec(name) is None, name\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path), *LINKED, "tests"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = f"xbench-{xbench.__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
    assert "xbench = xbench.cli:main" in scripts
    required = metadata.get_all("Requires-Dist") or []
    base = {re.split(r"[^\w-]", item)[0].lower() for item in required if "extra ==" not in item}
    assert {"numpy", "typer", "msgspec"} <= base
    assert not base & {"torch", "tensorflow", "onnx", "onnxruntime", "onnxruntime-gpu", "ale-py"}
    extras = {"torch", "tf", "ort", "ort-gpu", "data", "report", "all"}
    assert extras <= set(metadata.get_all("Provides-Extra") or [])


# -- folders and names -------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKED)
def test_the_code_folders_are_linked_into_the_package(name: str) -> None:
    assert (ROOT / "xbench" / name).readlink() == Path("..") / name
    assert (ROOT / name / "__init__.py").is_file()


def test_no_file_hides_a_framework() -> None:
    everywhere = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    assert not [name_of(path) for path in everywhere if path.name in FORBIDDEN]


# -- the clock ---------------------------------------------------------------------------------

CLOCK = re.compile(r"(perf_counter|monotonic|process_time|thread_time|time)(_ns)?|clock_gettime\w*")


def clocks(tree: ast.Module) -> Iterator[int]:
    """Lines that take a clock from ``time``, under whatever name, or from ``timeit``."""
    names = {"time"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname for a in node.names if a.name == "time" and a.asname}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                found = name in names and CLOCK.fullmatch(attribute) is not None
            case ast.ImportFrom(module="time", names=imported):
                found = any(CLOCK.fullmatch(item.name) for item in imported)
            case ast.ImportFrom(module="timeit"):
                found = True
            case ast.Import(names=imported):
                found = any(item.name == "timeit" for item in imported)
            case _:
                continue
        if found:
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("import time\ntime.perf_counter()", True),
        ("import time\ntime.time_ns()", True),
        ("import time as t\nt.monotonic()", True),
        ("from time import perf_counter_ns as now", True),
        ("import timeit", True),
        ("import time\ntime.sleep(1)", False),
        ("from xbench.bench import now\nnow()", False),
    ],
)
def test_a_clock_is_noticed(code: str, reads: bool) -> None:
    assert bool(list(clocks(ast.parse(code)))) is reads


def test_only_the_bench_reads_a_clock() -> None:
    found = {name for name, tree in trees() if any(clocks(tree))}
    assert found == {"xbench/bench.py"}


# -- who catches what --------------------------------------------------------------------------

USERS = {"XbenchError", "UsageError", "DataError", "StoreError"}
BROAD = {"Exception", "BaseException"}


def names_in(node: ast.AST | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    return {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node)
            if isinstance(n, ast.Name | ast.Attribute)}  # fmt: skip


def caught(tree: ast.Module) -> set[str]:
    """Names of exceptions that end here: in a handler that does not raise, or in ``suppress``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            found |= set() if again else names_in(node.type)
        elif isinstance(node, ast.Call) and "suppress" in names_in(node.func):
            found |= {name for argument in node.args for name in names_in(argument)}
    return found


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("try:\n    f()\nexcept (OSError, e.DataError):\n    pass", {"OSError", "DataError", "e"}),
        ("try:\n    f()\nexcept:\n    pass", {"BaseException"}),
        ("try:\n    f()\nexcept Exception:\n    raise", set()),
        ("with contextlib.suppress(XbenchError):\n    f()", {"XbenchError"}),
    ],
)  # fmt: skip
def test_a_catch_is_noticed(code: str, names: set[str]) -> None:
    assert caught(ast.parse(code)) == names


def test_only_the_command_line_catches_what_the_user_must_change() -> None:
    found = {name for name, tree in trees() if caught(tree) & USERS}
    assert found == {"xbench/cli.py"}


def test_only_the_worker_catches_everything() -> None:
    # There what an engine raises becomes the status of its case.
    found = {name for name, tree in trees() if caught(tree) & BROAD}
    assert found == {"xbench/worker.py"}


# -- docstrings --------------------------------------------------------------------------------

SHORT = 5
"""A function of so few lines may be its own description."""


def hooks() -> dict[str, set[str]]:
    """Documented methods of the classes that others override, by class."""
    found: dict[str, set[str]] = {}
    for _, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                found[node.name] = {item.name for item in methods if ast.get_docstring(item)}
    return found


def undocumented(tree: ast.Module, hooks: dict[str, set[str]]) -> Iterator[str]:
    """Public names that need a docstring and have none.

    Exempt are private and nested functions, functions of up to ``SHORT`` lines, overrides of
    documented methods, and empty modules.
    """
    if tree.body and not ast.get_docstring(tree):
        yield "the module"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    inherited: dict[str, set[str]] = {
        c.name: {
            hook for base in c.bases for name in names_in(base) for hook in hooks.get(name, ())
        }
        for c in classes
    }
    members = [(c.name, item) for c in classes for item in c.body if not c.name.startswith("_")]
    for owner, node in [*((None, node) for node in tree.body), *members]:
        match node:
            case ast.ClassDef(name=name):
                needs = True
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                needs = lines > SHORT and name not in inherited.get(owner or "", set())
            case _:
                continue
        if needs and not name.startswith("_") and not ast.get_docstring(node):
            yield f"{owner}.{name}" if owner else name


BODY = "    x = 1\n" * (SHORT + 1)
METHOD = "    'c'\n    def hook(self):\n" + "        x = 1\n" * (SHORT + 1)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = 1", ["the module"]),
        ("", []),
        (f"'m'\ndef f():\n{BODY}", ["f"]),
        (f"'m'\ndef f():\n    'f'\n{BODY}", []),
        (f"'m'\ndef _f():\n{BODY}", []),
        ("'m'\ndef f():\n    x = 1", []),
        ("'m'\nclass C:\n    x = 1", ["C"]),
        (f"'m'\nclass C(Base):\n{METHOD}", []),
        (f"'m'\nclass C(Other):\n{METHOD}", ["C.hook"]),
    ],
)  # fmt: skip
def test_a_missing_docstring_is_noticed(code: str, found: list[str]) -> None:
    assert list(undocumented(ast.parse(code), {"Base": {"hook"}})) == found


def test_public_names_are_documented() -> None:
    known = hooks()
    missing = [f"{name}: {item}" for name, tree in trees() for item in undocumented(tree, known)]
    assert not missing, "\n".join(missing)


# -- links -------------------------------------------------------------------------------------

LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def relative_links(text: str) -> list[str]:
    """Targets of links within the repository, without their anchors."""
    found = ["".join(match) for match in LINK.findall(FENCE.sub("", text))]
    inside = [target for target in found if not re.match(r"[a-z]+:|#|//", target)]
    return [target.split("#")[0] for target in inside]


def test_links_are_found() -> None:
    text = (
        "[a](x.md) ![b](y.png 'title') [c](https://e.org/z.md) [d](#here) [e](z.md#part)\n"
        "[f]: w.md\n```\n[g](fenced.md)\n```\n"
    )
    assert relative_links(text) == ["x.md", "y.png", "z.md", "w.md"]


def test_every_relative_link_leads_somewhere() -> None:
    folders = ("docs", "benchmarks", "models", "tests")
    pages = [*ROOT.glob("*.md"), *(p for name in folders for p in (ROOT / name).rglob("*.md"))]
    assert any(page.name == "README.md" for page in pages)
    broken = [
        f"{name_of(page)}: {target}"
        for page in pages
        for target in relative_links(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
