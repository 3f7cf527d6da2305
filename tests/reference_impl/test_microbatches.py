"""Splitting and merging are inverse, keep containers, and refuse what cannot be done."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeconform.reference_impl.microbatches import (
    batch_size_of,
    merge,
    merge_gradients,
    parts_by,
    sizes_of,
    split,
)

from pipeconform.adapter import Along, CustomMerge, CustomSplit, Whole

Pair = namedtuple("Pair", "a b")


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2))
def test_splitting_is_torchs_and_merging_undoes_it(size: int, m: int, dim: int) -> None:
    m = min(size, m)
    whole = torch.arange(size * 8).reshape(*(2,) * dim, size, *(2,) * (2 - dim), -1)
    parts = split(whole, sizes=sizes_of(size, num_microbatches=m), batch_dim=dim)

    assert [part.tolist() for part in parts] == [part.tolist() for part in whole.tensor_split(m, dim)]
    assert torch.equal(merge(parts, batch_dim=dim), whole)


@pytest.mark.parametrize(
    "tree",
    [
        torch.arange(5),
        (torch.arange(5),),
        [torch.arange(5), (torch.arange(10).reshape(5, 2),)],
        {"logits": torch.arange(5), "name": "x", "none": None},
        Pair(torch.arange(5), 3),
    ],
)
def test_containers_and_values_that_are_no_tensors_survive(tree) -> None:
    parts = split(tree, sizes=(3, 2), batch_dim=0)
    found = merge(parts, batch_dim=0)

    assert [type(part) for part in parts] == [type(tree)] * 2
    assert type(found) is type(tree)
    assert repr(found) == repr(tree)


def test_outputs_are_merged_by_their_own_rules() -> None:
    rules = (None, Along(1), Whole(), CustomMerge(lambda merged, value: merged * 2 + value))
    trees = [
        (torch.full((n, 2), n), torch.full((2, n), n), torch.ones(3), torch.tensor(float(n)))
        for n in (3, 1, 2)
    ]
    whole, turned, once, folded = merge(trees, batch_dim=0, rules=rules)

    assert (whole.shape, turned.shape) == ((6, 2), (2, 6))
    assert turned[0].tolist() == [3, 3, 3, 1, 2, 2]
    assert once.tolist() == [1, 1, 1]
    assert folded.item() == (3 * 2 + 1) * 2 + 2


@pytest.mark.parametrize(
    ("rules", "words"),
    [((None,), "returns 2 values; the plan has 1 rules"), ((None, Whole()), "is to appear once differs")],
)
def test_outputs_that_do_not_fit_their_rules_are_refused(rules, words) -> None:
    trees = [(torch.ones(1), torch.zeros(2)), (torch.ones(1), torch.ones(2))]

    with pytest.raises(ValueError, match=words):
        merge(trees, batch_dim=0, rules=rules)


def test_parts_are_views() -> None:
    whole = torch.zeros(4)
    split(whole, sizes=(2, 2), batch_dim=0)[1].add_(1)

    assert whole.tolist() == [0, 0, 1, 1]


def test_numbers_become_one_tensor_of_m() -> None:
    outputs = [(torch.ones(2, 3), torch.tensor(float(k))) for k in range(3)]

    assert merge(outputs, batch_dim=0)[1].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("size", "m", "words"),
    [
        (2, 3, "a batch of 2 samples cannot be split into 3 microbatches"),
        (0, 1, "a batch of 0 samples"),
        (3, 0, "at least one microbatch, got 0"),
    ],
)
def test_impossible_splits_are_refused(size: int, m: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sizes_of(size, num_microbatches=m)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (
            (torch.zeros(2, 3), torch.zeros(2)),
            r"args has a tensor of shape \(2,\), which has no batch dimension 1",
        ),
        (
            (torch.zeros(2, 3), torch.zeros(2, 4)),
            r"args has tensors of different batch sizes: \[3, 4\] in dim 1",
        ),
    ],
)
def test_unclear_batch_sizes_are_refused(tree, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        batch_size_of(tree, batch_dim=1, name="args")


def test_a_tree_without_tensors_has_no_batch_size() -> None:
    assert batch_size_of(("x", 1), batch_dim=0, name="args") is None


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([torch.zeros(1), (torch.zeros(1),)], "different containers"),
        ([1, 2], "differ between microbatches"),
        ([None, torch.zeros(1)], "differ between microbatches"),
        ([torch.zeros(()), torch.zeros(1)], "cannot be merged along batch dimension 0"),
    ],
)
def test_outputs_that_cannot_be_merged_are_refused(outputs, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge(outputs, batch_dim=0)


def test_microbatches_without_gradient_count_as_zero_unless_all_lack_one() -> None:
    like = torch.ones(2, 3)
    some = merge_gradients([torch.ones(2, 1), None], like=like, sizes=(1, 2), batch_dim=1)

    assert some is not None
    assert some.tolist() == [[1, 0, 0]] * 2
    assert merge_gradients([None, None], like=like, sizes=(1, 2), batch_dim=1) is None


def test_a_rule_says_how_a_keyword_argument_is_split() -> None:
    def parts(rule, value):
        return parts_by(rule, value, name="gain", sizes=(2, 1), batch_dim=0)

    value = torch.arange(6).reshape(2, 3)
    whole, again = parts(Whole(), value)
    assert whole is value is again
    assert [part.tolist() for part in parts(Along(1), value)] == [[[0, 1], [3, 4]], [[2], [5]]]
    assert parts(CustomSplit(lambda text, sizes: [text[:size] for size in sizes]), "abc") == ["ab", "a"]
    assert parts(None, 7) == [7, 7]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Along(0), "gain has 2 entries in dimension 0, where it is to be split; the batch has 3 samples"),
        (Along(2), "gain has a tensor of shape .2, 3., which has no batch dimension 2"),
        (
            CustomSplit(lambda value, sizes: [value]),
            "gain was split into 1 parts by its own function; expected 2",
        ),
    ],
)
def test_a_value_that_does_not_fit_its_rule_is_refused(rule, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parts_by(rule, torch.zeros(2, 3), name="gain", sizes=(2, 1), batch_dim=0)
