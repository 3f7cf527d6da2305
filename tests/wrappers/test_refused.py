"""What counts as a refusal: the right exception, or one that is derived from it, in the right place and words."""

from __future__ import annotations

import pytest

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.ranks.rank import raised_from
from pipeconform.wrapper import WrapperClaims
from pipeconform.wrappers.evidence import evidence_of
from pipeconform.wrappers.judge import MISUSE, refused
from pipeconform.wrappers.observation import Failure, Shown


def found(error: Exception, *, where: str = "wrap") -> list[str]:
    failed = Failure(
        where=where, type=type(error).__qualname__, message=str(error), raised=raised_from(error)
    )
    ranks = tuple(Shown(rank=rank, failed=failed) for rank in range(2))
    evidence = evidence_of(WrapperCase(), ranks, claims=WrapperClaims(), ask=lambda _: pytest.fail("asked"))
    return sorted({one.kind for one in refused(evidence, where="wrap", words=("device",), types=MISUSE)})


class DeviceError(RuntimeError):
    """As torch's AcceleratorError."""


@pytest.mark.parametrize("error", [ValueError, RuntimeError, NotImplementedError, DeviceError])
def test_an_exception_of_a_derived_type_is_a_refusal(error: type[Exception]) -> None:
    assert found(error("invalid device ordinal")) == []


def test_anything_else_is_none() -> None:
    assert found(KeyError("device")) == ["refused with another error"]
    assert found(ValueError("bad")) == ["unclear refusal"]
    assert found(ValueError("device"), where="step 0") == ["refused late"]
    assert found(RuntimeError("device: connection closed by peer")) == ["only an echo"]
