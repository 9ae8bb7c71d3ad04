"""What is stored comes back, and whatever is wrong with a store or a file is one message."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench import cli, store
from xbench.errors import StoreError
from xbench.result import (
    SCHEMA,
    Agreement,
    CaseResult,
    Conditions,
    Document,
    Evidence,
    Latency,
    LossTable,
    Measurement,
    Noise,
    OperatorCheck,
    Operators,
    OpTime,
    Placement,
    Profile,
    Ratio,
    Run,
    Samples,
    Soak,
    SoakWindow,
    TensorMetrics,
    Trend,
    Visit,
)
from xbench.spec import Case
from xbench.store import Store, decode, encode

FULL = Path("/dev/full")


def document(name: str = "20250101-000000-aaaa", started: str = "2025-01-01") -> Document:
    """A document in which no field has its default."""
    case = Case(
        model="m", size="tiny", phase="train", engine="ort", device="cuda", source="tf",
        env="e", threads=3, precision="fp64", batch=2, shape={"x": (2, 3)}, draws="native",
        cycle=({"x": (4, 3)},), concurrency=2, graph="g", arm="B",
        loss="L", options={"a": "b"}, seed=7,
    )  # fmt: skip
    result = CaseResult(
        key=case.key,
        case=case,
        status="fell_back",
        reason="it ran on the cpu",
        digests={"inputs": "d"},
        samples=[Samples(1, 2, [0.1, 1e-9], per_sample=3, warmup=4, steady=False, device_s=[0.1])],
        latency=Latency(
            median_s=0.1, ci_low_s=0.05, ci_high_s=0.2, p90_s=0.3, p99_s=0.4, n=2, processes=1
        ),
        ratio=Ratio(to="k", ratio=1.5, ci_low=1.0, ci_high=2.0, rounds=6, p=0.001, family=3,
                    margin=0.02, floor=0.01, verdict="slower"),
        first_run_s=1.0,
        load_s=2.0,
        compile_s=3.0,
        compile_cold_s=4.0,
        peak_memory_bytes=2**40,
        items_per_s=10.0,
        device_median_s=0.09,
        end_to_end_s=0.2,
        effective_precision="fp32",
        visits=[Visit(shape={"x": (2, 3)}, first_s=0.5, samples=Samples(
            1, 2, [0.1], per_sample=3, warmup=4, steady=False, device_s=[0.1]))],
        conditions=[Conditions(
            wall_s=1.0, cpus=2, own_cpu_s=0.5, foreign_cpus=0.1, steal=0.01, throttled_s=0.1,
            throttle_events=1, memory_stall=0.1, swapped_bytes=4096, available_bytes=2**30,
            gpu={"clock": "1"})],
        soak=Soak(
            duration_s=300.0,
            windows=[SoakWindow(at_s=1.0, n=9, median_s=0.1, p99_s=0.2, memory_bytes=2**20)],
            trends=[Trend(what="median", change=0.1, p=0.001, verdict="rising")]),
        placement=[Placement("cpu", 5, 0.5, {"Conv": 2})],
        loss=[0.5, 0.25],
        profile=Profile(
            wall_s=1.0, steps=3, unattributed_s=0.5, truncated=True, correction="none",
            ops=[OpTime("Conv", "Convolution", "conv", "forward", 1.5, 0.5)],
        ),
        environment="env",
        notes=["a note"],
        asked=False,
    )  # fmt: skip
    metrics = TensorMetrics(
        name="outputs/y", bitwise_equal=True, differing=3, subnormal_only=True, top1=0.75,
        histogram=[1, 2], rms=1e-300, max_abs=1.0, p99_abs=2.0, max_rel=3.0, scaled=4.0,
        max_ulp=5.0, cosine=-1.0, snr_db=-6.0, reference_rms=7.0, elements=8, problem="p",
    )  # fmt: skip
    check = OperatorCheck(
        node="n", op="Conv+Relu", output="t", error_rms=1.0, limit_rms=2.0, terms=27, bound="b"
    )
    operators = Operators(
        checked=5, worst=[check], unchecked=["If (n): not known"], remark="r", optimizer=True
    )
    evidence = Evidence(
        tensor="outputs/y", error_rms=1.0, other_error_rms=0.5, source_error_rms=2.0,
        spread_rms=3.0, rounding_rms=4.0, narrow_rms=5.0, graph_rms=6.0, self_rms=7.0,
        operators=operators, ties=2, terms=9, spread_ulps=16, draws=8, decided_by="d",
    )  # fmt: skip
    return Document(
        schema=SCHEMA,
        run=Run(
            id=name,
            started=started,
            command=["run", "é 🙂"],
            xbench="0",
            wall_s=1.5,
            interrupted=True,
            request={"models": ["m"]},
        ),
        environments={"env": {"python": "3"}},
        cases=[result],
        agreements=[
            Agreement(
                a="x",
                b="y",
                what="outputs",
                tensors=[metrics],
                evidence=evidence,
                tolerance=0.1,
                verdict="agree",
                sentence="s",
                telling=False,
            )
        ],
        losses=[
            LossTable(model="m", batch=2, loss="L", data="d", baseline_name="n", baseline=[0.5])
        ],
        noise=Noise(machine="m", measured="t", pair_sd=0.01, processes=24, run_sd=0.02, runs=4),
        notes=["n"],
        exit_status=3,
        exit_reasons=["r"],
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


# -- JSON --------------------------------------------------------------------------------------


def leaves(value: Any) -> Iterator[msgspec.Struct]:
    """Every struct in a document."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from leaves(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def test_the_document_of_these_tests_leaves_no_field_at_its_default() -> None:
    found = list(leaves(document()))
    for struct in found:
        for field in msgspec.structs.fields(struct):
            value = getattr(struct, field.name)
            assert value != field.default, field.name
            assert value or isinstance(value, bool), f"{field.name} says nothing"
    kinds = {kind for kind in vars(sys.modules["xbench.result"]).values() if isinstance(kind, type)}
    structs = {kind for kind in kinds if issubclass(kind, msgspec.Struct)} - {Measurement}
    assert structs == {type(struct) for struct in found}


