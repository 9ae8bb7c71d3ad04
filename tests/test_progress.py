"""Progress: what a terminal and what a log show of planned, running and failed work."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading

import pytest
from rich.console import Console

from xbench.progress import Progress
from xbench.reports import progress as reporting
from xbench.reports.progress import BarProgress, LineProgress, show_progress


class Clock:
    """Time that moves only when told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reporting, "now", clock)
    return clock


@pytest.fixture
def bar(clock: Clock) -> BarProgress:
    return BarProgress(Console(file=io.StringIO(), force_terminal=True, width=120))


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=40)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(bar: BarProgress, width: int = 120) -> str:
    """The bar as it would be drawn now."""
    console = Console(file=io.StringIO(), width=width)
    console.print(bar.bar.make_tasks_table(bar.bar.tasks))
    return text(console)


def test_the_silent_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Progress()
    silent.plan(3.0)
    silent.note("something")
    with silent.task("work", 1.0):
        pass
    with pytest.raises(ZeroDivisionError), silent.task("work", 1.0):
        _ = 1 // 0
    assert capsys.readouterr() == ("", "")


# -- the bar -----------------------------------------------------------------------------------


def test_the_bar_names_what_is_going_on(bar: BarProgress) -> None:
    bar.plan(4.0)
    with bar.task("one", 1.0), bar.task("two", 3.0):
        assert "one; two" in row(bar)
    assert "working" in row(bar)
    assert "one" not in row(bar)


def test_tasks_of_several_threads_end_in_any_order(bar: BarProgress) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(bar.task("one", 1.0))
        second.enter_context(bar.task("two", 1.0))
        first.close()
        assert "two" in row(bar)
        assert "one" not in row(bar)


def test_the_bar_is_as_long_as_what_has_passed_and_what_is_left(
    bar: BarProgress, clock: Clock
) -> None:
    bar.plan(4.0)
    assert "0%" in row(bar)
    with bar.task("one", 1.0):
        clock.now_s += 1.0
    assert "25%" in row(bar)
    bar.later(6.0)
    assert "10%" in row(bar)
    bar.later(0.0)
    with bar.task("two", 3.0):
        clock.now_s += 3.0
    assert "100%" in row(bar)


def test_the_time_left_follows_what_work_really_takes(bar: BarProgress, clock: Clock) -> None:
    assert "left" not in row(bar), "nothing is known yet"
    bar.plan(10.0)
    assert "10 s left" in row(bar)
    with bar.task("one", 2.0):
        clock.now_s += 4.0  # twice as long as planned
    assert "16 s left" in row(bar)
    with bar.task("rest", 8.0):
        clock.now_s += 1.0
    assert "left" not in row(bar)


def test_what_comes_later_is_added_as_it_was_said_last(bar: BarProgress, clock: Clock) -> None:
    bar.plan(10.0)
    bar.later(100.0)
    bar.later(30.0)
    with bar.task("one", 5.0):
        clock.now_s += 10.0
    # The pace is that of this stage: whoever says what follows knows what that takes.
    assert "40 s left" in row(bar)


def test_nothing_is_said_of_the_time_while_what_follows_is_not_known(
    bar: BarProgress, clock: Clock
) -> None:
    bar.later(None)
    bar.plan(10.0)
    with bar.task("one", 5.0):
        clock.now_s += 5.0
    assert "left" not in row(bar)
    bar.later(0.0)
    assert "5 s left" in row(bar)


def test_every_stage_has_a_pace_of_its_own(bar: BarProgress, clock: Clock) -> None:
    bar.plan(0.3)
    for _ in range(3):  # In floating point 0.1 + 0.1 + 0.1 is not 0.3.
        with bar.task("import", 0.1):
            clock.now_s += 50.0
    bar.plan(10.0)
    assert "10 s left" in row(bar)
    with bar.task("one", 5.0):
        clock.now_s += 10.0
    assert "10 s left" in row(bar)
    bar.plan(5.0)  # More work in the middle of a stage goes on at its pace.
    assert "20 s left" in row(bar)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.6, "1 s"),
        (99.4, "99 s"),
        (99.6, "1:40 min"),
        (605, "10:05 min"),
        (5999.4, "99:59 min"),
        (5999.6, "1:40 h"),
        (90_000, "25:00 h"),
    ],
)
def test_a_time_to_wait_for(seconds: float, shown: str) -> None:
    assert reporting.clock(seconds) == shown


