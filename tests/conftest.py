"""What every test shares: no user's folders are touched, no property test has a deadline.

The code is imported from a tree of links to it, which every process that runs tests makes for
itself: what a test adds to the models of one is seen by nobody else, and nothing of it is left
behind in the repository, even where the tests are killed.
"""

from __future__ import annotations

import compileall
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is not a wrong program; and the same commit passes or fails every time: new
# examples are looked for by `make prove`, or with HYPOTHESIS_PROFILE=search.
settings.register_profile("xbench", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "xbench"))


ROOT = Path(__file__).parent.parent
TREE = tempfile.TemporaryDirectory(prefix="xbench-tree-")


def link(root: Path, tree: Path) -> None:
    """Give ``tree`` the folders of the code in ``root``, with a link for each file of them."""
    for name in ("xbench", "models", "exporters", "runners", "reports"):
        shutil.copytree(
            root / name,
            tree / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
            copy_function=os.symlink,
        )


link(ROOT, Path(TREE.name))
# Once: hundreds of processes import it, also where Python is told to write no bytecode.
compileall.compile_dir(Path(TREE.name) / "xbench", quiet=1)
# For this process, and for all that it starts.
sys.path.insert(0, TREE.name)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (TREE.name, os.environ.get("PYTHONPATH"))))
# In the background of a script Ctrl-C is ignored, by all that is started too; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what importing all tests has made out of every garbage collection that follows.

    Measuring collects garbage first: a quarter of a second each time, of this process alone.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache, store and data of the user stay out of the tests."""
    monkeypatch.setenv("XBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XBENCH_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.delenv("XBENCH_DATA", raising=False)
    monkeypatch.delenv("XBENCH_FAKE", raising=False)


@pytest.fixture(scope="session")
def export_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of exports for all tests: exporting takes seconds."""
    return tmp_path_factory.mktemp("exports")
