"""The line of the project that a violation comes from, found without importing anything."""

import pytest

from pipeconform.ranks.waiting import Place
from pipeconform.report.origin import Origin, Origins
from tests.report.conftest import make

__all__ = ["make"]


@pytest.fixture
def project(tmp_path):
    files = {
        "adapters/mine.py": '"""Mine."""\n\nraise SystemExit("imported")\n\n\nclass Mine: ...\n\n\nother = Mine()\n',
        "src/engine/send.py": "",
        "src/engine/__init__.py": "",
        "one/same.py/__init__.py": "",
        ".venv/lib/engine2/send.py": "",
        "env/pyvenv.cfg": "",
        "env/lib/torch/x.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def origins(project, reference="adapters/mine.py:Mine"):
    return Origins(f"{project}/{reference}", root=project)


def chain(*frames):
    return "\n".join(["what is wrong", "ranks 0, 1 raised at", *(f"  {one}\n    code" for one in frames)])


@pytest.mark.parametrize(("name", "line"), [("Mine", 6), ("other", 9), ("absent", 1)])
def test_an_adapter_is_found_where_its_file_defines_it(project, name, line):
    found = origins(project, f"adapters/mine.py:{name}").adapter

    assert found == Origin(file="adapters/mine.py", line=line)


def test_an_adapter_in_a_module_is_found_from_the_working_directory(project, monkeypatch):
    monkeypatch.chdir(project / "adapters")

    assert Origins("mine:Mine", root=project).adapter == Origin(file="adapters/mine.py", line=6)


@pytest.mark.parametrize("reference", ["nonsense", "no.where:Mine", "no/file.py:Mine"])
def test_an_adapter_that_cannot_be_found_has_no_line(project, reference):
    assert Origins(reference, root=project).adapter is None


def test_what_comes_with_pipeconform_is_found_in_a_clone_and_nowhere_else(project, pytestconfig):
    inside = Origins("torch", root=pytestconfig.rootpath).adapter

    assert inside is not None
    assert inside.file == "pipeconform/adapters/torch_pipelining.py"
    assert Origins("torch", root=project).adapter is None


def test_the_innermost_frame_of_the_project_is_named(project, make):
    message = chain(
        "adapters/mine.py, line 4, in run",
        "engine/send.py, line 12, in send",
        "torch/x.py, line 3, in y",
        "engine2/send.py, line 3, in y",
    )
    violation = make.violation("FWD-1", "GPipe", status="error", message=message)

    assert origins(project).of(violation) == Origin(file="src/engine/send.py", line=12)


def test_names_that_two_files_share_are_not_guessed(project, make):
    (project / "more/engine").mkdir(parents=True)
    (project / "more/engine/send.py").write_text("")
    violation = make.violation("FWD-1", "GPipe", message=chain("engine/send.py, line 12, in send"))

    assert origins(project).of(violation) == Origin(file="adapters/mine.py", line=6)


def test_a_hang_is_named_where_its_rank_waits(project, make):
    stack = (
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/torch/x.py", line 3 in wait\n'
        f'  File "{project}/env/lib/site-packages/torch/x.py", line 3 in wait\n'
        f'  File "{project}/src/engine/send.py", line 21 in recv\n  File "{project}/adapters/mine.py", line 4 in run\n'
    )
    place = Place(rank=0, verdict="stuck", stack=stack)
    violation = make.violation("FWD-1", "GPipe", status="hung", places=(place,))

    assert origins(project).of(violation) == Origin(file="src/engine/send.py", line=21)


def test_a_wrong_value_is_named_at_the_adapter(project, make):
    assert origins(project).of(make.violation("FWD-1", "GPipe")) == Origin(file="adapters/mine.py", line=6)
