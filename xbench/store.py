"""Where runs are kept: one SQLite file, and JSON documents in and out.

History of the document's schema: 1, the first.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import platformdirs

from xbench.errors import StoreError
from xbench.result import SCHEMA, Document, Run

VERSION = 1
"""``PRAGMA user_version`` of the file."""

TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    summary BLOB NOT NULL,
    document BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_started ON runs (started);
"""


def default_path() -> Path:
    """``XBENCH_STORE``, else ``results.sqlite`` in the user's data folder."""
    named = os.environ.get("XBENCH_STORE")
    return Path(named) if named else platformdirs.user_data_path("xbench") / "results.sqlite"


def encode(document: Document) -> bytes:
    """The document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode(data: bytes, name: str) -> Document:
    """The document in ``data``. Raises StoreError that names ``name`` and what is wrong with it."""
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise StoreError(f"{name} has schema {schema}; this xbench reads schema {SCHEMA}")
        return msgspec.json.decode(data, type=Document)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{name} is not a result of xbench, or it is damaged: {error}") from error


class _Schema(msgspec.Struct):
    schema: int


class Store:
    """Runs in one SQLite file. Every method raises StoreError that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def connection(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """One transaction. Makes the file to ``write``; to read, it must be there."""
        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif not self.path.exists():
                raise StoreError(f"no runs are stored yet ({self.path} does not exist)")
            mode = "rwc" if write else "ro"
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
                if write:
                    # Refused at once while others open the same new file; a later writer sets it.
                    with suppress(sqlite3.OperationalError):
                        connection.execute("PRAGMA journal_mode=WAL")
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version > VERSION:
                    raise StoreError(
                        f"{self.path} was written by a newer xbench (store version {version}, "
                        f"this one knows {VERSION})"
                    )
                if write and version < VERSION:
                    connection.executescript(TABLES)
                    connection.execute(f"PRAGMA user_version={VERSION}")
                with connection:
                    yield connection
        except (OSError, sqlite3.Error) as error:
            doing = "write to" if write else "read"
            raise StoreError(f"cannot {doing} the store {self.path}: {error}") from error

    def save(self, document: Document) -> None:
        """Add a run."""
        run = document.run
        row = (run.id, run.started, msgspec.json.encode(run), msgspec.json.encode(document))
        with self.connection(write=True) as connection:
            connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", row)

    def runs(self) -> list[Run]:
        """Every stored run, the newest first."""
        with self.connection(write=False) as connection:
            rows = connection.execute("SELECT summary FROM runs ORDER BY started DESC, id DESC")
            try:
                return [msgspec.json.decode(row[0], type=Run) for row in rows]
            except msgspec.MsgspecError as error:
                raise StoreError(f"a run in the store {self.path} is damaged: {error}") from error

    def load(self, name: str) -> Document:
        """The run whose id starts with ``name``; ``last`` is the newest."""
        with self.connection(write=False) as connection:
            if name == "last":
                query, arguments = (
                    "SELECT id, document FROM runs ORDER BY started DESC, id DESC LIMIT 1",
                    (),
                )
                rows = connection.execute(query, arguments).fetchall()
            else:
                pattern = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
                query = "SELECT id, document FROM runs WHERE id LIKE ? ESCAPE '\\'"
                rows = connection.execute(query, (pattern,)).fetchall()
        if not rows:
            raise StoreError(f"no stored run is called {name!r}; `xbench show --list` lists them")
        if len(rows) > 1:
            found = ", ".join(row[0] for row in rows)
            raise StoreError(f"{name!r} fits several runs: {found}")
        return decode(rows[0][1], f"run {rows[0][0]} in {self.path}")


def read(name: str, store: Path) -> Document:
    """A stored run, or the JSON file called ``name`` where there is one."""
    path = Path(name)
    try:
        if path.suffix == ".json" or path.is_file():
            return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return Store(store).load(name)
