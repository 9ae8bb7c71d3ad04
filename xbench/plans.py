"""A measuring command in a file, to be repeated exactly: here, later, or on another machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from xbench import __version__, tensors
from xbench.errors import DataError, StoreError
from xbench.plan import Request

SCHEMA = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request, and the SHA-256 of every file it reads: another file would be another run."""

    schema: int
    xbench: str
    request: Request
    files: dict[str, str] = {}


def save(request: Request, path: Path) -> None:
    """Write the plan of a request. Raises StoreError where ``path`` cannot be written."""
    plan = Plan(schema=SCHEMA, xbench=__version__, request=request, files=digests(request))
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    except OSError as error:
        raise StoreError(f"cannot write the plan {path}: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise StoreError(f"cannot write the plan {path}: {error.object!r} is not UTF-8") from error


def load(path: Path) -> Request:
    """The request in a plan.

    Raises DataError where the file is no plan, has another schema, or names a file that is not
    there or has changed since.
    """
    try:
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise DataError(f"{path} is a plan of schema {schema}; this xbench reads {SCHEMA}")
        plan = msgspec.json.decode(data, type=Plan)
    except OSError as error:
        raise DataError(f"cannot read the plan {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DataError(f"{path} is not a plan of xbench, or it is damaged: {error}") from error
    now = digests(plan.request)
    for name, digest in plan.files.items():
        if now.get(name) != digest:
            state = "is not there" if name not in now else "has changed since"
            raise DataError(f"{name}, which the plan {path} measures, {state}")
    return plan.request


def digests(request: Request) -> dict[str, str]:
    """SHA-256 of the files and folders that a request names and that are there."""
    named = [*request.files, request.inputs, request.data]
    paths = [Path(name) for name in named if name is not None]
    try:
        return {str(path): digest(path) for path in paths if path.exists()}
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder: over the names and contents of all its files."""
    if path.is_file():
        return tensors.digest_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = [f"{file.relative_to(path)}\0{tensors.digest_file(file)}" for file in files]
    return tensors.digest_text("\n".join(listed).encode(errors="surrogateescape"))


class _Schema(msgspec.Struct):
    schema: int
