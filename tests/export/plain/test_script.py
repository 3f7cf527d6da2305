"""The text of a plain program, and what cannot be written as one."""

import ast
import io
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from msgspec import structs

from pipeconform import export
from pipeconform.case import blocks
from pipeconform.case.case import Case, Kwarg, Model, Stage, Train, World
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.export.plain.refusal import NotPlainError
from tests.export.plain.conftest import question_of, written
from tests.export.plain.test_verdicts import SHOWN, TWICE

ROOM = Path(export.__file__).parent
CARRIED = ("program.py", "question.py")
MOST_LINES = 700
RUFF = shutil.which("ruff", path=str(sys.prefix) + "/bin") or shutil.which("ruff")


@pytest.mark.parametrize("question", SHOWN.values(), ids=SHOWN)
def test_a_program_is_short_and_has_nothing_of_this_package(question):
    text = written(question)

    assert len(text.splitlines()) <= 200
    assert "pipeconform" not in text
    compile(text, "shown.py", "exec")


@pytest.mark.skipif(RUFF is None, reason="ruff is not installed")
@pytest.mark.parametrize("question", SHOWN.values(), ids=SHOWN)
def test_a_program_is_formatted(question, tmp_path):
    (tmp_path / "shown.py").write_text(written(question))
    command = [RUFF, "format", "--check", "--line-length", "110", "--isolated", str(tmp_path / "shown.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_says_what_happens_and_what_was_expected():
    head = written(
        TWICE, "the gradient of blocks.0.weight in stage 0 is not the reference's\n  expected  1.0"
    )

    assert head.startswith(
        '"""GPipe of torch.distributed.pipelining: Accumulation over steps (TRN-4).\n\n'
        "Seen: the gradient of blocks.0.weight in stage 0 is not the reference's; expected 1.0\n"
        "Expected: A step scales only what it contributed"
    )


def test_a_program_of_torch_s_detail_level_sets_it():
    asked = structs.replace(TWICE, variant="validated", settings={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})

    assert '    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\n' in written(asked)


def _case(**fields):
    model = Model(**{"width": 2, "stages": (Stage(blocks=(blocks.Linear(),)),), **fields})
    program = (Train(batch_size=2, num_microbatches=2),)
    return Case(model=model, schedule="GPipe", world=World(size=1, pipeline_ranks=(0,)), program=program)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (structs.replace(TWICE, sought=None), "no violation is known that it could show"),
        (structs.replace(TWICE, device="cuda"), "the device is cuda"),
        (
            question_of(WrapperCase(), "DPW-1", "gradient differs"),
            "the case is of a wrapper, not of a pipeline",
        ),
        (question_of(_case(kwargs=(Kwarg(stage=0),)), "TRN-1", "gradient value"), "keyword arguments"),
        (question_of(_case(output="dict"), "TRN-1", "gradient value"), "several tensors come in or out"),
        (
            question_of(_case(stages=(Stage(blocks=(blocks.Compiled(),)),)), "TRN-1", "gradient value"),
            "a stage has the block Compiled",
        ),
        (
            question_of(
                _case(stages=(Stage(blocks=(blocks.Linear(), blocks.InputHooked())),)),
                "FWD-26",
                "gradient value",
            ),
            "a block hooks what its stage is given",
        ),
        (question_of(_case(), "DPC-2", "synchronised too early"), "is not seen in the values of a step"),
    ],
)
def test_what_cannot_be_written_plainly_is_told(question, why):
    with pytest.raises(NotPlainError, match=why):
        written(question)


def _lines_of_code(path):
    """Lines without blank ones, comments and docstrings."""
    text = path.read_text("utf-8")
    quiet = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {row for one in tokens if one.type not in quiet for row in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_what_writes_programs_is_small():
    """What programs carry does not count: two modules, and templates but for Jinja's statements."""
    modules = [one for one in ROOM.rglob("*.py") if one.name not in CARRIED]
    statements = [
        line for one in ROOM.rglob("*.jinja") for line in one.read_text("utf-8").splitlines() if "{%" in line
    ]

    assert sum(map(_lines_of_code, modules)) + len(statements) <= MOST_LINES
