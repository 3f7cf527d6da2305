"""docs/release.py: each item of the checklist passes where it holds, and says what to do where it does not."""

import re
import shutil
import subprocess

import pytest

from docs import release

FILES = (
    "CHANGELOG.md",
    "docs/standard.md",
    "pipeconform/__init__.py",
    "pipeconform/spec/catalogue.py",
    "pipeconform/spec/changes.toml",
    "pyproject.toml",
)


@pytest.fixture
def checkout(pytestconfig, tmp_path):
    """The files that name versions, with the date that a release has."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pytestconfig.rootpath / name, tmp_path / name)
    change(tmp_path, "CHANGELOG.md", r"^(## \S+) \([^)]+\)", r"\1 (2031-12-31)")
    return tmp_path


def change(root, name, pattern, by):
    text = (root / name).read_text("utf-8")
    changed = re.sub(pattern, by, text, count=1, flags=re.MULTILINE)
    assert changed != text
    (root / name).write_text(changed, "utf-8")


def test_a_checkout_with_a_date_is_ready(checkout):
    assert [str(item)[:4] for item in release.written(checkout)] == ["ok  "] * 4


@pytest.mark.parametrize(
    ("name", "pattern", "by", "said"),
    [
        ("pyproject.toml", '^version = "0.1.0"', 'version = "0.2.0"', "0.2.0 and 0.1.0; make them the same"),
        ("pipeconform/__init__.py", '^__version__ = ".*"', '__version__ = "0.1.dev1"', "0.1.0 and 0.1.dev1"),
        (
            "CHANGELOG.md",
            r"\(2031-12-31\)",
            "(unreleased)",
            "says 'unreleased' where the date of the release is due",
        ),
        ("CHANGELOG.md", r"^## 0\.1\.0", "## 0.0.9", "its first section is 0.0.9, the package is 0.1.0"),
        ("CHANGELOG.md", r"^(## .*)\n\n- ", r"\1\n\n", "the section of 0.1.0 has no entry"),
        ("CHANGELOG.md", r"^## .*$", "## Next", "no section '## VERSION (DATE), standard VERSION'"),
        ("CHANGELOG.md", r", standard 0\.1$", ", standard 0.2", "0.2 in CHANGELOG.md"),
        (
            "pipeconform/spec/changes.toml",
            '^version = ".*"',
            'version = "0.3"',
            "0.3 in pipeconform/spec/changes.toml",
        ),
        ("docs/standard.md", r"^Version \S+: ", "Version 0.4: ", "0.4 in docs/standard.md"),
        (
            "pyproject.toml",
            "Python :: 3.11",
            "Python :: 3.10",
            "the classifiers name 3.10, requires-python is >=3.11",
        ),
    ],
)
def test_what_does_not_agree_is_named(checkout, name, pattern, by, said):
    change(checkout, name, pattern, by)

    assert any(said in item.problem for item in release.written(checkout))


def test_warnings_of_a_build_are_complaints_and_so_is_a_build_that_failed():
    assert (
        release.complaints(
            "Successfully built x.whl\nwarning: build_py: byte-compiling is disabled, skipping."
        )
        == ""
    )
    assert release.complaints("SetuptoolsDeprecationWarning: License\nSuccessfully built x.whl").endswith(
        "License"
    )
    assert release.complaints("ERROR Backend unavailable") == "ERROR Backend unavailable"


def test_what_is_not_committed_and_a_version_that_has_a_tag_are_named(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "first"],
        ["tag", "v0.1.0"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "left").touch()
    monkeypatch.setattr(release, "GENERATED", ())

    assert [str(item) for item in release.committed(tmp_path)] == [
        "NO  generated pages are current and everything is committed: commit or remove left",
        "NO  there is no tag v0.1.0 yet: raise the version",
    ]