def test_a_document_survives_json() -> None:
    assert decode(encode(document()), "it") == document()


def test_the_json_has_the_documented_names() -> None:
    plain = msgspec.json.decode(encode(document()))
    assert list(plain) == ["schema", "run", "environments", "cases", "agreements", "losses",
                           "noise", "notes", "exit_status", "exit_reasons"]  # fmt: skip
    (case,), (agreement,) = plain["cases"], plain["agreements"]
    assert {"status", "reason", "samples", "latency", "first_run_s", "load_s", "compile_s",
            "peak_memory_bytes", "placement", "loss", "profile"} <= set(case)  # fmt: skip
    assert set(case["profile"]["ops"][0]) == {"op", "class", "kind", "stage", "count", "time_s"}
    assert set(case["samples"][0]) >= {"process", "round", "values_s"}
    assert {
        "a", "b", "what", "tensors", "evidence", "tolerance", "verdict", "sentence", "telling",
    } == set(agreement)  # fmt: skip


def test_the_json_is_read_by_a_person_and_ends_in_a_line() -> None:
    text = encode(document()).decode()
    assert text.startswith('{\n "schema": 1,\n')
    assert text.endswith("}\n")
    assert "é 🙂" in text


OLDEST = b"""
{"schema": 1, "run": {"id": "r", "started": "s", "command": ["run"], "xbench": "0.1.0"},
"environments": {}, "cases": [{"key": "k", "status": "ok", "case": {"model": "m", "size": "tiny",
"phase": "infer", "engine": "torch", "device": "cpu"}}], "agreements": []}"""


def test_a_file_of_schema_1_without_later_fields_is_read() -> None:
    found = decode(OLDEST, "it")
    assert found.cases[0].case.label == "torch cpu"
    assert (found.exit_status, found.losses, found.cases[0].asked) == (0, [], True)


