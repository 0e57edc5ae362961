"""What is read of a machine, on made-up ones and on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import srtkit_plugin_platform_cpu as plugin
from srtkit.spec.facts import DeviceFacts
from srtkit_plugin_platform_cpu.facts import cpu_facts, memory_available, memory_total, usable_cpus

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n"
Machine = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A root folder with the given files."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_name_and_instruction_sets_of_x86(machine: Machine) -> None:
    cpu = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu avx2 avx512f amx_bf16\n\nprocessor\t: 1\n"
    facts = cpu_facts(machine({"proc/cpuinfo": cpu, "proc/meminfo": MEMINFO}))
    assert facts.name == "Some CPU @ 3 GHz"
    assert facts.extra["isa"] == "amx_bf16 avx512f avx2"
    assert facts.memory_bytes == 16 * GIB
    assert facts.dtypes == {"float32", "bfloat16", "float16"}
    assert not facts.async_launch
    assert not facts.graphs


def test_arm_has_features_in_place_of_flags_and_no_name(machine: Machine) -> None:
    facts = cpu_facts(machine({"proc/cpuinfo": "processor : 0\nFeatures : fp asimd sve bf16\n"}))
    assert facts.extra["isa"] == "bf16 sve asimd"
    assert facts.name


def test_the_lowest_limit_of_the_control_groups_counts(machine: Machine) -> None:
    root = machine(
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/memory.max": str(3 * GIB),
            "sys/fs/cgroup/outer/memory.current": str(2 * GIB),
            "sys/fs/cgroup/outer/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        }
    )
    assert memory_total(root) == 3 * GIB
    assert memory_available(root) == 2 * GIB  # a dropped file page is free memory


def test_in_a_container_the_mount_itself_is_the_group(machine: Machine) -> None:
    root = machine(
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/host/path/of/the/container\n",
            "sys/fs/cgroup/memory.max": str(GIB),
            "sys/fs/cgroup/memory.current": str(3 * GIB),
        }
    )
    assert memory_total(root) == GIB
    assert memory_available(root) == 0  # never negative


def test_without_limits_the_machine_counts(machine: Machine) -> None:
    root = machine({"proc/meminfo": MEMINFO})
    assert memory_total(root) == 16 * GIB
    assert memory_available(root) == 8 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is a Linux notion")
def test_siblings_of_a_core_count_once(machine: Machine) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = machine({topology.format(cpu): "0-63\n" for cpu in cpus})
    assert usable_cpus(root) == cpus[:1]
    assert usable_cpus(machine({topology.format(cpu): f"{cpu}\n" for cpu in cpus})) == cpus


def test_a_time_quota_bounds_the_threads(machine: Machine) -> None:
    root = machine({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"})
    assert len(usable_cpus(root)) == 1


def test_this_machine() -> None:
    (facts,) = plugin.probe(plugin.Options())
    assert facts.name
    assert 0 < memory_available() <= facts.memory_bytes
    assert 1 <= int(facts.extra["cores"]) <= (os.cpu_count() or 1)


def test_defaults_name_every_kind_that_serving_needs_and_never_the_dummy_loader() -> None:
    chosen = plugin.defaults(cpu_facts())
    kinds = {"attention", "graph_runner", "ops", "prefix_cache", "transport", "model_loader", "models"}
    assert set(chosen.plugins) == kinds
    assert "dummy" not in chosen.plugins["model_loader"]
    assert chosen.dtype in cpu_facts().dtypes
    assert 0 < chosen.memory_fraction <= 0.5


@pytest.mark.parametrize(
    ("architecture", "extra", "native"),
    [
        ("x86_64", {"isa": "avx512f avx2"}, True),
        ("x86_64", {"isa": ""}, False),
        ("x86_64", {}, True),
        ("aarch64", {"isa": "asimd"}, True),
    ],
    ids=["AVX2", "without AVX2", "assumed", "ARM"],
)
def test_the_native_kernels_come_first_where_they_can_run(
    architecture: str, extra: dict[str, str], native: bool
) -> None:
    chosen = plugin.defaults(DeviceFacts("cpu", "test", architecture, extra=extra)).plugins
    assert chosen["attention"] == (("cpu-native", "torch") if native else ("torch",))
    assert chosen["ops"] == (("cpu-native", "cpu") if native else ("cpu",))


def test_assumed_facts() -> None:
    facts = plugin.assume("x86_64")
    assert facts is not None
    assert facts.memory_bytes == 16 * GIB
    assert plugin.assume("gfx942") is None


def test_threads_left_over_from_other_programs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(cpu_facts(), extra={"cores": "8"})
    monkeypatch.setattr(plugin, "cpu_facts", lambda: facts)
    assert [one.subject for one in plugin.examine({"OMP_NUM_THREADS": "8"})] == ["CPU"]
    warned = plugin.examine({"OMP_NUM_THREADS": "1"})[1]
    assert (warned.verdict, warned.subject) == ("warn", "OMP_NUM_THREADS")
    assert "1 of 8 cores" in warned.detail


def test_options_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        plugin.Options.model_validate({"thread": 2})
    with pytest.raises(ValidationError):
        plugin.Options(threads=0)


def test_the_descriptor_imports_no_torch() -> None:
    code = (
        "import sys, srtkit_plugin_platform_cpu as p; d = p.srtkit_platform();"
        "d.defaults(d.probe(d.options())[0]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
