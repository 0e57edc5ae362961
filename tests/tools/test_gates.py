"""The small gates find the fault they exist for and are silent without it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import core_alone, links, no_cuda, serve_from_wheels, wheels
from tools.dists import Dist

PLUGIN = Dist(
    Path("plugins/cache_x"),
    {"name": "srtkit-plugin-cache-x", "version": "1.2", "entry-points": {"srtkit.prefix_cache.v1": {"x": "p"}}},
)
PACKAGE = "srtkit_plugin_cache_x"
CONTENT = {
    f"{PACKAGE}/__init__.py": "",
    f"{PACKAGE}/py.typed": "",
    f"{PACKAGE}-1.2.dist-info/licenses/LICENSE": "",
    f"{PACKAGE}-1.2.dist-info/entry_points.txt": f"[srtkit.prefix_cache.v1]\nx = {PACKAGE}\n",
}


def test_cuda_packages_are_found_however_they_are_spelt() -> None:
    names = ["torch", "nvidia_cublas-cu13", "nvidia-nccl-cu13", "numpy", "cuda-bindings", "nvidia-nccl-cu13"]
    assert no_cuda.cuda_packages(names) == ["cuda-bindings", "nvidia-nccl-cu13", "nvidia_cublas-cu13"]


def wheel(folder: Path, content: dict[str, str]) -> Path:
    path = wheels.wheel_of(PLUGIN, folder)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def test_a_whole_wheel_has_no_fault(tmp_path: Path) -> None:
    assert wheels.faults(PLUGIN, wheel(tmp_path, CONTENT)) == []


@pytest.mark.parametrize("missing", CONTENT)
def test_what_a_wheel_lacks_is_a_fault(tmp_path: Path, missing: str) -> None:
    content = {name: text for name, text in CONTENT.items() if name != missing}
    assert len(wheels.faults(PLUGIN, wheel(tmp_path, content))) == 1


def test_a_wheel_that_installs_tests_is_a_fault(tmp_path: Path) -> None:
    (fault,) = wheels.faults(PLUGIN, wheel(tmp_path, {**CONTENT, "tests/test_a.py": ""}))
    assert "tests" in fault


def test_a_wheel_is_found_whatever_its_tag(tmp_path: Path) -> None:
    for name in ("srtkit_plugin_cache_x-1.2-py3-none-linux_x86_64", "srtkit_plugin_cache_x_y-1.2-py3-none-any"):
        (tmp_path / f"{name}.whl").touch()
    assert wheels.wheel_of(PLUGIN, tmp_path).name == "srtkit_plugin_cache_x-1.2-py3-none-linux_x86_64.whl"


def test_a_wheel_that_was_not_built_is_a_fault(tmp_path: Path) -> None:
    assert wheels.faults(PLUGIN, tmp_path / "no.whl") == ["no.whl was not built"]


def test_imported_modules_are_read_from_importtime() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import json.decoder"], capture_output=True, text=True, check=True
    )
    assert {"json", "json.decoder"} <= core_alone.imported(done.stderr)


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ("other.md", False),
        ("other.md#two-words", False),
        ("#here", False),
        ("https://example.org/nowhere", False),
        ("gone.md", True),
        ("other.md#gone", True),
        ("#gone", True),
    ],
)
def test_links(tmp_path: Path, target: str, broken: bool) -> None:
    (tmp_path / "other.md").write_text("# Two `words`!\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n[text]({target})\n\n```\n[not a link](gone.md)\n```\n\nnor `[this](gone.md)`\n")
    assert list(links.broken_links(page)) == ([target] if broken else [])


def server(code: str) -> subprocess.Popen[bytes]:
    """A process that leads its own group and has printed a line once it is set up."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"ready\n"
    return process


def test_stop_ends_a_server_that_obeys() -> None:
    process = server("import time; print('ready', flush=True); time.sleep(60)")
    serve_from_wheels.stop(process)
    assert process.returncode is not None


@pytest.mark.parametrize(
    "code",
    [
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);print('ready', flush=True); time.sleep(60)",
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print('ready', flush=True); time.sleep(60)",
    ],
    ids=["ignores SIGTERM", "leaves a child"],
)
def test_stop_reports_what_still_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_from_wheels, "STOP_SECONDS", 0.5)
    process = server(code)
    with pytest.raises(serve_from_wheels.Failed, match="still runs"):
        serve_from_wheels.stop(process)
    assert process.poll() is not None
