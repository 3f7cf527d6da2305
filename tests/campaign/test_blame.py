"""Who is to blame for an exception: mistakes of an adapter and of a machine are no violations of the engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.blame import blamed, is_no_answer
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.misplans import Misplan
from pipeconform.case.mistakes import Mistake
from pipeconform.errors import BadAdapterError, ContractError
from pipeconform.execute.implementation import resolve
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Cause, Raised
from pipeconform.spec import requirement

FILE = Path(__file__).with_name("mistaken_adapters.py")
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="1F1B",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=2, num_microbatches=2),),
)
ENGINE = Frame(module="engine.core", file="engine/core.py", line=3, function="start")
OWN = Frame(module="mine", file="mine.py", line=7, function="build", source="start(plan)")


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=(*PRELOAD, "pipeconform.reference_impl.adapter")) as pools:
        yield pools


def judged(pools, name, row="FWD-1", *, file=FILE, case=CASE):
    full = resolve(f"{file}:{name}")
    executor = Executor(implementation=full, description=describe(pools, full), pools=pools)
    return judge_again(case, (requirement(row),), PipelineRunner(executor))[row]


ADAPTERS = [
    ("TakesOptions", r"TakesOptions\.build\(plan, options\) is called as build\(plan\)"),
    ("RunsBatch", r"Pipeline\.run\(batch\) is called as run\(mode, batch\)"),
    ("AppliesNothing", r"Pipeline\.apply\(\) is called as apply\(operation\)"),
    ("Imports", r"No module named 'not_there_at_all'\n.* in build\n.*import not_there_at_all\n.*install"),
    ("ImportsName", r"cannot import name 'NoSuchSchedule'"),
    (
        "ImportsAHalfWrittenFile",
        r"SyntaxError: .*half_written.py, line 1\)(.*\n)*.*import half_written\n.*fix build",
    ),
    (
        "Misspells",
        r"has no attribute 'stges'\n(.*\n)*.*fix build\(\) in the adapter's file, line \d+",
    ),
    ("Undefined", r"NameError: name 'bach' is not defined\n(.*\n)*.*fix run\(\)"),
    ("Misindexes", r"KeyError: 'first'\n(.*\n)*.*fix gradients\(\)"),
    ("Compares", r"TypeError: '>' not supported(.*\n)*.*fix build\(\)"),
    ("CallsWithTooMuch", r"TypeError: .*(.*\n)*.*nn\.Linear\(3, 3, 3, 3, 3, 3\)\n.*fix build\(\)"),
    ("SetsUpWrongly", r"KeyError: 'first'\n.*\n.*self\.ports\[.*\n.*fix setup_process\(\)"),
    ("LacksState", r"build\(\) returned a Pipeline, which lacks state\(\)"),
    ("BuildsNothing", r"build\(\) returned None, which lacks owned\(\), run\(\)"),
    ("ReturnsTuples", r"run\(\) returned a tuple; expected pipeconform\.adapter\.StepResult"),
    ("OwnsAList", r"owned\(\) returned a list; expected a mapping from stage indices"),
    (
        "NumbersStagesAnew",
        r"gradients\(\) has stage 10, which owned\(\) does not have; expected \[0\] at most",
    ),
    ("NoDevice", r"no such device or backend: .*(CUDA|NVIDIA)(.*\n)*.*choose another --device"),
    ("NoBackend", r"no such device or backend: .*MPI(.*\n)*.*choose another --device"),
]
"""Mistakes that show while a case runs, and what is said."""


@pytest.mark.parametrize(("name", "expected"), ADAPTERS)
def test_a_mistake_of_the_adapter_or_the_machine_is_no_violation(pools, name, expected):
    with pytest.raises(ContractError, match=expected) as error:
        judged(pools, name, "TRN-1")
    assert error.value.exit_code == 3


RAISING_ADAPTERS = {
    "Imports": "import not_there_at_all",
    "ImportsName": "from torch.distributed.pipelining import NoSuchSchedule",
    "ImportsAHalfWrittenFile": "import half_written",
    "Misspells": "return plan.stges",
    "Undefined": "return self.inner.run(mode, bach)  # noqa: F821 - the mistake",
    "Misindexes": 'return {0: self.inner.gradients()["first"]}',
    "Compares": "if plan.num_microbatches > self.limit:",
    "CallsWithTooMuch": "torch.nn.Linear(3, 3, 3, 3, 3, 3)",
    "SetsUpWrongly": 'self.port = self.ports["first"]',
    "NoDevice": 'torch.zeros(1, device="cuda")',
    "NoBackend": 'dist.new_group(backend="mpi")',
    "MisspellsInDescribe": "return self.descripton",
    "ClaimsUnknown": 'claims = replace(description.capabilities, schedules=(replace(first, family="gpip"), *others))',
}
"""The wrong line of every adapter that raises."""


@pytest.mark.parametrize("name", RAISING_ADAPTERS)
def test_the_wrong_line_of_an_adapter_is_named_wherever_it_raises(pools, name):
    source = RAISING_ADAPTERS[name]
    with pytest.raises((ContractError, BadAdapterError)) as error:
        judged(pools, name, "TRN-1")

    assert re.search(rf"mistaken_adapters\.py, line {line_of(source, FILE)}\b", str(error.value))
    if isinstance(error.value, ContractError):  # one line has no room for a source line
        assert f"\n    {source}\n" in str(error.value)


HELPER = Frame(module="helpers", file="helpers.py", line=9, function="sizes", source="return {}['x']")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (("engine",), "fix sizes() in helpers.py, line 9"),
        ((), ""),  # it may be the engine
        (("engine", "helpers"), ""),
    ],
)
def test_a_file_beside_the_adapter_s_is_its_own_if_it_says_what_the_engine_is(engine, expected):
    raised = Raised(type="KeyError", message="'x'", causes=(), frames=(OWN, HELPER))

    assert blamed(raised, adapter="mine", engine=engine).endswith(expected)
    assert bool(blamed(raised, adapter="mine", engine=engine)) is bool(expected)


def test_an_engine_that_an_adapter_calls_is_not_the_adapter_s_wherever_it_lies():
    raised = Raised(type="KeyError", message="'x'", causes=(), frames=(OWN, ENGINE, HELPER))

    assert blamed(raised, adapter="mine", engine=("engine",)) == ""


WRONG_BATCH = structs.replace(
    CASE,
    program=(Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="batch", how="scarce")),),
)
MISPLANNED = structs.replace(
    CASE, world=World(size=2, pipeline_ranks=(0, 1), misplan=Misplan(how="microbatches", rank=1, number=3))
)


@pytest.mark.parametrize(
    ("name", "row", "case", "expected"),
    [
        ("Undefined", "ERR-7", WRONG_BATCH, "NameError: name 'bach' is not defined"),
        ("Misspells", "ERR-10", WRONG_BATCH, r"has no attribute 'stges'\n(.*\n)*.*fix build\(\)"),
        ("Imports", "ERR-11", WRONG_BATCH, "No module named 'not_there_at_all'"),
        ("NoDevice", "ERR-9", MISPLANNED, "no such device or backend"),
        ("Misspells", "ERR-9", MISPLANNED, "has no attribute 'stges'"),
    ],
)
def test_it_is_none_in_chapter_err_either(pools, name, row, case, expected):
    with pytest.raises(ContractError, match=expected):
        judged(pools, name, row, case=case)


def test_what_an_adapter_raises_only_where_something_is_wrong_is_its_answer(pools):
    (outcome,) = judged(pools, "LooksUpSizes", "ERR-7", case=WRONG_BATCH)

    assert outcome.finding.kind == "batch: raised KeyError"


DESCRIBED = [
    ("MisspellsInDescribe", r"has no attribute 'descripton'; nearest: describe \(.*\.py, line \d+\)"),
    ("ClaimsUnknown", r"unknown schedule family 'gpip'; nearest: gpipe, bpipe \(.*\.py, line \d+\)"),
]
"""Mistakes that show when an adapter describes itself."""


@pytest.mark.parametrize(("name", "expected"), DESCRIBED)
def test_a_mistake_in_what_an_adapter_says_of_itself_is_found_before_anything_runs(pools, name, expected):
    with pytest.raises(BadAdapterError, match=expected):
        judged(pools, name)


SMALL = FILE.with_name("small_engine.py")
GPIPE = structs.replace(CASE, schedule="GPipe")
TWICE = structs.replace(GPIPE, program=GPIPE.program * 2)
SILENT = {
    "NotDivided": ("TRN-1", "gradient value"),
    "DividedTwice": ("TRN-1", "gradient value"),
    "LosesTheFirst": ("TRN-1", "gradient value"),
    "TurnsGradients": ("TRN-1", "gradient value"),
    "SendsTheFirstAgain": ("FWD-1", "output value"),
    "RoundsActivations": ("FWD-1", "output value"),
    "LossesBackwards": ("TRN-2", "loss order"),
    "OutputsBackwards": ("FWD-1", "output value"),
    "LosesAnOutput": ("FWD-1", "output shape"),
    "ForgetsEarlierGradients": ("TRN-4", "gradient of earlier steps lost"),
}
RAISING = {
    "Indexes": ("IndexError", "return loss / [m][m]"),
    "Looks": ("KeyError", 'self.rank = {"RANK": 0}["WORLD_SIZE"]'),
    "Asserts": ("AssertionError", 'assert gradient.ndim == 7, "a gradient has seven dimensions"'),
    "Divides": ("ZeroDivisionError", "self.share = 1 / (self.before is None and 0)"),
    "Multiplies": ("RuntimeError", "return torch.matmul(y, torch.zeros(13, 13, dtype=y.dtype))"),
    "Reads": ("JSONDecodeError", 'json.loads("{nonsense")'),
}
ENDING = {
    "WaitsForNothing": ("hung", r"rank 0 waits for receive from rank 1"),
    "Sleeps": ("hung", r"in small_.*engine\.py:\d+ begin"),
    "Exits": ("crashed", r"rank 1 .*exit code 7"),
    "ReadsNothing": ("crashed", r"rank 1 .*SIGSEGV"),
}


def of_engine(pools, name, row):
    case = TWICE if row == "TRN-4" else GPIPE
    return judged(pools, name, row, file=FILE.with_name("mistaken_engines.py"), case=case)


def line_of(source, file=SMALL):
    """The number of the line of the engine's file, or of another one, with this text."""
    return 1 + [line.strip() for line in file.read_text().splitlines()].index(source)