def test_work_that_fails_is_no_longer_going_on(bar: BarProgress) -> None:
    bar.plan(2.0)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), bar.task("doomed", 1.0):
            raise error
    assert "doomed" not in row(bar)
    assert "left" not in row(bar)


def test_the_same_label_twice_ends_once_each(bar: BarProgress) -> None:
    with bar.task("same", 1.0):
        with bar.task("same", 1.0):
            assert "same; same" in row(bar)
        assert "same" in row(bar)
    assert "same" not in row(bar)


def test_a_long_label_is_cut_and_brackets_are_text(bar: BarProgress) -> None:
    room = reporting.WIDEST
    with bar.task("x" * 200, 1.0):
        assert "x" * (room - 1) + "…" in row(bar)
        assert "x" * room not in row(bar)
    with bar.task("[bold]R0[t=3][/bold]", 1.0):
        assert "[bold]R0[t=3][/bold]" in row(bar)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_line_of_a_run_fits_its_terminal(clock: Clock, width: int) -> None:
    bar = BarProgress(Console(file=io.StringIO(), force_terminal=True, width=width))
    bar.later(5999.0)
    with bar.task("round 10/30, case 64/64: autoencoder infer ort(torch) cpu", 1.0):
        line = row(bar, width).rstrip("\n")
    assert "\n" not in line
    assert line.startswith(f"{line[0]} round 10/30, ")
    assert line.rstrip().endswith("0% 99:59 min left"), "what matters is never cut"


def test_a_note_stays_above_the_bar(bar: BarProgress) -> None:
    bar.note("[red]is not markup[/red]")
    assert "note: [red]is not markup[/red]\n" in text(bar.bar.console)


def test_threads_lose_no_work(bar: BarProgress) -> None:
    def work() -> None:
        for _ in range(50):
            bar.plan(1.0)
            with bar.task("one", 1.0):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bar.planned, bar.done, bar.active) == (200.0, 200.0, [])


# -- lines -------------------------------------------------------------------------------------


def test_a_line_per_finished_task(screen: Console, clock: Clock) -> None:
    lines = LineProgress(screen)
    lines.plan(5.0)
    with lines.task("round 1/2: infer [cpu]", 1.0):
        clock.now_s += 2.25
        assert text(screen) == ""
    assert text(screen) == "round 1/2: infer [cpu]: 2.2 s\n"


def test_a_task_that_fails_is_not_called_finished(screen: Console) -> None:
    with pytest.raises(ValueError, match="no"), LineProgress(screen).task("doomed", 1.0):
        raise ValueError("no")
    assert text(screen) == ""


def test_a_note_is_one_line_however_long(screen: Console) -> None:
    LineProgress(screen).note("word " * 50)
    assert text(screen) == "word " * 50 + "\n"


# -- which of them -----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable that tells rich what the terminal can do."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def test_a_terminal_gets_a_bar(plain_environment: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    plain_environment.setattr(sys, "stderr", terminal)
    with show_progress() as progress:
        assert isinstance(progress, BarProgress)
        progress.plan(1.0)
        with progress.task("measuring", 1.0):
            progress.bar.refresh()
        progress.note("this stays")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "measuring" in shown
    assert "note: this stays" in shown


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_log_gets_lines(plain_environment: pytest.MonkeyPatch, term: str) -> None:
    log = Terminal() if term == "dumb" else io.StringIO()
    plain_environment.setenv("TERM", term)
    plain_environment.setattr(sys, "stderr", log)
    with show_progress() as progress, progress.task("measuring", 1.0):
        pass
    assert re.fullmatch(r"measuring: \d+\.\d s\n", log.getvalue())
    assert "\x1b" not in log.getvalue()


def test_the_bar_is_taken_down_where_a_run_fails(plain_environment: pytest.MonkeyPatch) -> None:
    plain_environment.setattr(sys, "stderr", Terminal())
    shown: list[BarProgress] = []

    def interrupted() -> None:
        with show_progress() as progress:
            assert isinstance(progress, BarProgress)
            assert progress.bar.live.is_started
            shown.append(progress)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not shown[0].bar.live.is_started
