"""The two files of a program: the adapter's source as it stands, and what judges behind it."""

import io
import zipfile

import pytest

from pipeconform.campaign.again import Sought
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.errors import UsageError
from pipeconform.export.question import MEMBER, Question, read_question
from pipeconform.export.script import program_of

CASE = Case(
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=4, num_microbatches=2),),
)
QUESTION = Question(
    engine="engine 1.0",
    case=CASE,
    requirements=("TRN-1",),
    sought=Sought(requirement="TRN-1", status="failed", signature="gradient value"),
    variant="checked",
    settings={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
)
ADAPTER = '''"""My engine's adapter."""

from __future__ import annotations

import neighbour
from pipeconform.adapter import Plan


class Mine:
    """It."""
'''


def program(implementation, *, found="TRN-1 failed: gradient value\n  it differs"):
    return program_of(QUESTION, implementation=implementation, found=found, archive="shown.zip")


def members(archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(ADAPTER)
    (tmp_path / "neighbour.py").write_text("from further import deep\nimport torch\n")
    (tmp_path / "further").mkdir()
    (tmp_path / "further" / "__init__.py").touch()
    (tmp_path / "further" / "deep.py").touch()
    (tmp_path / "unused.py").touch()
    return f"{tmp_path / 'mine.py'}:Mine"


def test_the_text_begins_with_what_a_reader_must_know_and_goes_on_with_the_adapter(mine):
    text = program(mine).text
    head, _, rest = text.partition('\n"""\n')

    assert head.startswith(
        '"""engine 1.0: TRN-1 failed: gradient value\n  it differs\n\nThe case:\n  pipeline  GPipe, p = 2'
    )
    assert "torch, numpy, msgspec and the engine are needed" in head
    assert head.endswith("\n\nMy engine's adapter.")
    assert rest.startswith('\nfrom __future__ import annotations\n\nif __name__ == "__main__":')
    assert rest.endswith(f"\n\n{ADAPTER.partition('annotations')[2].lstrip()}")
    compile(text, "shown.py", "exec")


def test_the_archive_holds_the_question_and_what_the_adapter_imports_from_its_folder(mine):
    found = members(program(mine).archive)

    assert read_question(found[MEMBER]) == QUESTION
    assert {
        "neighbour.py",
        "further/__init__.py",
        "further/deep.py",
        "pipeconform/oracle/full_model.py",
    } <= set(found)
    assert {"unused.py", "mine.py"}.isdisjoint(found)


def test_the_same_question_gives_the_same_files(mine):
    assert program(mine) == program(mine)


def test_relative_imports_of_our_own_adapters_are_written_in_full():
    one = program("pipeconform.reference_impl.faults.scale:NotDivided")

    assert "from pipeconform.reference_impl.adapter import " in one.text
    assert "from ." not in one.text
    assert "pipeconform/reference_impl/stage.py" in members(one.archive)


def test_an_adapter_of_an_installed_package_is_named_and_not_carried():
    text = program("their_package.adapter:Theirs").text

    assert 'main(__file__, "their_package.adapter:Theirs")' in text
    assert "Below stands the adapter" not in text


def test_quotes_and_backslashes_of_messages_do_no_harm(mine):
    text = program(mine, found='it said """no\\way"""').text
    names = {}
    exec(compile(text.partition("\nfrom __future__")[0], "shown.py", "exec"), names)

    assert names["__doc__"].startswith("engine 1.0: it said '''no\\way'''\n")


def test_a_wrong_question_is_refused():
    with pytest.raises(UsageError, match="there is no file none"):
        program("none.py:Mine")


def test_a_program_of_torch_s_adapter_can_be_read():
    assert len(program("torch").text.splitlines()) < 450
