"""Programs end with what they are about, on torch as it is; and with NOT REPRODUCED on a torch that is mended."""

import os
import subprocess
import sys

import pytest
import torch
from msgspec import structs

from benchmarks.programs.running import replayed
from pipeconform.case import blocks
from pipeconform.case.case import ByHand, Case, Eval, Model, Stage, Train, World, Zero
from pipeconform.case.mistakes import Mistake
from pipeconform.case.replicas import Replicas
from pipeconform.export.plain.refusal import NotPlainError
from tests.export.plain.conftest import question_of, written

LINEAR = blocks.Linear()


def case_of(schedule, *stages, program, width=2, v=1, frozen=(), world=None):
    p = len(stages) // v
    return Case(
        model=Model(
            width=width,
            stages=tuple(Stage(blocks=several, frozen=s in frozen) for s, several in enumerate(stages)),
        ),
        schedule=schedule,
        stages_per_rank=v,
        world=world or World(size=p, pipeline_ranks=tuple(range(p))),
        program=program,
        seed=1,
    )


ONCE = (Train(batch_size=2, num_microbatches=2),)
ALONE = World(size=1, pipeline_ranks=(0,), replicas=Replicas(others=()))
STOLEN = "raised AssertionError: can't steal_bwd_input if this stage doesn't have backward"
REBUILT = (
    "raised RuntimeError: params_.size() == rebuilt_param_indices_.size() INTERNAL ASSERT FAILED at "
    '"/__w/pytorch/pytorch/torch/csrc/distributed/c'
)
TWICE = question_of(
    case_of("GPipe", (LINEAR,), program=ONCE * 2), "TRN-4", "gradient of earlier steps divided by m"
)
EVALUATED = question_of(
    case_of(
        "ZBVZeroBubble", (LINEAR,), (LINEAR,), v=2, program=(*ONCE, Eval(batch_size=2, num_microbatches=2))
    ),
    "LIF-1",
    STOLEN,
    status="error",
)
SMALL = Train(batch_size=1, num_microbatches=1)
TOO_EARLY = structs.replace(SMALL, by_hand=ByHand(mistake="weight_first"))

