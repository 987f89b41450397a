"""Sizes as users write them, what is free on a machine, what a process holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab.costing.memory import (
    default_limit,
    free_memory,
    own_peak,
    parse_memory,
    reset_own_peak,
    resident,
    show_memory,
)
from vitlab.errors import InvalidValue

GIB = 2**30
has_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc on this system")


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("8GiB", 8 * GIB),
        ("500MB", 500 * 10**6),
        ("1.5 gb", 1_500_000_000),
        ("2e9", 2 * 10**9),
        ("64k", 64_000),
        ("1Ti", 2**40),
        (123, 123),
    ],
)
def test_a_size_has_decimal_or_binary_units(given, size):
    assert parse_memory(given) == size


@pytest.mark.parametrize("given", ["-1GiB", "0", 0, -5, "8 gigs", "", "1.2.3GB", "nan", "1e99", "GiB"])
def test_a_size_that_is_not_positive_says_what_is_expected(given):
    with pytest.raises(InvalidValue, match=r"memory is .*; expected a positive size such as 8GiB or 500MB"):
        parse_memory(given)


def test_a_size_is_shown_in_a_readable_unit():
    assert [show_memory(size) for size in (220_000_000, 10**9, GIB)] == ["220 MB", "1.0 GB", "1.1 GB"]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(folder, cgroup, groups):
    proc, cgroups = folder / "proc", folder / "cgroup"
    write(proc, {"meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * 2**20} kB\n", "self/cgroup": cgroup})
    cgroups.mkdir()
    write(cgroups, groups)
    return free_memory(proc, cgroups)


def test_free_memory_is_what_the_kernel_says_is_available(tmp_path):
    assert machine(tmp_path, "0::/\n", {}) == 8 * GIB


def test_a_control_group_above_the_own_one_limits_what_is_free(tmp_path):
    stat = f"anon 5\ninactive_file {GIB // 2}\n"
    groups = {"a/memory.max": f"{3 * GIB}\n", "a/memory.current": f"{GIB}\n", "a/memory.stat": stat}
    groups |= {"a/b/memory.max": "max\n", "a/b/memory.current": "5\n", "a/b/memory.stat": stat}
    assert machine(tmp_path, "0::/a/b\n", groups) == 5 * GIB // 2


def test_control_groups_of_the_first_version_count_too(tmp_path):
    group = {"limit_in_bytes": f"{2 * GIB}\n", "usage_in_bytes": f"{GIB}\n", "stat": "total_inactive_file 0\n"}
    files = {f"memory/job/memory.{name}": text for name, text in group.items()}
    assert machine(tmp_path, "5:cpu:/job\n4:memory:/job\n", files) == GIB


def test_where_the_kernel_does_not_say_nothing_is_claimed(tmp_path):
    assert free_memory(tmp_path / "none", tmp_path) is None


@has_proc
def test_the_default_limit_leaves_a_margin():
    assert 0 < default_limit() < 0.95 * free_memory()


@has_proc
def test_the_memory_of_a_process_is_seen_from_outside_and_inside():
    code = "import sys; b = bytearray(200 * 2**20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert 200 * 2**20 < resident(child.pid) < 300 * 2**20
        child.stdin.close()
    assert resident(child.pid) is None
    assert own_peak() >= resident(os.getpid()) - 2**20


@pytest.mark.skipif(own_peak() is None, reason="there is no /proc on this system")
def test_the_peak_of_this_process_can_be_counted_anew():
    held = bytearray(200 * 2**20)
    before = own_peak()
    del held
    reset_own_peak()
    assert own_peak() < before - 100 * 2**20
