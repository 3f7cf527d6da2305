"""Check that this checkout can be released, build it, check what was built, and stop before anything is uploaded.

    python docs/release.py [--out dist]          # or: make release

Every item of the checklist is printed with ``ok`` or ``NO``. The first four need nothing but the files; what is built
comes from an export of the last commit, so that nothing untracked gets into it.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]+)\), standard (?P<standard>\S+)$", re.MULTILINE)
WARNING = re.compile(r"^.*(?:[Ww]arning:|WARNING|[Dd]eprecat|DEPRECAT).*$", re.MULTILINE)
HARMLESS = "byte-compiling is disabled"  # said where PYTHONDONTWRITEBYTECODE is set

GENERATED = (
    "pipeconform.spec.page docs/standard.md",
    "pipeconform.reference_impl.faults.page docs/faults.md",
    "tests.judge.fields_page docs/judged-fields.md",
    "tests.docs.reference",
    "tests.docs.learning",
)
"""The modules that write pages from the code, with their arguments."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of the checklist."""

    what: str
    problem: str = ""
    """What is wrong and what to do; empty if nothing is."""

    def __str__(self) -> str:
        """The item in a line."""
        return f"NO  {self.what}: {self.problem}" if self.problem else f"ok  {self.what}"


def main() -> int:
    """The whole checklist; 0 if the release can be uploaded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where to put what is built")
    out = parser.parse_args().out.resolve()
    items = []
    for item in (*written(ROOT), *committed(ROOT)):
        print(item, flush=True)
        items.append(item)
    if any(item.problem for item in items):
        print("nothing was built")
        return 1
    for item in built(ROOT, out=out):
        print(item, flush=True)
        items.append(item)
    if any(item.problem for item in items):
        return 1
    version = package_version(ROOT)
    print(
        f"ready. Nothing was uploaded; that is:\n  git tag v{version}\n  twine upload {out}/pipeconform-{version}*"
    )
    return 0


def written(root: Path) -> Iterator[Item]:
    """What the files say about versions agrees."""
    yield _item(
        "the version is the same in pyproject.toml and pipeconform/__init__.py", lambda: _version(root)
    )
    yield _item("CHANGELOG.md begins with this version, its date and what changed", lambda: _changelog(root))
    yield _item(
        "the standard's version is the same in suites, change log, changelog and page",
        lambda: _standard(root),
    )
    yield _item("pyproject.toml names no Python that it excludes", lambda: _pythons(root))


def committed(root: Path) -> Iterator[Item]:
    """Everything is committed, generated pages are current, and the version has no tag yet."""
    for module in GENERATED:
        subprocess.run([sys.executable, "-m", *module.split()], cwd=root, check=True)
    changed = _git(root, "status", "--porcelain").splitlines()
    yield Item(
        what="generated pages are current and everything is committed",
        problem=f"commit or remove {', '.join(line[3:] for line in changed[:5])}" if changed else "",
    )
    tag = f"v{package_version(root)}"
    yield Item(
        what=f"there is no tag {tag} yet",
        problem="raise the version" if _git(root, "tag", "--list", tag) else "",
    )


def built(root: Path, *, out: Path) -> Iterator[Item]:
    """The site, sdist and wheel build without a warning, and the package index would take them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        archive = Path(folder, "source.tar")
        _git(root, "archive", "--output", str(archive), "HEAD")
        with tarfile.open(archive) as packed:
            packed.extractall(source, filter="data")
        site = _run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", f"{folder}/site"], source
        )
        yield Item(what="the site builds", problem=site if "Documentation built" not in site else "")
        packages = _run([sys.executable, "-m", "build", "--outdir", str(out), "."], source)
        yield Item(what="sdist and wheel build without a warning", problem=complaints(packages))
    files = sorted(map(str, out.glob(f"pipeconform-{package_version(root)}*")))
    checked = _run([sys.executable, "-m", "twine", "check", "--strict", *files], root)
    passed = len(re.findall(r"PASSED", checked)) == len(files) > 1
    yield Item(
        what="twine finds nothing wrong with them", problem="" if passed else checked or "nothing was built"
    )


def complaints(log: str) -> str:
    """The warnings in what a build printed, and its end if it failed."""
    lines = [line.strip() for line in WARNING.findall(log) if HARMLESS not in line]
    if "Successfully built" not in log:
        lines += log.strip().splitlines()[-3:]
    return "; ".join(dict.fromkeys(lines))


def package_version(root: Path) -> str:
    """The version in pyproject.toml."""
    return str(_project(root)["version"])


def _version(root: Path) -> None:
    version = package_version(root)
    inside = _found(root / "pipeconform/__init__.py", r'^__version__ = "([^"]+)"$')
    _require(version == inside, f"{version} and {inside}; make them the same")
    _require(bool(re.fullmatch(r"\d+\.\d+\.\d+", version)), f"{version} is no version of three numbers")


def _changelog(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text("utf-8")
    first = HEADING.search(text)
    _require(first is not None, "no section '## VERSION (DATE), standard VERSION'; add one")
    assert first is not None
    _require(
        first["version"] == package_version(root),
        f"its first section is {first['version']}, the package is {package_version(root)}",
    )
    _require(
        bool(re.match(r"\s*\n- ", text[first.end() :])), f"the section of {first['version']} has no entry"
    )
    try:
        datetime.date.fromisoformat(first["date"])
    except ValueError:
        _require(
            False, f"the section says '{first['date']}' where the date of the release is due, as 2031-12-31"
        )


def _standard(root: Path) -> None:
    said = {
        "pipeconform/spec/catalogue.py": _found(
            root / "pipeconform/spec/catalogue.py", r'^STANDARD_VERSION = "([^"]+)"'
        ),
        "pipeconform/spec/changes.toml": tomllib.loads(
            (root / "pipeconform/spec/changes.toml").read_text("utf-8")
        )["version"][0]["version"],
        "CHANGELOG.md": _found(root / "CHANGELOG.md", HEADING.pattern, group="standard"),
        "docs/standard.md": _found(root / "docs/standard.md", r"^Version (\S+): "),
    }
    words = ", ".join(f"{version} in {name}" for name, version in said.items())
    _require(len(set(said.values())) == 1, f"{words}; 'make standard' writes the page")


def _pythons(root: Path) -> None:
    project = _project(root)
    least = tuple(map(int, str(project["requires-python"]).removeprefix(">=").split(".")))
    named = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    _require(bool(named), "no classifier 'Programming Language :: Python :: 3.N'")
    wrong = [one for one in named if tuple(map(int, one.split("."))) < least]
    _require(
        not wrong, f"the classifiers name {', '.join(wrong)}, requires-python is {project['requires-python']}"
    )


class _ProblemError(Exception):
    """What is wrong with an item."""


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise _ProblemError(problem)


def _item(what: str, check: Callable[[], None]) -> Item:
    try:
        check()
    except _ProblemError as problem:
        return Item(what=what, problem=str(problem))
    return Item(what=what)


def _found(path: Path, pattern: str, *, group: int | str = 1) -> str:
    found = re.search(pattern, path.read_text("utf-8"), re.MULTILINE)
    return found[group] if found else "nothing"


def _project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]


def _git(root: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, text=True).stdout


def _run(command: list[str], folder: Path) -> str:
    """What a command prints; its success is read from that."""
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
