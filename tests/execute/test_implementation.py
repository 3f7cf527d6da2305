"""Finding, importing and describing an implementation: what is wrong with it is said in one sentence."""

import subprocess
import sys
import textwrap

import msgspec
import pytest

from pipeconform.adapter import Description
from pipeconform.campaign.describing import describe as described
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.errors import BadAdapterError
from pipeconform.execute.described import Described, OfPipeline, OfWrapper, answer
from pipeconform.execute.implementation import describe, load, resolve
from pipeconform.ranks.pools import Pools
from pipeconform.wrapper import WrapperDescription

GOOD = """
from pipeconform.adapter import Capabilities, Description, ScheduleClaim

class MyAdapter:
    def describe(self):
        return Description(
            name="mine", version="1", capabilities=Capabilities(schedules=(ScheduleClaim(name="GPipe"),))
        )
    def setup_process(self): ...
    def build(self, plan): ...
"""


@pytest.fixture
def written(tmp_path):
    """Write an adapter file and return the reference to its MyAdapter."""

    def write(text, *, name="MyAdapter", file="mine.py"):
        path = tmp_path / file
        path.write_text(textwrap.dedent(text), "utf-8")
        return f"{path}:{name}"

    return write


def message(reference):
    with pytest.raises(BadAdapterError) as caught:
        describe(reference)
    return str(caught.value)


def test_a_good_adapter_describes_itself(written):
    assert isinstance(describe(written(GOOD)), Description)


def test_a_built_in_name_stands_for_a_module():
    assert resolve("torch") == "pipeconform.adapters.torch_pipelining:TorchPipelining"


def test_a_file_is_made_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)

    assert resolve("mine.py:MyAdapter") == f"{tmp_path / 'mine.py'}:MyAdapter"


@pytest.mark.parametrize(
    "reference", ["torchy", "", ":", "mine.py", "mine.py:", ":MyAdapter", "a:b-c", "a:b.c"]
)
def test_a_reference_of_no_form_is_answered_with_the_forms(reference):
    with pytest.raises(
        BadAdapterError, match=r"expected a built-in name \(torch, deepspeed, .*\), package\.module:Object"
    ):
        resolve(reference)


def test_a_missing_file_is_named():
    with pytest.raises(BadAdapterError, match=r"there is no file no/such/file\.py"):
        resolve("no/such/file.py:MyAdapter")


def test_a_name_that_no_file_can_have_is_named():
    with pytest.raises(BadAdapterError, match=r"there is no file a{300}\.py"):
        resolve(f"{'a' * 300}.py:MyAdapter")


def test_a_missing_module_is_named():
    assert message("no_such_package:MyAdapter").endswith(
        "importing no_such_package raised ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_a_module_that_is_a_file_here_is_written_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_adapter.py").write_text(GOOD)

    assert message("my_adapter:MyAdapter").endswith("; for the file, write my_adapter.py:MyAdapter")


def test_a_package_that_is_a_folder_here_is_told_how_to_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_engine_of_today").mkdir()

    assert message("my_engine_of_today.adapter:MyAdapter").endswith(
        "; ./my_engine_of_today is here, and can be imported with PYTHONPATH=. before the command"
    )


def test_a_missing_object_is_answered_with_the_nearest_that_the_file_defines(written):
    assert message(written(GOOD, name="Adapter")).endswith("but it has no 'Adapter'; nearest: MyAdapter")


def test_an_error_while_importing_is_told_with_its_line(written):
    assert message(written("x = 1\nimport no_such_engine")).endswith(
        "raised ModuleNotFoundError: No module named 'no_such_engine' (mine.py, line 2)"
    )


def test_a_syntax_error_is_told_with_its_line(written):
    assert message(written("def f(:\n    pass")).endswith(
        "raised SyntaxError: invalid syntax (mine.py, line 1)"
    )


def test_a_file_that_exits_is_no_adapter(written):
    assert message(written("raise SystemExit(3)")).endswith("raised SystemExit: 3 (mine.py, line 1)")


def test_a_file_that_failed_is_imported_anew_when_it_is_mended(written):
    message(written("1 / 0"))

    assert load(written(GOOD)).describe().name == "mine"


def test_missing_methods_are_named(written):
    text = GOOD.replace("def build(", "def build_it(").replace("def setup_process(", "def set_up(")

    assert "MyAdapter lacks setup_process(), build(); a valid adapter has describe()" in message(
        written(text)
    )


def test_a_class_that_wants_arguments_cannot_be_made(written):
    text = GOOD.replace("class MyAdapter:", "class MyAdapter:\n    def __init__(self, engine): ...")

    assert "missing 1 required positional argument: 'engine'; an adapter class is called" in message(
        written(text)
    )


def test_an_error_in_describe_is_told_with_its_line(written):
    text = GOOD.replace(
        "        return Description(", "        raise KeyError('x')\n        return Description("
    )

    assert message(written(text)).endswith("describe() raised KeyError: 'x' (mine.py, line 6)")