@pytest.mark.parametrize("row", ["FWD-1", "TRN-1", "TRN-2", "TRN-4"])
def test_an_engine_without_a_mistake_is_accused_of_none(pools, row):
    assert of_engine(pools, "Engine", row) == ()


@pytest.mark.parametrize("name", SILENT)
def test_wrong_values_are_the_engine_s(pools, name):
    row, kind = SILENT[name]

    assert kind in {outcome.finding.kind for outcome in of_engine(pools, name, row)}


@pytest.mark.parametrize("name", RAISING)
def test_what_an_engine_raises_is_its_own_and_its_line_is_named(pools, name):
    error, source = RAISING[name]
    (outcome,) = of_engine(pools, name, "TRN-1")

    assert outcome.status == "error"
    assert error in outcome.finding.kind
    assert f"small_engine.py, line {line_of(source)}, in " in outcome.finding.message
    assert source in outcome.finding.message


@pytest.mark.parametrize("name", ENDING)
def test_an_engine_that_waits_or_dies_is_seen_to(pools, name):
    status, expected = ENDING[name]
    (outcome,) = of_engine(pools, name, "TRN-1")

    assert outcome.status == status
    assert re.search(expected, f"{outcome.finding.message}\n{outcome.verdicts}")


def test_there_are_twenty_mistakes_of_each_kind():
    adapters = {name for name, _ in (*ADAPTERS, *DESCRIBED)}

    assert len(adapters) >= 20
    assert set(RAISING_ADAPTERS) <= adapters
    assert len({*SILENT, *RAISING, *ENDING}) == 20


