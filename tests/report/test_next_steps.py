"""What to do next about a violation."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeconform.observe.localisation import Deviation, Localisation
from pipeconform.report.cause_text import cause_block
from pipeconform.report.causes import causes_of
from pipeconform.report.next_steps import STEPS, next_step
from tests.report.test_localisation_text import FOUND, _lane

ONLY_WEIGHTS = Localisation(
    first=Deviation(
        direction="weight gradient", step=0, stage=1, rank=1, tensor="weight", text="value differs"
    ),
    lanes=(
        _lane("forward value", 1, "===", "input"),
        _lane("loss", 1, "==="),
        _lane("output gradient", 1, "==="),
        _lane("input gradient", 1, "==="),
        _lane("weight gradient", 1, "x"),
        _lane("weight gradient", 0, "="),
    ),
    compared=20,
    wrong=1,
)
"""What a receive buffer shows that is used again before the backward of its microbatch."""

CIRCLE = "a circle: rank 0 waits for rank 1 waits for rank 0"
EXAMPLES = {
    (
        "hang",
        f"rank 0 waits for barrier, for 0.3 s; step 6, inside restore()\n{CIRCLE}",
    ): "nothing to write or to read",
    ("hang", f"rank 0 waits for send to rank 1\n{CIRCLE}"): "in one batch_isend_irecv",
    ("hang", f"rank 0 waits for receive from rank 1\n{CIRCLE}"): "a send is missing or comes too late",
    ("hang", "rank 1 waits for rank 0, which has returned"): "raise on all of them or none",
    ("circle", CIRCLE): "only hide that a send waits",
    ("circle in order", CIRCLE): "in the same order on both",
    ("no W", ""): "drain what is left over",
    ("several B or I", ""): "once per stage and microbatch",
    ("raised RuntimeError: no", "rank 0 raised: input tensor has to be contiguous"): "tensor.contiguous()",
    ("raised TypeError: the", "the last stage returns a dict; the loss function is given a Tensor"): (
        "with what the last stage returned"
    ),
    ("refused: p too large", ""): "claim less",
    ("refused on some ranks only", ""): "size of the batch on every rank",
    ("scale", "3 times the reference's (m = 3, mean-reduced loss)"): "divide by m once",
    ("scale", "0.5 times the reference's (m = 2, sum-reduced loss)"): "divide nothing by m",
    ("gradient value", "it is 0.5 times the reference's"): "Capabilities.scale",
    ("gradient of earlier steps divided by m", ""): "before it is added to .grad",
    ("gradient of earlier steps lost", ""): "add to .grad",
    ("gradient missing", "the gradient of returned in stage 1"): "do not detach it in place",
    ("output value", "it is microbatch 2's"): "a buffer for each microbatch in flight",
    ("gradient value", "differs"): "what the stage keeps for its backward",
    ("gradient missing", ""): "run the backward of every stage",
    ("buffer value", ""): "put the buffers back",
    ("kept input changed", ""): "new memory in every step",
    ("hooks ran in a dry run", ""): "the meta device",
    ("not the given order", ""): "the lines of Plan.table",
    ("declared and executed differ", ""): "table()",
    ("output order", ""): "in the order of microbatches",
    ("output unexpected", ""): "torch.cat along batch.batch_dim",
    ("loss on the wrong rank", ""): "outputs_on and loss_on",
    ("boundary tensors beyond the bound", ""): "free the received input",
    ("evaluation records a graph", ""): "torch.no_grad()",
    ("evaluation in training mode", ""): "module.eval()",
    ("outputs kept", ""): "drop references",
    ("more bytes than needed", "and rank 2 is no neighbour of rank 0"): "the rank that owns the next stage",
    ("another group", ""): "plan.ranks.pipeline_group",
    ("synchronised too early", ""): "no_sync()",
    ("second close raises", ""): "close()",
    ("input_shape: accepted", ""): "names stage, tensor, expected and actual",
    ("parameter not rounded from a copy", ""): "step float32 copies",
    ("buffer not restored", ""): "save every parameter and buffer",
    ("parameter value", "right until this first update after the restart"): "restore the optimizer's state",
    ("not computed again", ""): "turn the engine's recomputation on",
    ("loss scale", ""): "the maximum over all ranks",
}
WITHOUT = {
    "a backward of another step",
    "a forward of no microbatch",
    "after an error: hang",
    "after an error: raised …",
    "boundary arity",
    "boundary container",
    "boundary global shape",
    "boundary known wrongly",
    "boundary mixed",
    "boundary requires grad",
    "boundary unknown",
    "boundary …",
    "compilation not named",
    "cut otherwise",
    "declared table does not parse back",
    "declared table of another size",
    "declared table unreadable",
    "declared tables differ",
    "died: …",
    "evaluation consumed random numbers",
    "foreign key",
    "forward missing",
    "gradient cut otherwise",
    "gradient with hooks",
    "graph kept",
    "group unusable",
    "hook not called",
    "input gradient …",
    "input that did not come",
    "key missing",
    "key twice",
    "materialised otherwise",
    "merge … (…)",
    "microbatches missing",
    "no declared table",
    "no norm",
    "norm",
    "not cut",
    "not repeated …",
    "not the named order",
    "number of losses",
    "number of outputs",
    "one dropout mask",
    "output container",
    "output global shape",
    "output missing",
    "output on the wrong rank",
    "output …",
    "replicas begin apart",
    "replicas differ",
    "scale differs",
    "shapes exchanged",
    "stage on another rank",
    "tells something else",
    "ties differ",
    "too many in flight",
    "too many in flight, declared",
    "total loss",
    "… before …",
    "… beyond the bound",
    "… left by every …",
    "… missing",
    "… of …",
    "… split point accepted",
    "… split point not named",
    "… …",
    "…: …",
}
"""The kinds of findings that have no advice yet; … stands for what is computed."""

COMPOSED = (
    "raised",
    "refused: ",
    "gradient",
    "output value",
    "output unexpected",
    "buffer value",
    "boundary tensors",
    "input_shape",
)


def example(make, signature, message):
    found = ONLY_WEIGHTS if (signature, message) == ("gradient value", "differs") else None
    return make.violation("FWD-1", "GPipe", signature=signature, message=message, localisation=found)


@pytest.mark.parametrize(("signature", "message"), EXAMPLES)
def test_a_violation_with_a_usual_remedy_has_advice(make, signature, message):
    assert EXAMPLES[signature, message] in next_step(example(make, signature, message))


def test_every_advice_has_an_example_and_is_given_only_there(make):
    given = [next(at for at, step in enumerate(STEPS) if step.suits(example(make, *one))) for one in EXAMPLES]

    assert given == list(range(len(STEPS)))
    assert next_step(make.violation("FWD-1", "GPipe", signature="hang", message="")) == ""


def test_advice_about_the_first_wrong_value_is_given_from_its_hint(make):
    first = msgspec.structs.replace(FOUND.first, likeness="it is microbatch 0's")
    wrong = {"signature": "gradient value", "localisation": msgspec.structs.replace(FOUND, first=first)}

    assert "microbatch in flight" in next_step(make.violation("TRN-1", "GPipe", **wrong))


@pytest.mark.parametrize(
    "found",
    [
        None,
        FOUND,
        msgspec.structs.replace(ONLY_WEIGHTS, first=msgspec.structs.replace(ONLY_WEIGHTS.first, replica=1)),
        msgspec.structs.replace(ONLY_WEIGHTS, lanes=(_lane("loss", 1, "=.="), *ONLY_WEIGHTS.lanes)),
    ],
    ids=["nothing known", "something that crosses", "replicas", "something not seen"],
)
def test_the_stage_s_own_part_is_suspected_only_if_all_else_is_known_to_be_right(make, found):
    violation = make.violation("TRN-1", "GPipe", signature="gradient value", localisation=found, message="")

    assert "keeps for its backward" not in next_step(violation)


def kinds_in(file: Path) -> Iterator[str]:
    """The kinds of the findings in a file; what is computed is written as …."""
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
            for value in (one.value for one in call.keywords if one.arg == "kind"):
                branches = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
                yield from filter(None, map(_text, branches))


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in value.values)
    return str(value.value) if isinstance(value, ast.Constant) else ""


def test_the_kinds_without_advice_are_known(pytestconfig):
    """A new kind gets advice, or is added here on purpose; a kind that gets advice is removed."""
    root = pytestconfig.rootpath
    files = [*(root / "pipeconform/judge").rglob("*.py"), *(root / "suites").rglob("*.py")]
    kinds = {kind for file in files for kind in kinds_in(file)}

    assert {kind for kind in kinds if not any(re.match(one.signature, kind) for one in STEPS)} == WITHOUT


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
