"""What the guards read from a machine made of files, and what they say of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from xbench import gpu, guards, machine
from xbench.guards import Counters
from xbench.result import Conditions

TICK = machine.TICK_S
CALM = Conditions(wall_s=1.0, cpus=2, own_cpu_s=1.0)


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "own_cpus", lambda: {0, 1})


def tree(root: Path, files: dict[str, str]) -> Path:
    """A machine that consists of these files."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def stat(*busy: int, steal: int = 0, idle: int = 1000) -> str:
    """/proc/stat with a line per CPU; the first line sums up CPUs that nobody asked for."""
    lines = ["cpu  99999 0 0 0 0 0 0 9999 0 0"]
    lines += [f"cpu{k} {ticks} 1 2 {idle} 5 3 4 {steal} 0 0" for k, ticks in enumerate(busy)]
    return "\n".join([*lines, "intr 1 2 3", "ctxt 5"])


def counters(**changes: Any) -> Counters:
    """Readings of a machine that counts nothing."""
    fields: dict[str, Any] = {
        "at_s": 0.0, "own_s": 0.0, "cpus": 2, "busy_s": None, "steal_s": None, "total_s": None,
        "throttled_s": {}, "thermal": {}, "stall_s": None, "swapped_bytes": None,
    }  # fmt: skip
    return Counters(**(fields | changes))


# -- counters ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_cpus")
def test_a_full_machine_is_read(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/stat": stat(100, 200, 400, steal=7),
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/job/cpu.stat": "usage_usec 5\nthrottled_usec 2500000\n",
            "sys/fs/cgroup/user/cpu.stat": "usage_usec 5\nthrottled_usec 500000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n",
            "proc/pressure/memory": "some avg10=0.00 total=1500000\nfull avg10=0.00 total=9\n",
            "proc/vmstat": "pgpgin 1\npswpin 3\npswpout 9\n",
        },
    )
    seen = guards.read(root)
    # user nice system irq softirq of cpu0 and cpu1; cpu2 is not ours.
    assert seen.busy_s == pytest.approx((300 + 2 * (1 + 2 + 3 + 4)) * TICK)
    assert seen.steal_s == pytest.approx(14 * TICK)
    assert seen.total_s == pytest.approx((300 + 2 * (1 + 2 + 3 + 4 + 1000 + 5 + 7)) * TICK)
    groups = {Path(name).name: value for name, value in seen.throttled_s.items()}
    assert groups == pytest.approx({"job": 2.5, "user": 0.5})
    assert sorted(seen.thermal.values()) == [3, 4]
    assert seen.stall_s == pytest.approx(1.5)
    assert seen.swapped_bytes == 3 * guards.PAGE_BYTES
    assert seen.cpus == 2
    assert seen.own_s > 0


def test_a_machine_that_says_nothing_gives_none_and_not_zero(tmp_path: Path) -> None:
    with guards.Watch(root=tmp_path) as watch:
        pass
    seen = msgspec.structs.replace(watch.conditions, wall_s=1.0, own_cpu_s=0.0)
    assert seen == Conditions(wall_s=1.0, own_cpu_s=0.0, cpus=len(machine.own_cpus()))
    assert guards.warnings([watch.conditions]) == []
    assert machine.memory_left(tmp_path) is None
    assert machine.quota(tmp_path) is None


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            # The path of a container that is not mounted inside it: its own group is the root.
            "proc/self/cgroup": "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_throttled 2\nthrottled_time 3000000000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 50000\n",
            "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n",
        },
    )
    assert list(dict(machine.throttled(root)).values()) == [3.0]
    assert machine.quota(root) == 1.5
    # What the files' cache holds can be had back.
    assert machine.memory_left(root) == 150_000
    (root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    assert machine.quota(root) is None


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({"job/cpu.max": "200000 100000", "cpu.max": "max 100000"}, 2.0),
        ({"job/cpu.max": "max 100000", "cpu.max": "50000 100000"}, 0.5),
        ({"job/cpu.max": "max 100000"}, None),
        ({"job/cpu.max": "5 0"}, None),
        ({"job/cpu.max": "nonsense"}, None),
    ],
)
def test_the_least_quota_of_all_groups(
    tmp_path: Path, files: dict[str, str], granted: float | None
) -> None:
    tree(tmp_path, {"proc/self/cgroup": "0::/job\n"})
    tree(tmp_path / "sys/fs/cgroup", files)
    assert machine.quota(tmp_path) == granted