def test_what_ranks_printed_stands_with_the_verdict(pools):
    (outcome,) = of_engine(pools, "Reads", "TRN-1")

    assert outcome.finding.message.endswith("ranks 0, 1 printed\n  the engine begins")


def test_an_error_that_the_adapter_makes_of_the_engine_s_is_the_engine_s():
    error = Raised("RuntimeError", "no", causes=(Cause("ValueError", "why"),), frames=(OWN, ENGINE))

    assert blamed(error, adapter="mine") == ""


def test_an_error_without_known_frames_is_the_engine_s():
    assert blamed(Raised("NameError", "x"), adapter="mine") == ""


TORCH = Frame(module="torch.cuda", file="torch/cuda/__init__.py", line=9, function="_lazy_init")
NO_GPU = "No CUDA GPUs are available"


@pytest.mark.parametrize(
    ("last", "message", "blames"),
    [
        (TORCH, NO_GPU, "choose another --device"),
        (TORCH, "CUDA error: an illegal memory access", ""),
        (ENGINE, NO_GPU, ""),
    ],
)
def test_the_machine_is_to_blame_only_for_what_torch_itself_says_that_it_lacks(last, message, blames):
    raised = Raised("RuntimeError", message, frames=(OWN, last))
    found = blamed(raised, adapter="mine")

    assert found.endswith(blames)
    assert bool(found) is bool(blames)