@pytest.mark.parametrize("value", ["'mine'", "None", "{}", "Description"])
def test_a_description_of_another_type_is_shown(written, value):
    text = GOOD.replace("        return Description(", f"        return {value}\n        return Description(")

    assert "describe() returned" in message(written(text))
    assert "expected pipeconform.adapter.Description" in message(written(text))


@pytest.mark.parametrize(
    ("was", "becomes", "expected"),
    [
        ('name="mine"', "name=3", "Expected `str`, got `int` - at `Description.name`"),
        (
            '(ScheduleClaim(name="GPipe"),)',
            '("GPipe",)',
            "Expected `object`, got `str` - at `Description.capabilities.schedules[0]`",
        ),
        (
            'name="GPipe"',
            'name="GPipe", stages_per_rank=1',
            "Expected `array`, got `int` - at `Description.capabilities.schedules[0].stages_per_rank`; a tuple with "
            'one element is written ("x",)',
        ),
        ('version="1"', "version=object()", "Encoding objects of type object is unsupported"),
    ],
)
def test_a_field_of_another_type_is_named_by_its_path(written, was, becomes, expected):
    assert message(written(GOOD.replace(was, becomes))).endswith(
        f"describe() returned a wrong value: {expected}"
    )


def test_an_adapter_that_claims_no_schedule_cannot_be_judged(written):
    text = GOOD.replace('(ScheduleClaim(name="GPipe"),)', "()")

    assert message(written(text)).endswith("describe() claims no schedule, so nothing can be judged")


WRAPPER = """
from pipeconform.wrapper import WrapperClaims, WrapperDescription

class MyAdapter:
    def describe(self):
        return WrapperDescription(name="mine", version="1", claims=WrapperClaims())
    def wrap(self, module, options): ...
"""


def test_what_wraps_and_does_not_build_is_described_as_a_wrapper(written):
    both = WRAPPER + "    def build(self, plan): ...\n    def setup_process(self): ...\n"

    assert isinstance(describe(written(WRAPPER)), WrapperDescription)
    assert "expected pipeconform.adapter.Description" in message(written(both, file="both.py"))


@pytest.mark.parametrize(
    ("was", "becomes", "expected"),
    [
        (
            "def describe(",
            "def describe_it(",
            "lacks describe(); a valid adapter has describe(), wrap() (see pipeconform.wrapper.WrapperAdapter",
        ),
        (
            "        return Wrapper",
            "        return 3\n        return Wrapper",
            "expected pipeconform.wrapper.Wrapper",
        ),
        ('name="mine"', "name=3", "Expected `str`, got `int` - at `WrapperDescription.name`"),
        (
            "claims=WrapperClaims()",
            "claims=1 / 0",
            "describe() raised ZeroDivisionError: division by zero (mine.py",
        ),
    ],
)
def test_a_wrappers_mistakes_are_told_in_the_words_of_its_contract(written, was, becomes, expected):
    assert expected in message(written(WRAPPER.replace(was, becomes)))


@pytest.mark.parametrize(("text", "kind"), [(GOOD, OfPipeline), (WRAPPER, OfWrapper)])
def test_the_answer_of_a_rank_says_what_was_described(written, text, kind):
    reference = written(text)
    found = msgspec.msgpack.decode(answer(None, reference.encode()), type=Described).kind

    assert type(found) is kind
    assert found.description == describe(reference)


def test_the_adapter_s_folder_is_on_the_import_path_after_everything_installed(written, tmp_path):
    """In a new process, in which no other test can have put it there."""
    beside = "import beside\nimport msgspec\n\nassert msgspec.Struct\n"
    (tmp_path / "beside.py").write_text("NAME = 'found beside'\n")
    (tmp_path / "msgspec.py").write_text("raise AssertionError('a file hides a library')\n")
    text = beside + GOOD.replace('name="mine"', "name=beside.NAME")
    code = (
        "import sys; from pipeconform.execute.implementation import describe; "
        f"print(describe(sys.argv[1]).name, sys.path[-1] == {str(tmp_path)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, written(text)], check=False, capture_output=True, text=True
    )

    assert done.stdout.split() == ["found", "beside", "True"], done.stderr


def test_what_lies_beside_an_adapter_is_found_in_rank_processes_from_any_folder(
    written, tmp_path, monkeypatch
):
    """Also by an import that is not made before `build()`: the adapter's folder stays on the path."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "engine_beside.py").write_text("MOST_RANKS = 3\n")
    text = GOOD.replace("    def build(self, plan): ...", BUILDS)
    full = resolve(written(text))
    with Pools(preload=PRELOAD) as pools:
        executor = Executor(implementation=full, description=described(pools, full), pools=pools)
        verdicts = executor.execute(CASE).verdicts

    assert [one.message for one in verdicts] == ["MOST_RANKS is 3"]


BUILDS = """    def build(self, plan):
        import engine_beside

        raise ValueError(f"MOST_RANKS is {engine_beside.MOST_RANKS}")
"""
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),)),
    schedule="GPipe",
    world=World(size=1, pipeline_ranks=(0,)),
    program=(Train(batch_size=2, num_microbatches=2),),
)
