"""What every test shares: no user's folders are touched, no property test has a deadline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is not a wrong program; and the same commit passes or fails every time: new
# examples are looked for by `make prove`, or with HYPOTHESIS_PROFILE=search.
settings.register_profile("xbench", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "xbench"))


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
