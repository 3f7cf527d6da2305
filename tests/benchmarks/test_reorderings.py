"""Correct reorderings of random models stay inside the numeric classes, wrong values do not."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def reorderings():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("reorderings")
    finally:
        sys.path.remove(str(FOLDER))


def _wrong(reorderings, drawn, count):
    models = getattr(reorderings, drawn)
    return [one for index in range(count) for one in reorderings.try_model(0, index, models)[1]]


@pytest.mark.parametrize("drawn", ["case_of", "narrow_of"])
def test_reorderings_of_random_models_stay_inside_their_classes(reorderings, drawn):
    assert _wrong(reorderings, drawn, 12) == []


@pytest.mark.slow
@pytest.mark.parametrize("drawn", ["case_of", "narrow_of", "decoders_of"])
def test_reorderings_of_more_random_models_stay_inside_their_classes(reorderings, drawn):
    assert _wrong(reorderings, drawn, 500) == []


def test_the_same_number_is_the_same_model(reorderings):
    assert [reorderings.case_of(1, k).digest for k in range(5)] == [
        reorderings.case_of(1, k).digest for k in range(5)
    ]
    assert len({reorderings.case_of(1, k).digest for k in range(50)}) == 50


def test_a_wrong_factor_leaves_the_class(reorderings, monkeypatch):
    right = reorderings.otherwise

    def wrong(case, way, rng):
        return {
            s: {n: None if g is None else g * 1.25 for n, g in own.items()}
            for s, own in right(case, way, rng).items()
        }

    monkeypatch.setattr(reorderings, "otherwise", wrong)
    worst, found = reorderings.try_model(0, 0)

    assert found
    assert max(worst.values()) > 3