@pytest.mark.parametrize(
    ("kind", "source", "blames"),
    [
        ("KeyError", "options['w']", True),
        ("RuntimeError", "raise RuntimeError('not ready')", True),
        ("RuntimeError", "assert self.ready", True),
        ("KeyError", "raise KeyError(name)", True),
        ("RuntimeError", "if plan.ranks.rank == 1: raise RuntimeError('boom')", True),
        ("RuntimeError", "else: assert self.ready", True),
        ("SystemExit", "sys.exit('bye')", True),
        ("RuntimeError", "if raised: self.engine.step()", False),
        ("RuntimeError", "self.engine.step()", False),  # an engine's C++ code leaves no frame
    ],
)
def test_an_adapter_is_to_blame_for_what_it_raises_and_for_what_python_raises_in_it(kind, source, blames):
    frame = structs.replace(OWN, source=source)
    found = blamed(Raised(kind, "bad", frames=(frame,)), adapter="mine")

    assert bool(found) is blames
    assert blamed(Raised(kind, "bad", frames=(frame, ENGINE)), adapter="mine") == ""
    assert blamed(Raised(kind, "bad", frames=(frame,)), adapter="pipeconform.reference_impl.mine") == ""


@pytest.mark.parametrize(
    ("raised", "is_none"),
    [
        (Raised("NameError", "name 'x' is not defined"), True),
        (Raised("ModuleNotFoundError", "no engine"), True),
        (Raised("ValueError", "bad"), False),
        (Raised("RuntimeError", "No CUDA GPUs are available"), True),
        (Raised("ValueError", "bad", causes=(Cause("KeyError", "x"), Cause("NameError", "y"))), True),
        (Raised("NameError", "bad", causes=(Cause("KeyError", "x"),)), False),
    ],
)
def test_an_error_that_is_wrong_whatever_the_user_did_is_no_answer(raised, is_none):
    assert is_no_answer(raised) is is_none
