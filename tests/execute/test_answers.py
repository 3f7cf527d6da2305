"""An adapter's answers are held against the contract before anything is recorded."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pipeconform.adapter import Mode, StepResult, ZeroGrad
from pipeconform.errors import ContractError
from pipeconform.execute.answers import CheckedPipeline

BATCH = SimpleNamespace(num_microbatches=2)
HONEST = {
    "owned": {0: nn.Identity()},
    "run": StepResult(losses=[torch.tensor(1.0)]),
    "gradients": {0: {"weight": torch.zeros(1), "bias": None}},
    "state": {0: {"weight": torch.zeros(1)}},
    "table": None,
}


class Honest:
    """A pipeline with honest answers, but for those a test gives."""

    def __init__(self, **answers):
        self.answers = HONEST | answers
        self.applied = []
        self.closed = 0

    def owned(self):
        return self.answers["owned"]

    def run(self, mode, batch):
        return self.answers["run"]

    def apply(self, operation):
        self.applied.append(operation)

    def gradients(self):
        return self.answers["gradients"]

    def state(self):
        return self.answers["state"]

    def close(self):
        self.closed += 1


class Declaring(Honest):
    """One that shows its table, too."""

    def table(self):
        return self.answers["table"]


def checked(pipeline):
    return CheckedPipeline(pipeline, parameters=lambda stage: {"weight", "bias"})


def ask(method, answer):
    pipeline = checked(Declaring(**{method: answer}))
    return pipeline.run(Mode.TRAIN, BATCH) if method == "run" else getattr(pipeline, method)()


def test_honest_answers_pass_unchanged():
    for method, answer in HONEST.items():
        assert ask(method, answer) is answer


def test_names_that_a_front_end_gives_are_left_to_the_requirement():
    answer = {0: {"submod.weight": None}}

    assert CheckedPipeline(Honest(gradients=answer), parameters=lambda stage: None).gradients() is answer


def test_operations_and_closing_are_passed_on():
    inner = Honest()
    pipeline = checked(inner)
    pipeline.apply(ZeroGrad())
    pipeline.close()

    assert (inner.applied, inner.closed) == ([ZeroGrad()], 1)


def test_missing_methods_are_named():
    with pytest.raises(
        ContractError, match=r"^build\(\) returned None, which lacks owned\(\), run\(\), apply\(\)"
    ):
        checked(None)


def test_a_method_that_is_no_function_counts_as_missing():
    inner = Honest()
    inner.gradients = {}

    with pytest.raises(ContractError, match=r"^build\(\) returned a Honest, which lacks gradients\(\);"):
        checked(inner)


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        ("run", None, "run() returned None; expected pipeconform.adapter.StepResult"),
        ("run", (1, 2), "run() returned a tuple; expected pipeconform.adapter.StepResult"),
        ("run", StepResult(losses=[0.5]), "StepResult.losses[0] is float 0.5; expected a tensor"),
        ("run", StepResult(losses=torch.zeros(2)), "StepResult.losses is a Tensor; expected a list or tuple"),
        ("run", StepResult(losses="ab"), "StepResult.losses is str 'ab'; expected a list or tuple"),
        ("run", StepResult(loss=0.5), "StepResult.loss is float 0.5; expected a tensor"),
        (
            "run",
            StepResult(input_gradients=[None, 1]),
            "StepResult.input_gradients[1] is int 1; expected a tensor",
        ),
        ("run", StepResult(microbatches=["a"]), "StepResult.microbatches[0] is str 'a'; expected a number"),
        ("run", StepResult(loss=torch.zeros(3)), "StepResult.loss is a Tensor; expected one number"),
        ("run", StepResult(losses=[torch.zeros(3)]), "StepResult.losses[0] is a Tensor; expected one number"),
        (
            "run",
            StepResult(microbatches=[1, 0]),
            "StepResult.microbatches is str '[1, 0]'; expected ascending indices below 2",
        ),
        ("table", 3, "table() returned int 3; expected CSV text or None"),
        ("owned", [nn.Identity()], "owned() returned a list; expected a mapping from stage indices"),
        ("owned", {"0": nn.Identity()}, "a key of owned() is str '0'; expected a stage index"),
        ("owned", {0: "stage"}, "owned()[0] is str 'stage'; expected a module"),
        ("gradients", None, "gradients() returned None; expected a mapping from stage indices"),
        ("gradients", {0: []}, "gradients()[0] is a list; expected a mapping from parameter names"),
        ("gradients", {0: {1: None}}, "a key of gradients()[0] is int 1; expected a name"),
        ("gradients", {0: {"w": 0.5}}, "gradients()[0]['w'] is float 0.5; expected a tensor or None"),
        (
            "gradients",
            {0: {"module.weight": None}},
            "gradients()[0] has 'module.weight', which is no parameter of the stage as it was built; "
            "expected names such as 'bias'",
        ),
        ("state", {0: {"w": None}}, "state()[0]['w'] is None; expected a tensor"),
    ],
)
def test_an_answer_of_another_type_is_named_with_what_was_expected(method, answer, expected):
    with pytest.raises(ContractError) as caught:
        ask(method, answer)

    assert str(caught.value) == expected


def test_a_declared_table_needs_a_method_to_show_it():
    with pytest.raises(ContractError, match=r"which lacks table\(\), but Feature.DECLARED_TABLE is claimed"):
        checked(Honest()).table()