def test_fields_that_a_later_version_added_are_passed_over() -> None:
    assert decode(OLDEST.replace(b'"schema": 1,', b'"schema": 1, "later": [{}],'), "it")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            OLDEST.replace(b'"schema": 1', b'"schema": 2'),
            "has schema 2; this xbench reads schema 1",
        ),
        (OLDEST.replace(b'"schema": 1', b'"schema": 0'), "has schema 0"),
        (b'{"schema": 99}', "has schema 99"),
        (OLDEST[:-30], "truncated"),
        (b"", "truncated"),
        (b"not JSON", "malformed"),
        (b"\x89PNG\r\n\xff\xfe", "malformed"),
        (b"[1, 2]", "Expected `object`"),
        (b"{}", "missing required field `schema`"),
        (b'{"schema": "1"}', "Expected `int`"),
        (b'{"schema": 1}', "missing required field `run`"),
        (OLDEST.replace(b'"ok"', b"7"), "$.cases[0].status"),
        (b'{"schema": 1, "run": ' + b"[" * 100_000, "recursion"),
        (b'{"x": ' + b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_not_a_result_is_named_with_its_fault(
    data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "r.json").write_bytes(data)
    with pytest.raises(StoreError) as caught:
        store.read(str(tmp_path / "r.json"), tmp_path / "none")
    assert message in str(caught.value)
    assert str(tmp_path / "r.json") in str(caught.value)


@given(st.binary(max_size=60), st.integers(0, len(encode(document()))))
@settings(max_examples=100)
def test_no_damage_raises_anything_else(junk: bytes, at: int) -> None:
    whole = encode(document())
    for data in (junk, whole[:at] + junk + whole[at:], whole[:at]):
        with contextlib.suppress(StoreError):
            assert decode(data, "it").schema == SCHEMA


# -- the store ---------------------------------------------------------------------------------


def test_a_run_comes_back_as_it_was(path: Path) -> None:
    Store(path).save(document())
    assert Store(path).load(document().run.id) == document()
    assert Store(path).runs() == [document().run]


def fill(path: Path, *names: str) -> Store:
    filled = Store(path)
    for name in names:
        filled.save(document(name, started=f"day {name}"))
    return filled


def test_runs_are_listed_the_newest_first(path: Path) -> None:
    filled = fill(path, "2", "3", "1")
    assert [run.id for run in filled.runs()] == ["3", "2", "1"]
    assert filled.load("last").run.id == "3"


@pytest.mark.parametrize(("name", "found"), [("ab", "abc"), ("abc", "abc"), ("x", "xyz")])
def test_a_prefix_finds_the_run(path: Path, name: str, found: str) -> None:
    assert fill(path, "abc", "xyz").load(name).run.id == found


def test_a_prefix_of_several_runs_names_them(path: Path) -> None:
    filled = fill(path, "abc", "abd", "xyz")
    for name in ("a", "ab"):
        with pytest.raises(StoreError, match=f"'{name}' fits several runs: abc, abd$"):
            filled.load(name)


@pytest.mark.parametrize("name", ["b", "bc", "abcd", "%", "a%", "_bc", "\\", "a\\%", "lastly"])
def test_what_no_run_is_called(path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="no stored run is called"):
        fill(path, "abc").load(name)


def test_ids_with_signs_of_patterns_are_found(path: Path) -> None:
    filled = fill(path, "a%b", "a_c", "a\\d")
    assert [filled.load(name).run.id for name in ("a%", "a_", "a\\")] == ["a%b", "a_c", "a\\d"]


def test_the_same_run_is_not_stored_twice(path: Path) -> None:
    filled = fill(path, "1")
    with pytest.raises(StoreError, match="UNIQUE"):
        filled.save(document("1"))
    assert len(filled.runs()) == 1


def test_a_store_that_is_not_there_is_said_and_not_made(path: Path) -> None:
    for act in (Store(path).runs, lambda: Store(path).load("last")):
        with pytest.raises(
            StoreError, match=r"no runs are stored yet .*store.sqlite does not exist"
        ):
            act()
    assert not path.exists()


def test_folders_are_made(path: Path) -> None:
    deep = path.parent / "a" / "b?c#d%20" / "s.sqlite"
    fill(deep, "1")
    assert deep.is_file()
    assert Store(deep).load("1").run.id == "1"


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XBENCH_STORE", str(tmp_path / "here"))
    assert store.default_path() == tmp_path / "here"
    monkeypatch.setenv("XBENCH_STORE", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store.default_path().name == "results.sqlite"
    assert store.default_path().parent.name == "xbench"


def test_a_name_is_a_file_where_there_is_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, "stored", "twice")
    monkeypatch.chdir(path.parent)
    Path("file.json").write_bytes(encode(document("file")))
    Path("twice").write_bytes(encode(document("file")))
    assert store.read("file.json", path).run.id == "file"
    assert store.read("twice", path).run.id == "file"
    assert store.read("stored", path).run.id == "stored"
    with pytest.raises(StoreError, match=r"cannot read absent.json: No such file"):
        store.read("absent.json", path)
    Path("folder.json").mkdir()
    with pytest.raises(StoreError, match=r"cannot read folder.json: Is a directory"):
        store.read("folder.json", path)
    with pytest.raises(StoreError, match=r"cannot read x*: File name too long"):
        store.read("x" * 4000, path)


# -- a store that is damaged, foreign, newer or cannot be written ------------------------------


def execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_store_of_a_newer_version_is_neither_read_nor_written(path: Path) -> None:
    filled = fill(path, "1")
    execute(path, "PRAGMA user_version=2")
    for act in (filled.runs, lambda: filled.load("1"), lambda: filled.save(document("2"))):
        with pytest.raises(StoreError, match=r"newer xbench \(store version 2, this one knows 1\)"):
            act()
    execute(path, "PRAGMA user_version=1")
    assert [run.id for run in filled.runs()] == ["1"]


@pytest.mark.parametrize("content", [b"no database at all, but a long text" * 100, b""])
def test_a_file_that_is_no_store(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"cannot read the store {path}"):
        Store(path).runs()


def test_a_text_file_is_not_overwritten(path: Path) -> None:
    path.write_bytes(b"somebody's notes" * 100)
    with pytest.raises(StoreError, match=f"cannot write to the store {path}"):
        Store(path).save(document())
    assert path.read_bytes() == b"somebody's notes" * 100


@pytest.mark.parametrize("column", ["summary", "document"])
def test_a_damaged_row_is_named(path: Path, column: str) -> None:
    filled = fill(path, "1")
    execute(path, f"UPDATE runs SET {column} = '{{\"id\": '")
    with pytest.raises(StoreError, match=r"damaged.*truncated"):
        filled.runs() if column == "summary" else filled.load("1")


def test_a_stored_document_of_another_schema_is_named(path: Path) -> None:
    filled = Store(path)
    filled.save(msgspec.structs.replace(document("1"), schema=9))
    with pytest.raises(StoreError, match=r"run 1 in .*store.sqlite has schema 9"):
        filled.load("1")


def test_a_place_below_a_file_cannot_be_written(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError, match="cannot write to the store"):
        Store(path / "s.sqlite").save(document())
    with pytest.raises(StoreError):
        Store(path / "s.sqlite").runs()


def test_a_folder_in_place_of_the_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match="cannot write to the store"):
        Store(path).save(document())
    with pytest.raises(StoreError, match="cannot read the store"):
        Store(path).runs()