def test_a_group_outside_of_the_namespace_is_not_followed(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/self/cgroup": "0::/../../etc\nnonsense\n"})
    assert machine.control_groups(tmp_path, "cpu") == [tmp_path / "sys/fs/cgroup"]


def test_memory_of_the_machine_and_of_a_group(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": "MemAvailable: 4000 kB\n"})
    assert machine.memory_left(root) == 4000 * 1024
    tree(
        root,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": "3000000\n",
            "sys/fs/cgroup/job/memory.current": "2000000\n",
        },
    )
    assert machine.memory_left(root) == 1_000_000
    (root / "sys/fs/cgroup/job/memory.max").write_text("max\n")
    assert machine.memory_left(root) == 4000 * 1024


# -- what happened between two readings ----------------------------------------------------------


def test_foreign_time_is_all_less_our_own() -> None:
    a = counters(at_s=10, own_s=1, busy_s=50, steal_s=1, total_s=100)
    b = counters(at_s=12, own_s=3, busy_s=53, steal_s=1.2, total_s=104)
    seen = guards.between(a, b, 5, {"name": "g"})
    assert seen.wall_s == 2
    assert seen.own_cpu_s == 2
    assert seen.foreign_cpus == pytest.approx(0.5)
    assert seen.steal == pytest.approx(0.05)
    assert (seen.available_bytes, seen.gpu) == (5, {"name": "g"})
    # Counters are rounded: they may show less than we used.
    less = guards.between(a, counters(at_s=12, own_s=9, busy_s=53), None, {})
    assert (less.foreign_cpus, less.steal) == (0.0, None)


def test_a_short_window_cannot_tell_shares() -> None:
    a = counters(busy_s=0, steal_s=0, total_s=0, stall_s=0, throttled_s={"g": 0})
    b = counters(
        at_s=0.09, busy_s=1, steal_s=1, total_s=2, stall_s=0.009, throttled_s={"g": 0.02}
    )  # fmt: skip
    seen = guards.between(a, b, None, {})
    assert (seen.foreign_cpus, seen.steal) == (None, None)
    # These count finer than a tick.
    assert seen.memory_stall == pytest.approx(0.1)
    assert seen.throttled_s == pytest.approx(0.02)


def test_counters_that_overlap_are_not_added() -> None:
    a = counters(throttled_s={"job": 1.0, "user": 5.0, "gone": 0.0}, thermal={"a": 1, "b": 1})
    b = counters(
        at_s=1, throttled_s={"job": 1.3, "user": 5.1, "new": 9.0}, thermal={"a": 3, "b": 4}
    )
    seen = guards.between(a, b, None, {})
    assert seen.throttled_s == pytest.approx(0.3)
    assert seen.throttle_events == 3


@pytest.mark.usefixtures("two_cpus")
def test_the_watch_compares_its_two_ends(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/stat": stat(0, 0),
            "proc/vmstat": "pswpin 10\n",
            "proc/meminfo": "MemAvailable: 7 kB\n",
        },
    )
    with guards.Watch(root=root) as watch:
        tree(root, {"proc/stat": stat(10**9, 0), "proc/vmstat": "pswpin 12\n"})
    seen = watch.conditions
    assert seen.swapped_bytes == 2 * guards.PAGE_BYTES
    assert seen.available_bytes == 7 * 1024
    # A slow machine may have taken long enough to tell: then it is plain that others were busy.
    assert seen.foreign_cpus is None or seen.foreign_cpus > 1000


# -- before --------------------------------------------------------------------------------------


