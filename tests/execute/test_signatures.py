"""A method that cannot be called as it is called is refused with the call that is expected."""

import pytest

from pipeconform.errors import ContractError
from pipeconform.execute.signatures import require_call


@pytest.mark.parametrize("method", [lambda plan: plan, lambda *a: a, lambda plan, more=1: plan, dict.get])
def test_what_can_be_called_is_taken(method):
    require_call(method, "Mine.build", ("plan",) if method is not dict.get else ("self", "plan"))


@pytest.mark.parametrize("method", [lambda: None, lambda plan, options: plan, lambda *, plan: plan])
def test_what_cannot_be_called_is_refused(method):
    with pytest.raises(
        ContractError, match=r"^Mine\.build\(.*\) is called as build\(plan\) \(.*\); change its parameters$"
    ):
        require_call(method, "Mine.build", ("plan",))