def test_a_full_disk_keeps_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill(path, "1")
    connect = sqlite3.connect

    def limited(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        return connection

    large = msgspec.structs.replace(document("2"), notes=["x" * 100_000])
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", limited)
        with pytest.raises(StoreError, match=r"cannot write to the store .* disk is full"):
            filled.save(large)
    assert [run.id for run in filled.runs()] == ["1"]
    assert filled.load("1") == document("1", "day 1")
    filled.save(large)
    assert filled.load("2") == large


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_store import ROUNDS, Store, document

folder, own, other = Path(sys.argv[2]), sys.argv[3], sys.argv[4]
try:
    for round_ in range(ROUNDS):
        (folder / f"{own}{round_}").touch()
        while not (folder / f"{other}{round_}").exists():
            pass
        Store(folder / f"new{round_}").save(document(own))
        Store(folder / "one").save(document(f"{own}-{round_}"))
finally:
    for round_ in range(ROUNDS):
        (folder / f"{own}{round_}").touch()
"""
ROUNDS = 20


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Twenty times at the same moment, into one store and into one that neither has made yet."""
    here = str(Path(__file__).parent)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, here, str(tmp_path), *names],
            stderr=subprocess.PIPE,
            text=True,
        )
        for names in ("ab", "ba")
    ]
    try:
        for writer in writers:
            said = writer.communicate(timeout=60)[1]
            assert writer.returncode == 0, said
    finally:
        for writer in writers:
            writer.kill()
    expected = {f"{name}-{round_}" for name in "ab" for round_ in range(ROUNDS)}
    assert {run.id for run in Store(tmp_path / "one").runs()} == expected
    for round_ in range(ROUNDS):
        assert {run.id for run in Store(tmp_path / f"new{round_}").runs()} == {"a", "b"}


def test_a_new_store_that_others_open_too_is_written_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses at once to change the journal while another process does the same."""

    class Refusing(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if "journal_mode=" in sql:
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *arguments)

    def mode() -> str:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Refusing))
        Store(path).save(document("1"))
    assert mode() == "delete"
    Store(path).save(document("2"))
    assert mode() == "wal", "readers and a writer do not block each other"
    assert len(Store(path).runs()) == 2


# -- JSON files --------------------------------------------------------------------------------


def test_json_is_written(tmp_path: Path) -> None:
    cli.write(str(tmp_path / "r.json"), encode(document()))
    assert store.read(str(tmp_path / "r.json"), tmp_path / "none") == document()


@pytest.mark.parametrize(
    ("target", "reason"), [("", "Is a directory"), ("none/r.json", "No such file or directory")]
)
def test_json_that_cannot_be_written_is_named(tmp_path: Path, target: str, reason: str) -> None:
    with pytest.raises(StoreError, match=f"cannot write {tmp_path / target}: {reason}"):
        cli.write(str(tmp_path / target), b"{}")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_json_on_a_full_disk() -> None:
    with pytest.raises(StoreError, match="cannot write /dev/full: No space left on device"):
        cli.write(str(FULL), encode(document()))
