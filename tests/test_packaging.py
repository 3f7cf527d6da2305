"""Sdist and wheel build without a warning; the wheel, in an empty environment, judges from any folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from docs import release
from pipeconform.report.result import read_result

pytestmark = pytest.mark.slow

_ROOM = 8 << 30  # bytes for torch with the libraries of CUDA


@pytest.fixture(scope="module")
def built(pytestconfig, tmp_path_factory) -> tuple[Path, str]:
    """The folder with sdist and wheel, built from the files that git tracks as a release is, and what was printed."""
    source = tmp_path_factory.mktemp("source")
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=pytestconfig.rootpath, check=True, capture_output=True
    )
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", "dist"],
        cwd=source,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return source / "dist", done.stdout


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (found,) = built[0].glob("*.whl")
    return found


def test_they_build_without_a_warning_and_an_index_would_take_them(built, pytestconfig) -> None:
    pytest.importorskip("twine", reason="needs the extra 'release'")
    folder, printed = built
    version = release.package_version(pytestconfig.rootpath)
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, folder.iterdir())],
        check=False,
        capture_output=True,
        text=True,
    )

    assert release.complaints(printed) == ""
    assert sorted(path.name.rpartition(version)[2] for path in folder.iterdir()) == [
        "-py3-none-any.whl",
        ".tar.gz",
    ]
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_wheel_holds_every_package_and_only_one_top_level_name(wheel, pytestconfig) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "pipeconform", "suites", "reference_impl"],
        cwd=pytestconfig.rootpath,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    wanted = {name if name.startswith("pipeconform/") else f"pipeconform/{name}" for name in tracked}

    assert top == {"pipeconform"}
    assert wanted - names == set()
    assert {name for name in names if name.endswith(".py")} - wanted == set()  # no test, benchmark or mutant


def test_the_sdist_holds_what_the_wheel_is_built_from_and_no_stray_tests(built, pytestconfig) -> None:
    (file,) = built[0].glob("*.tar.gz")
    with tarfile.open(file) as archive:
        top = {parts[1] for name in archive.getnames() if len(parts := name.split("/")) > 1}

    assert {"pipeconform", "suites", "reference_impl", "pyproject.toml", "README.md", "LICENSE"} <= top
    assert not top & {"tests", "benchmarks"}


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_other_pythons_install_it_and_do_what_needs_no_torch(wheel, built, pytestconfig, tmp_path, version):
    """With torch, each takes gigabytes: docs/install.md says what has been tried."""
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-V"], check=False, capture_output=True).returncode:
        pytest.skip(f"there is no Python {version} on the path")  # pyenv has names for what is not chosen
    environment = tmp_path / "environment"
    subprocess.run([found, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"

    def pip(*arguments):
        subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)

    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text("utf-8"))["project"]
    pip(*(one for one in project["dependencies"] if not one.startswith("torch")))
    (sdist,) = built[0].glob("*.tar.gz")
    for file in (sdist, wheel):
        pip("--no-deps", "--force-reinstall", file)
    code = next(environment.glob("lib/python*/site-packages")) / "pipeconform"
    compiled = subprocess.run(
        [python, "-W", "error", "-m", "compileall", "-q", "-f", code],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (compiled.returncode, compiled.stdout, compiled.stderr) == (0, "", "")
    for arguments, code in {
        ("list",): 0,
        ("show", "TRN-4", "finding", "3"): 0,
        ("schedule", "draw", "--name", "one_f_one_b", "-p", "2", "-m", "4"): 0,
        ("run", "--impl", "torch"): 2,
    }.items():
        done = subprocess.run(
            [python, "-W", "error", "-m", "pipeconform", *arguments],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        refusal = "pipeconform: torch is not installed; pip install 'torch>=2.9,<2.16'\n"
        assert done.stderr == (refusal if code else "")


def _pinned(root: Path) -> list[str]:
    return [
        line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    ]


def _newest(root: Path) -> list[str]:
    """The newest release that is supported, as docs/torches installs it."""
    text = (root / "docs/torches/environments.py").read_text("utf-8")
    (newest,) = re.findall(r'^RELEASES = .*"(.+)"', text, re.MULTILINE)
    return [f"torch=={newest}"]


def _oldest(root: Path) -> list[str]:
    """The oldest packages that the project allows, with the pinned torch."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = [one.partition(">=") for one in project["dependencies"] if not one.startswith("torch")]
    return [*_pinned(root), *(f"{name}=={version}" for name, _, version in bounds)]


@pytest.mark.parametrize("chosen", [_pinned, _newest, _oldest])
def test_an_empty_environment_judges_torch_from_any_folder(wheel, pytestconfig, tmp_path, chosen) -> None:
    torch, *others = chosen(pytestconfig.rootpath)
    if shutil.disk_usage(tmp_path).free < _ROOM:
        pytest.skip(f"{torch} may take {_ROOM >> 30} GB, which are not free in {tmp_path}")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    asked = [wheel, torch, *others]  # a user has no constraints file: all else is the newest there is
    install = [python, "-m", "pip", "install", "--quiet"]
    installed = subprocess.run([*install, *asked], check=False, capture_output=True, text=True)
    if installed.returncode and subprocess.run([*install, "--dry-run", torch], check=False).returncode:
        pytest.skip(f"{torch} by itself cannot be installed here")
    assert installed.returncode == 0, installed.stderr
    command = [environment / "bin" / "pipeconform", "run", "--impl"]
    few = ["--profile", "smoke", "--examples", "2", "--ranks", "2"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments, *few], cwd=tmp_path, check=False, capture_output=True, text=True
        )

    refused = run("torchy")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
    done = run("torch", "--requirements", "FWD-1,FWD-25", "--schedules", "GPipe", "-n", "2")
    result = read_result(tmp_path / "pipeconform-results" / "result.json")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "not tested with this release" not in done.stdout + done.stderr
    assert [cell.status for cell in result.cells] == ["passed", "failed"]
    assert f"torch=={result.environment.torch.partition('+')[0]}" == torch
    for reference in ("reference", "pipeconform.reference_impl.faults.scale:NotDivided"):
        done = run(reference, "--requirements", "TRN-3", "--schedules", "1F1B")
        assert done.returncode == (reference != "reference"), done.stdout + done.stderr
