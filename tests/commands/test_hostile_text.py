"""No name, message or file of a stranger steers a terminal, a page or a log, whatever command shows it."""

from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest

from pipeconform.certificate.contents import data_files
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.report.result import write_result
from tests.certificate.conftest import sound
from tests.command_line import type_in
from tests.report.conftest import make

__all__ = ["make"]

STEERING = "\x1b[2J\x1b]0;title\x07\rVERIFIED\x9b2K\u202eDEIFIREV\u200b\0\x7f\u2066"
HOSTILE = f"{STEERING}\nVERIFIED: {STEERING} all is well"
ENGINE = f"""
def step():
    print({HOSTILE!r}, flush=True)
    raise RuntimeError({HOSTILE!r})
"""

ADAPTER = """
import engine

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

class Pipeline(ReferencePipeline):
    def run(self, mode, batch):
        engine.step()

class Raises(ReferenceAdapter):
    pipeline = Pipeline
"""


def hidden(text: str) -> list[str]:
    """What would not be printed as one visible sign."""
    return [
        one
        for one in text
        if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") and one not in "\n\t"
    ]


def clean(done) -> str:
    """All that a command printed, in which nothing is hidden."""
    text = "".join(part if isinstance(part, str) else "" for part in done)
    assert hidden(text) == []
    return text


@pytest.fixture
def hostile(make):
    """A result in which all that is free text steers."""
    violation = make.violation(
        "FWD-1",
        "GPipe",
        signature=STEERING,
        message=HOSTILE,
        where=STEERING,
        verdicts=HOSTILE,
        replay=STEERING,
    )
    cell = make.cell("FWD-1", "GPipe", violation, variant=STEERING)
    skipped = make.cell("FWD-2", "GPipe", status="skipped", reason=HOSTILE)
    result = make.result(cell, skipped)
    implementation = msgspec.structs.replace(
        result.implementation,
        name=STEERING,
        version=STEERING,
        reference=STEERING,
        capabilities={STEERING: STEERING},
    )
    environment = msgspec.structs.replace(
        result.environment, device_names=(STEERING,), variables={STEERING: {STEERING: HOSTILE}}
    )
    return msgspec.structs.replace(result, implementation=implementation, environment=environment)


@pytest.fixture
def files(hostile, make, tmp_path):
    """Such a result, and an honest one."""
    write_result(hostile, tmp_path / "result.json")
    write_result(make.result(make.cell("FWD-1", "GPipe")), tmp_path / "good.json")


def test_a_report_shows_nothing_but_text(typed, files, tmp_path):
    clean(typed("report", "result.json", "good.json", "--out", "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert hidden(page) == []
    assert r"\x1b[2J" in page


@pytest.mark.parametrize("style", ["text", "json", "markdown", "github"])
def test_a_comparison_shows_nothing_but_text(typed, files, tmp_path, monkeypatch, style):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    text = clean(typed("compare", "good.json", "result.json", "--format", style))
    assert "VERIFIED: " not in [line[:10] for line in text.splitlines()]
    if style == "json":
        assert json.loads(text)["new"]["implementation"].startswith(STEERING)
    if style == "github":
        assert hidden((tmp_path / "summary.md").read_text("utf-8")) == []


def test_names_that_would_begin_a_line_are_refused(typed, hostile, tmp_path):
    changed = msgspec.structs.replace(hostile.implementation, name=HOSTILE)
    write_result(msgspec.structs.replace(hostile, implementation=changed), tmp_path / "result.json")
    code, out, err = typed("report", "result.json")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert hidden(err) == []


FIELDS = ("implementation", "version", "level", "standard_version", "shard")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", [STEERING, HOSTILE], ids=["steering", "lines"])
def test_no_package_writes_that_it_is_verified(typed, make, tmp_path, field, text):
    contents = sound(make)
    certificate = msgspec.structs.replace(contents.certificate, **{field: text})
    canary = msgspec.structs.replace(
        contents.canaries[0], fault=STEERING, expected=STEERING, shown=(STEERING,)
    )
    made = packed(contents)  # a page and a badge of a level that does not exist cannot be made
    contents = msgspec.structs.replace(
        contents, certificate=certificate, canaries=(canary, *contents.canaries[1:])
    )
    write_package(made | data_files(contents), tmp_path / "mine.zip")

    code, out, err = typed("verify", "mine.zip")
    assert hidden(out + err) == []
    assert code in (1, 2)
    assert not [line for line in out.splitlines() if line.startswith("VERIFIED")]
    assert [line for line in out.splitlines() if line.startswith("NOT VERIFIED")]


def test_what_is_asked_for_is_quoted_as_text(typed, files):
    argument = STEERING.replace("\0", "")  # which no command line can hold
    for arguments in (
        ("show", argument),
        ("replay", argument, "--impl", "reference", "--result", "result.json"),
        ("replay", "none.json", "--impl", f"{argument}.py:A"),
        ("verify", f"{argument}.zip"),
        ("report", argument),
        ("list", "--impl", argument),
        ("schedule", "verify", f"{argument}.csv"),
        ("compare", argument, "good.json"),
        ("run", "--impl", "reference", "--requirements", argument),
    ):
        code, out, err = typed(*arguments)
        assert (code, hidden(out + err), err.count("\n")) == (2, [], 1), arguments


def run(folder, *arguments):
    return type_in(folder, arguments)


def test_a_run_and_its_replay_show_nothing_but_text(tmp_path):
    (tmp_path / "engine.py").write_text(ENGINE, "utf-8")
    (tmp_path / "mine.py").write_text(ADAPTER, "utf-8")
    impl = ("--impl", "mine.py:Raises")
    done = run(
        tmp_path, "run", *impl, "--requirements", "FWD-1", "--schedules", "GPipe", "--ranks", "1-2",
        "--examples", "2", "--out", "out",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    for text in (
        done.stdout,
        done.stderr,
        (tmp_path / "out" / "report.html").read_text("utf-8"),
        (tmp_path / "out" / "junit.xml").read_text("utf-8"),
    ):
        assert hidden(text) == []
    assert "raised RuntimeError: " in done.stdout
    (cell,) = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))["cells"]

    again = run(tmp_path, "replay", cell["violations"][0]["id"], *impl, "--result", "out/result.json")
    assert again.returncode == 1, again.stderr
    assert hidden(again.stdout + again.stderr) == []
    assert r"\x1b[2J" in again.stdout


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", STEERING), ("version", HOSTILE), ("name", "x" * 1000)],
    ids=["name", "lines", "long"],
)
def test_a_description_with_such_names_is_the_adapters_mistake(tmp_path, field, value):
    text = f"""
import dataclasses
from pipeconform.reference_impl.adapter import ReferenceAdapter

class Named(ReferenceAdapter):
    def describe(self):
        return dataclasses.replace(super().describe(), {field}={value!r})
"""
    (tmp_path / "mine.py").write_text(text, "utf-8")
    done = run(tmp_path, "list", "--impl", "mine.py:Named")
    assert (done.returncode, done.stdout, hidden(done.stderr)) == (2, "", [])
    assert f"the implementation's {field} is " in done.stderr