SHOWN = {
    "a gradient": TWICE,
    "an exception": EVALUATED,
    "what an evaluation changes": question_of(
        case_of("GPipe", (LINEAR,), program=(*ONCE, Eval(batch_size=2, num_microbatches=2))),
        "LIF-1",
        "evaluation changed a gradient",
    ),
    "a second schedule": question_of(
        case_of(
            "GPipe",
            (LINEAR,),
            (LINEAR,),
            program=(*ONCE, Zero(), Eval(batch_size=2, num_microbatches=2), *ONCE),
            world=World(size=2, pipeline_ranks=(0, 1), second_schedule=True),
        ),
        "LIF-9",
        "gradient value",
    ),
    "a missing gradient": question_of(
        case_of("ZBVZeroBubble", (LINEAR,), (LINEAR,), v=2, frozen=(0,), program=ONCE),
        "TRN-5",
        "gradient missing",
    ),
    "a buffer": question_of(
        case_of("1F1B", (LINEAR, blocks.BatchNorm()), (LINEAR,), program=ONCE), "TRN-9", "buffer value"
    ),
    "hooks": question_of(
        case_of("GPipe", (LINEAR,), (blocks.InputHooked(), LINEAR), program=(SMALL, Zero(), SMALL)),
        "FWD-26",
        "hooks ran more often",
    ),
    "hooks that run less often": question_of(
        case_of("InterleavedZeroBubble", (LINEAR,), (LINEAR, blocks.Accumulating()), program=(SMALL,)),
        "FWD-17",
        "hooks ran less often",
    ),
    "hooks in a dry run": question_of(
        case_of("GPipe", (LINEAR, blocks.Hooked()), program=ONCE), "FWD-25", "hooks ran in a dry run"
    ),
    "a length": question_of(
        case_of("ForwardOnly", (LINEAR,), (LINEAR,), program=(Eval(batch_size=3, num_microbatches=2),)),
        "FWD-2",
        "output length",
    ),
    "deferred weights": question_of(
        case_of("1F1B", (LINEAR,), (LINEAR, blocks.Deferred()), program=ONCE),
        "SPL-3",
        "deferred weight entry: too many",
    ),
    "a declared table": question_of(
        case_of("1F1B", (LINEAR,), program=ONCE), "SCH-4", "declared table is incomplete"
    ),
    "inputs beyond a bound": question_of(
        case_of("1F1B", (LINEAR,), (LINEAR,), program=ONCE), "LIF-7", "boundary tensors beyond the bound"
    ),
    "an operation that is not due": question_of(
        case_of("InterleavedZeroBubble", (LINEAR,), program=(TOO_EARLY, Zero(), TOO_EARLY)),
        "SPL-6",
        "the weight part before the input part: unclear error",
    ),
    "the death of a rank": question_of(
        case_of(
            "GPipe",
            (LINEAR,),
            (LINEAR,),
            program=(
                *ONCE,
                Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="output", how="inner")),
            ),
        ),
        "ERR-3",
        "died: SIGABRT",
        status="crashed",
    ),
    "an error on some ranks only": question_of(
        case_of("GPipe", (LINEAR,), (LINEAR,), program=(Train(batch_size=3, num_microbatches=2),)),
        "FWD-24",
        "refused on some ranks only",
        status="error",
    ),
    "stages refused on some ranks only": question_of(
        case_of(
            "Interleaved1F1B",
            *((LINEAR,),) * 6,
            v=3,
            world=World(size=2, pipeline_ranks=(0, 1), placement="v"),
            program=(SMALL,),
        ),
        "ERR-16",
        "refused on some ranks only",
        status="error",
    ),
    "replicas": question_of(
        case_of("GPipe", (LINEAR,), world=ALONE, program=ONCE * 2), "DPC-4", REBUILT, status="error"
    ),
}

MENDED_SCALE = """
from torch.distributed.pipelining import schedules, stage

compute = schedules._PipelineSchedule._compute_loss
schedules._PipelineSchedule._compute_loss = lambda self, *args: compute(self, *args) / self._n_microbatches
stage._PipelineStageBase.scale_grads = lambda self, factor: None
"""
MENDED_EVAL = """
from torch.distributed.pipelining import stage

base = stage._PipelineStageBase
give, take = base.get_local_bwd_output, base.set_local_bwd_input
base.get_local_bwd_output = lambda self, k: give(self, k) if self.has_backward else None
base.set_local_bwd_input = lambda self, value, k: take(self, value, k) if self.has_backward else None
"""
MENDED_DRY_RUN = """
import copy

from torch.distributed.pipelining import PipelineStage

compute = PipelineStage._compute_outputs
PipelineStage._compute_outputs = lambda self, *args, module, **kwargs: compute(
    self, *args, module=copy.deepcopy(module), **kwargs
)
"""
MENDED_BUFFERS = """
from torch.distributed.pipelining import stage

base = stage._PipelineStageBase
received = base._retrieve_recv_activations
base._retrieve_recv_activations = lambda self, k: tuple(
    one.detach().clone().requires_grad_(one.requires_grad) for one in received(self, k)
)
"""
MENDED_REFUSAL = """
from torch.distributed.pipelining.schedules import PipelineScheduleSingle


def refused(self, *args, target=None, losses=None, **kwargs):
    raise ValueError("the microbatches of a batch must be equally large")


PipelineScheduleSingle.step = refused
"""
MENDED = {
    "a gradient": MENDED_SCALE,
    "an exception": MENDED_EVAL,
    "what an evaluation changes": MENDED_SCALE,
    "a buffer": MENDED_DRY_RUN,
    "hooks": MENDED_BUFFERS,  # the dry run still adds one
    "hooks in a dry run": MENDED_DRY_RUN,
    "deferred weights": MENDED_DRY_RUN,
    "an error on some ranks only": MENDED_REFUSAL,
}


