"""What to do next about a violation."""

import msgspec
import pytest

from pipeconform.report.cause_text import cause_block
from pipeconform.report.causes import causes_of
from pipeconform.report.next_steps import STEPS, next_step
from tests.report.test_localisation_text import FOUND

EXAMPLES = {
    ("hang", "a circle: rank 0 waits for rank 1 waits for rank 0"): "in one batch_isend_irecv",
    ("hang", "rank 1 waits for rank 0, which has returned"): "raise on all of them or none",
    ("raised RuntimeError: no", "rank 0 raised: input tensor has to be contiguous"): "tensor.contiguous()",
    ("refused: p too large", ""): "claim less",
    ("refused on some ranks only", ""): "size of the batch on every rank",
    ("gradient value", "it is 0.5 times the reference's"): "Capabilities.scale",
    ("gradient of earlier steps divided by m", ""): "before it is added to .grad",
    ("gradient of earlier steps lost", ""): "add to .grad",
    ("output value", "it is microbatch 2's"): "a buffer for each microbatch in flight",
    ("gradient missing", ""): "run the backward of every stage",
    ("buffer value", ""): "put the buffers back",
    ("hooks ran in a dry run", ""): "the meta device",
    ("declared and executed differ", ""): "table()",
    ("output order", ""): "in the order of microbatches",
    ("loss on the wrong rank", ""): "outputs_on and loss_on",
    ("boundary tensors beyond the bound", ""): "free the received input",
    ("evaluation records a graph", ""): "torch.no_grad()",
    ("evaluation in training mode", ""): "module.eval()",
    ("outputs kept", ""): "drop references",
    ("another group", ""): "plan.ranks.pipeline_group",
    ("synchronised too early", ""): "no_sync()",
    ("second close raises", ""): "close()",
    ("input_shape: accepted", ""): "names stage, tensor, expected and actual",
}
COMPOSED = (
    "raised",
    "refused: ",
    "gradient",
    "output value",
    "buffer value",
    "boundary tensors",
    "input_shape",
)


@pytest.mark.parametrize(("signature", "message"), EXAMPLES)
def test_a_violation_with_a_usual_remedy_has_advice(make, signature, message):
    violation = make.violation("FWD-1", "GPipe", signature=signature, message=message)

    assert EXAMPLES[signature, message] in next_step(violation)


def test_every_advice_has_an_example_and_is_given_only_there(make):
    given = [
        next(
            at
            for at, step in enumerate(STEPS)
            if step.suits(make.violation("FWD-1", "GPipe", signature=s, message=m))
        )
        for s, m in EXAMPLES
    ]

    assert given == list(range(len(STEPS)))
    assert next_step(make.violation("FWD-1", "GPipe", signature="hang", message="")) == ""


def test_advice_about_the_first_wrong_value_is_given_from_its_hint(make):
    first = msgspec.structs.replace(FOUND.first, likeness="it is microbatch 0's")
    wrong = {"signature": "gradient value", "localisation": msgspec.structs.replace(FOUND, first=first)}

    assert "microbatch in flight" in next_step(make.violation("TRN-1", "GPipe", **wrong))


@pytest.mark.parametrize("signature", [one for one, _ in EXAMPLES if not one.startswith(COMPOSED)])
def test_the_kinds_that_have_advice_are_still_reported(pytestconfig, signature):
    root = pytestconfig.rootpath
    files = [*(root / "pipeconform/judge").rglob("*.py"), *(root / "suites").rglob("*.py")]

    assert any(f'"{signature}"' in file.read_text() for file in files)


def test_the_advice_stands_before_the_command_that_executes_the_case_again(make):
    (cause,) = causes_of(
        make.result(make.cell("TRN-9", "GPipe", make.violation("TRN-9", "GPipe", signature="buffer value")))
    )
    lines = str(cause_block(cause, number=1, width=80, where=None)).splitlines()

    assert lines[-3].startswith("   next: run the forward of a stage once")
    assert lines[-1].startswith("   pipeconform replay ")