class Clock:
    """Time that passes when somebody waits, and what happens meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.happens: list[tuple[Path, dict[str, str]]] = []
        monkeypatch.setattr(guards, "now", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for root, files in self.happens:
            tree(root, files)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, two_cpus: None) -> Clock:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    return Clock(monkeypatch)


def test_a_calm_machine_needs_no_words(tmp_path: Path, clock: Clock) -> None:
    root = tree(tmp_path, {"proc/stat": stat(0, 0), "proc/meminfo": "MemAvailable: 99999999 kB"})
    assert guards.before(["cpu"], 2, root, clock.wait) == []
    seen, _ = guards.look(["cpu"], 2, root, clock.wait)
    assert seen.foreign_cpus == 0
    assert seen.wall_s == pytest.approx(guards.LOOK_S)


def test_busy_processes_are_named(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, {"proc/stat": stat(0, 0)})
    ticks = round(1.2 * guards.LOOK_S / TICK)
    clock.happens = [(root, {"proc/stat": stat(ticks, 0)})]
    times = iter(
        [
            {4242: ("python", 10.0), 7: ("cc", 1.0), 8: ("sshd", 5.0)},
            {4242: ("python", 10.294), 7: ("cc", 1.06), 8: ("sshd", 5.0), 9: ("new", 50.0)},
        ]
    )
    monkeypatch.setattr(guards, "foreign_times", lambda: next(times))
    (sentence,) = guards.before(["cpu"], 2, root, clock.wait)
    assert sentence == (
        "other processes keep 1.2 of 2 CPUs busy (top: python 4242 at 98 %, cc 7 at 20 %): stop "
        "those processes, or expect intervals too wide for a verdict"
    )


def test_a_loaded_minute_and_little_memory_and_a_quota(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3.4, 1.0, 1.0))
    root = tree(
        tmp_path,
        {
            "proc/stat": stat(0, 0),
            "proc/meminfo": "MemAvailable: 102400 kB\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
        },
    )
    load, memory, quota = guards.before(["cpu"], 2, root, clock.wait)
    assert load.startswith("the load average of the last minute is 3.4 on 2 CPUs: wait")
    assert memory.startswith("only 100 MiB of memory are left: ")
    assert quota.startswith("the control group grants 1.5 CPUs to 2 threads")
    assert "--threads 1" in quota
    # One thread is all that the quota has to grant.
    assert len(guards.before(["cpu"], 1, root, clock.wait)) == 2


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"scaling_driver": "acpi-cpufreq", "scaling_governor": "powersave"}, "governor powersave"),
        ({"scaling_driver": "acpi-cpufreq", "scaling_governor": "schedutil"}, ""),
        ({"scaling_driver": "intel_pstate", "scaling_governor": "powersave"}, ""),
        (
            {
                "scaling_driver": "intel_pstate",
                "scaling_governor": "powersave",
                "energy_performance_preference": "power",
            },
            "energy preference power",
        ),
    ],
)
def test_cpus_that_save_power(
    tmp_path: Path, clock: Clock, files: dict[str, str], said: str
) -> None:
    for cpu in (0, 1, 2):
        tree(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq", files)
    found = guards.before(["cpu"], 2, tmp_path, clock.wait)
    assert len(found) == bool(said)
    assert all(f"2 CPUs run with the {said}" in sentence for sentence in found)


def test_our_own_processes_are_not_foreign() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        own = gpu.own_processes()
        assert {os.getpid(), os.getppid(), child.pid} <= own
        foreign = guards.foreign_times()
        assert not own & foreign.keys()
        others = {p.pid for p in psutil.process_iter()} - own
        assert not others or foreign
    finally:
        child.kill()
        child.wait()


# -- after ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"foreign_cpus": 0.8}, ("other processes kept 0.8 CPUs busy", "stop those processes")),
        ({"steal": 0.031}, ("the hypervisor gave up to 3.1 %", "--rounds")),
        ({"throttled_s": 0.2}, ("quota held back for 0.6 s", "--threads")),
        ({"throttle_events": 1}, ("heat slowed the CPUs", "cool")),
        ({"memory_stall": 0.02}, ("processes waited for memory during", "smaller size")),
        ({"swapped_bytes": 2**20}, ("read 3.0 MiB back from swap", "smaller size")),
        ({"available_bytes": 100 * 2**20}, ("only 100 MiB of memory were left", "batch")),
        ({"gpu": {"slowed_by_end": "power limit"}}, ("lowered its clocks (power limit)", "cool")),
        (
            {"gpu": {"foreign_processes": "python 7"}},
            ("other processes computed on the GPU (python 7)", "CUDA_VISIBLE_DEVICES"),
        ),
    ],
)
def test_each_cause_has_one_sentence_with_advice(
    changes: dict[str, Any], words: tuple[str, str]
) -> None:
    hit = msgspec.structs.replace(CALM, **changes)
    (sentence,) = guards.warnings([CALM, hit, hit, CALM, hit, CALM])
    fact, advice = sentence.split(": ")
    assert words[0] in fact
    assert fact.endswith("during 3 of 6 processes")
    assert words[1] in advice


@pytest.mark.parametrize(
    "changes",
    [
        {"foreign_cpus": 0.05},
        {"steal": 0.009},
        {"throttled_s": 0.009},
        {"throttle_events": 0},
        {"memory_stall": 0.009, "swapped_bytes": 0},
        {"available_bytes": psutil.virtual_memory().total},
        {"gpu": {"name": "NVIDIA", "slowed_by_end": "", "sm_mhz_end": "300"}},
    ],
)
def test_what_every_machine_does_is_no_cause(changes: dict[str, Any]) -> None:
    assert guards.warnings([msgspec.structs.replace(CALM, **changes)] * 3) == []
    assert guards.warnings([]) == []


def test_foreign_work_matters_where_no_cpu_is_left_for_it() -> None:
    seen = Conditions(wall_s=1.0, cpus=64, own_cpu_s=1.0, foreign_cpus=1.0)
    assert not guards.is_crowded(seen)
    assert guards.is_crowded(msgspec.structs.replace(seen, own_cpu_s=63.5))
    assert guards.is_crowded(msgspec.structs.replace(seen, foreign_cpus=5.0))


def test_a_tick_per_cpu_is_rounding() -> None:
    short = Conditions(wall_s=0.1, cpus=2, own_cpu_s=0.1, foreign_cpus=0.1 + 1.5 * TICK / 0.1)
    assert not guards.is_crowded(short)
    assert guards.is_crowded(msgspec.structs.replace(short, wall_s=1.0, own_cpu_s=1.0))


# -- the GPU -------------------------------------------------------------------------------------

SMI = """#!/bin/sh
echo "$@" >> "$0.asked"
case "$*" in
*--query-compute-apps*) cat "$0.apps";;
*{refused}*) echo 'Field "x" is not a valid field to query.'; exit 2;;
*) cat "$0.facts";;
esac
"""
FACTS = "NVIDIA H200, 1980, 700.00, 1500, 3201, 45, [N/A], 0x0000000000000025\n"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's tool that says what the files beside it hold, and keeps what it was asked."""
    path = tmp_path / "bin" / "nvidia-smi"
    tree(path.parent, {path.name: SMI.format(refused="no-such-field")})
    tree(path.parent, {f"{path.name}.facts": FACTS, f"{path.name}.apps": ""})
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return path


