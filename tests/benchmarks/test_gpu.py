"""The command for a machine with a GPU: which parts it has where, how one ends, what is kept, the page, the archive."""

from __future__ import annotations

import subprocess
import sys
import tarfile

import msgspec
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import bundle
from benchmarks.gpu.measuring import MEASURED, Measured
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import Part, Target, parts_on
from benchmarks.gpu.running import Record, record_in, run_part
from pipeconform.ranks.devices import Machine


def target(count, *, nccl=(2, 27, 5), shared=(2, 27, 5), **more):
    machine = Machine("cuda", count=count, backend="nccl", nccl=nccl, names=("NVIDIA <H100>",) * count)
    return Target(machine=machine, backend="nccl", shared_release=shared, **more)


def runnable(*given, **more):
    return {part.name for part in parts_on(target(*given, **more)) if not part.missing}


def test_one_gpu_and_an_nccl_that_lets_ranks_share_it_are_enough_for_several_ranks():
    alone = runnable(1)
    shared = runnable(1, shared=(2, 30, 7))

    assert alone == {"doctor", "bits", "memory", "reference-alone-values", "torch-alone-values"}
    assert {
        "latency",
        "communicators",
        "hang",
        "hanging-engine",
        "two-workers",
        "torch-shared-errors",
    } <= shared
    assert not any("-apart-" in name for name in shared)


def test_two_gpus_run_ranks_apart_and_one_says_why_not():
    assert {"doctor", "hang", "torch-apart-errors", "reference-apart-lifecycle"} <= runnable(2)
    (why,) = {part.missing for part in parts_on(target(1)) if "-apart-" in part.name}
    assert why == "this machine has 1 cuda device"
    (why,) = {part.missing for part in parts_on(target(2)) if "-shared-" in part.name}
    assert "needs NCCL 2.30 or newer, torch loads 2.27.5 here" in why


def test_only_ranks_that_share_a_gpu_load_another_nccl():
    library = "/somewhere/libnccl.so.2"
    parts = parts_on(target(2, shared=(2, 30, 7), library=library))
    assert all(part.variables == {"LD_PRELOAD": library} for part in parts if "-shared-" in part.name)
    assert not any(part.variables for part in parts if "-shared-" not in part.name)


def test_a_machine_without_a_gpu_is_told_so_and_nothing_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "probe", lambda device: Machine(device, count=0, backend="nccl"))
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "results")])

    assert command.main() == 3
    said = capsys.readouterr().out
    assert said.startswith(
        "torch finds no cuda device on this machine, so nothing was run; 'pipeconform doctor"
    )
    assert not (tmp_path / "results").exists()


def test_what_is_judged_can_be_restricted():
    found = {part.name: part for part in parts_on(target(2, requirements=("FWD-1", "COM-4")))}
    assert found["torch-apart-messages"].title.endswith(": COM-4")
    assert "none of FWD-1,COM-4 is in ERR" in found["torch-apart-errors"].missing


def part(*code, **more):
    return Part(name="one", title="one", commands=tuple(("-c", line) for line in code), **more)


def test_a_part_that_is_done_is_kept_and_one_whose_commands_changed_is_not(tmp_path):
    done = run_part(part("print('first')", "print('second')"), results=tmp_path, limit=60)

    assert (done.state, done.code) == ("done", 0)
    assert (tmp_path / "one" / "output.txt").read_text() == "first\nsecond\n"
    assert record_in(tmp_path, part("print('first')", "print('second')")) == done
    assert record_in(tmp_path, part("print('other')")) is None


def test_a_command_that_fails_ends_its_part(tmp_path):
    failed = run_part(part("raise SystemExit(3)", "print('never')"), results=tmp_path, limit=60)
    met = run_part(part("raise SystemExit(1)", codes=frozenset({0, 1})), results=tmp_path, limit=60)

    assert (failed.state, failed.code) == ("failed", 3)
    assert met.state == "done"


def test_a_part_that_is_out_of_time_is_interrupted_and_can_write_what_it_has(tmp_path):
    code = """
import pathlib, time
print("begun", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path("{folder}/partial").write_text("half")
    raise SystemExit(2)
"""
    cut = run_part(part(code), results=tmp_path, limit=5)

    assert (cut.state, cut.code) == ("cut off", 2)
    assert (tmp_path / "one" / "partial").read_text() == "half"


def test_the_page_has_every_part_with_its_table_and_escapes_what_it_shows(tmp_path):
    folder = tmp_path / "latency"
    folder.mkdir()
    folder.joinpath("output.txt").write_text("<b>said</b>")
    folder.joinpath(MEASURED).write_bytes(
        msgspec.json.encode(Measured(head=("message", "µs"), rows=(("4 B", "12.5"),)))
    )
    records = [
        Record(name="latency", title="Latency", state="done", seconds=12.0),
        Record(name="hang", title="A hang", state="missing", why="this machine has 1 cuda device"),
    ]
    write_page(records, target=target(1), results=tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")

    assert "<td>4 B</td><td>12.5</td>" in page
    assert "&lt;b&gt;said&lt;/b&gt;" in page
    assert "NVIDIA &lt;H100&gt;" in page
    assert "Not run: this machine has 1 cuda device" in page


def test_the_archive_has_all_that_pipeconform_needs_but_what_computes():
    names = bundle.needed()
    assert {"pytest", "hypothesis", "msgspec", "rich", "sortedcontainers", "pluggy"} <= set(names)
    assert not {"torch", "numpy"} & set(names)
    assert not any(name.startswith("nvidia") for name in names)


@pytest.mark.slow
def test_the_archive_is_small_and_runs_without_a_network(tmp_path):
    """Its own Python is not needed: a folder beside it has torch and numpy, and pip may look nowhere else."""
    archive = tmp_path / "archive.tar.gz"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert bundle.bundle(archive, pythons=(version,)) < bundle.MOST
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    run = tmp_path / bundle.NAME / "run.py"
    asked = ("--device", "cpu", "--out", str(tmp_path / "results"), "--requirements", "FWD-1", "bits")
    done = subprocess.run(
        [sys.executable, str(run), *asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2, done.stdout + done.stderr  # everything else is left
    assert "bits: done" in done.stdout
    assert (tmp_path / bundle.NAME / f"installed-{version}" / "pipeconform" / "cli.py").exists()
    assert (tmp_path / "results" / "report.html").exists()
