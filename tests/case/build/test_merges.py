"""The further outputs of a last stage, and the batch's outputs from those of its microbatches, by hand."""

from __future__ import annotations

import pytest
import torch

from pipeconform.adapter import Along, CustomMerge, Whole
from pipeconform.case.build.merges import made, merged, rules_of
from pipeconform.case.build.modules import build_stage
from pipeconform.case.model import MergedKind
from tests.case.examples import small_case, with_model

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def of(kind: MergedKind, x: torch.Tensor) -> torch.Tensor:
    return made(kind, x, parameter=None)


def test_each_kind_is_made_of_the_main_output() -> None:
    assert of("turned", X).tolist() == [[3, 7, 11], [9, 49, 121]]
    assert of("total", X).item() == 21
    assert of("whole", X).tolist() == of("whole", 2 * X).tolist() == [0.25, 0.5, 0.75]
    assert of("turned", X.reshape(3, 1, 2)).shape == (2, 3)


def test_a_parameter_is_returned_itself_and_the_main_output_depends_on_it() -> None:
    case = with_model(small_case(), merged=("parameter",))
    first, last = build_stage(case, 0), build_stage(case, case.num_stages - 1)
    x = torch.ones(2, case.model.width, dtype=torch.float64)
    main, returned = last(x)

    assert first.returned is None
    assert returned is last.returned
    (slope,) = torch.autograd.grad(main.sum(), returned)
    assert slope.abs().min() > 0


def test_every_output_has_a_rule_if_any_has_one_of_its_own() -> None:
    rules = rules_of(with_model(small_case(), merged=("total", "turned", "whole", "parameter")))

    assert rules_of(small_case()) == ()
    assert rules[0] is None
    assert isinstance(rules[1], CustomMerge)
    assert rules[2:] == (Along(1), Whole(), Along(0))


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_without_a_rule_outputs_follow_each_other_in_the_batch_dimension(batch_dim: int) -> None:
    parts = list(X.movedim(0, batch_dim).split([2, 1], dim=batch_dim))

    assert torch.equal(merged(None, parts, batch_dim=batch_dim), X.movedim(0, batch_dim))


def test_rules_merge_along_their_dimension_or_take_the_first_or_go_on_from_it() -> None:
    (_, total, turned, whole) = rules_of(with_model(small_case(), merged=("total", "turned", "whole")))
    parts = [X[:1], X[1:2], X[2:]]

    assert torch.equal(merged(turned, [of("turned", x) for x in parts], batch_dim=0), of("turned", X))
    assert merged(whole, [torch.tensor(1.0), torch.tensor(2.0)], batch_dim=0) == 1
    # half of what there is, what comes, and one more: (3 / 2 + 7 + 1) / 2 + 11 + 1
    assert merged(total, [of("total", x) for x in parts], batch_dim=0) == 16.75
    assert merged(total, [torch.tensor(3.0)], batch_dim=0) == 3