def apps(smi: Path, *pids: int) -> None:
    lines = [f"{pid}, /usr/bin/python\n" for pid in pids]
    smi.with_name("nvidia-smi.apps").write_text("".join(lines))


def test_facts_of_a_gpu(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpu.facts() == {
        "name": "NVIDIA H200",
        "sm_max_mhz": "1980",
        "power_limit_w": "700.00",
        "sm_mhz": "1500",
        "memory_mhz": "3201",
        "temperature_c": "45",
        "slowed_by": "power limit, software thermal limit",
    }
    assert "--id=3 " in smi.with_name("nvidia-smi.asked").read_text()


def test_an_older_driver_calls_the_reasons_otherwise(smi: Path) -> None:
    smi.write_text(SMI.format(refused="clocks_event_reasons"))
    assert gpu.facts()["name"] == "NVIDIA H200"
    assert "clocks_throttle_reasons.active" in smi.with_name("nvidia-smi.asked").read_text()


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho nonsense\n", "", None])
def test_no_answer_is_no_fact(
    smi: Path, script: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(smi.parent / "empty"))
    else:
        smi.write_text(script)
    assert gpu.facts() == {}
    assert gpu.foreign_processes(working=False) == []


def test_a_driver_that_hangs_is_given_up(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(gpu, "LIMIT_S", 0.05)
    assert gpu.facts() == {}


def test_both_ends_of_a_watch_on_a_gpu(smi: Path, tmp_path: Path) -> None:
    with guards.Watch(cuda=True, root=tmp_path) as watch:
        tree(smi.parent, {"nvidia-smi.facts": FACTS.replace("1500", "900").replace("25", "00")})
        apps(smi, os.getpid(), 1)
    gpu = watch.conditions.gpu
    assert (gpu["sm_mhz_start"], gpu["sm_mhz_end"]) == ("1500", "900")
    assert gpu["slowed_by_start"] == "power limit, software thermal limit"
    assert "slowed_by_end" not in gpu
    assert gpu["name"] == "NVIDIA H200"
    (slowed,) = guards.warnings([watch.conditions])
    assert "power limit" in slowed


def test_no_gpu_is_asked_for_a_cpu(smi: Path, tmp_path: Path) -> None:
    with guards.Watch(root=tmp_path) as watch:
        pass
    guards.before(["cpu"], 1, tmp_path, lambda _: None)
    assert watch.conditions.gpu == {}
    assert not smi.with_name("nvidia-smi.asked").exists()


def test_who_else_is_on_the_gpu(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "own_processes", lambda: {10, 11})
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: pid < 100)
    apps(smi, 10, 20)
    assert gpu.foreign_processes(working=True) == ["python 20"]
    # In a container our own number may be one from outside, which means nothing here.
    apps(smi, 555, 20)
    assert gpu.foreign_processes(working=True) == ["python 20"]
    assert gpu.foreign_processes(working=False) == ["python 555", "python 20"]
    apps(smi, 555, 556)
    assert gpu.foreign_processes(working=True) == ["python 556"]


def test_a_foreign_process_on_the_gpu_is_told_before(
    smi: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "own_processes", lambda: {10})
    apps(smi, 10, 20)
    (sentence,) = guards.before(["cpu", "cuda"], 1, tmp_path / "none", clock.wait)
    assert sentence.startswith("other processes compute on the GPU (python 20): stop")