MENDED_SINCE = {"a buffer": "2.14", "hooks": "2.15", "inputs beyond a bound": "2.15"}
"""What a later release does not show, as docs/releases.md says of its requirement."""


def shown_by_this_release(name):
    """Whether torch still does what a question is about."""
    release, since = (
        tuple(map(int, text.split(".")[:2])) for text in (torch.__version__, MENDED_SINCE.get(name, "99.0"))
    )
    return release < since


def put(tmp_path, question):
    path = tmp_path / "shown.py"
    path.write_text(written(question))
    return path


@pytest.mark.parametrize("name", SHOWN)
def test_what_was_found_is_reproduced_where_torch_still_does_it(programs, tmp_path, name):
    code, output = programs.run(put(tmp_path, SHOWN[name]))

    shown = shown_by_this_release(name)
    assert (code, output.splitlines()[-1]) == ((1, "REPRODUCED") if shown else (0, "NOT REPRODUCED")), output


@pytest.mark.parametrize("name", SHOWN)
def test_replay_says_the_same(pools, name):
    expected = "reproduced" if shown_by_this_release(name) else "met"
    assert replayed(SHOWN[name], "torch", pools) == expected


@pytest.mark.parametrize("name", MENDED)
def test_a_mended_torch_does_not_show_it(programs, tmp_path, name):
    code, output = programs.run(put(tmp_path, SHOWN[name]), MENDED[name])

    assert code == 0, output
    assert output.splitlines()[-1] == "NOT REPRODUCED"


def test_a_wait_that_a_closing_connection_ends_is_not_written_plainly():
    raises = Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="backward", how="raise", stage=1))
    case = case_of("GPipe", (LINEAR,), (LINEAR,), program=(raises,))

    with pytest.raises(NotPlainError, match="closes the pipeline's connections"):
        written(question_of(case, "ERR-10", "hang", status="hung"))
    assert "time.sleep" in written(question_of(case, "ERR-14", "others left waiting", status="hung"))


def test_another_error_than_the_one_sought_is_inconclusive(programs, tmp_path):
    other = question_of(EVALUATED.case, "LIF-1", "raised AssertionError: another", status="error")
    code, output = programs.run(put(tmp_path, other))

    assert code == 3, output
    assert output.splitlines()[-1].startswith("INCONCLUSIVE")


@pytest.mark.parametrize("where", ["    (loss", "    schedule = "])
def test_a_mistake_in_the_program_is_inconclusive(programs, tmp_path, where):
    path = put(tmp_path, TWICE)
    text = path.read_text()
    indented = next(line for line in text.splitlines() if where in line)
    spaces = " " * (len(indented) - len(indented.lstrip()))
    path.write_text(text.replace(indented, f"{spaces}undefined_name\n{indented}", 1))
    code, output = programs.run(path)

    assert code == 3, output
    assert "NameError" in output
    assert output.splitlines()[-1].startswith("INCONCLUSIVE")


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["default", "validated"])
def test_a_rank_that_waits_is_seen_by_the_group_s_time_limit(programs, tmp_path, variant):
    program = (Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="forward", how="raise")),)
    asked = question_of(
        case_of("GPipe", (LINEAR,), (LINEAR,), program=program),
        "ERR-14",
        "others left waiting",
        status="hung",
        variant=variant,
    )
    code, output = programs.run(put(tmp_path, asked))

    assert code == 1, output


@pytest.mark.slow
@pytest.mark.parametrize(("change", "expected"), [("", 1), (MENDED_SCALE, 0)])
def test_it_runs_as_a_user_runs_it(tmp_path, change, expected):
    (tmp_path / "sitecustomize.py").write_text(change)
    done = subprocess.run(
        [sys.executable, str(put(tmp_path, TWICE))],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert done.returncode == expected, done.stdout + done.stderr
