"""What is drawn of two subjects at once."""

import pytest

from pipeconform.case.draw.pairs import Pair
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.sizes import table
from pipeconform.case.focus import Focus, Limits
from tests.case.examples import EVERYTHING


@pytest.mark.parametrize(("second", "most"), [(Focus.LOAD, 1), (Focus.ACCUMULATE, 2)])
def test_parts_of_stages_have_replicas_but_where_a_state_is_loaded(second, most) -> None:
    """How a whole tensor becomes the shards of parts, only the wrapper knows."""
    # made here: what PAIRS has remembers its subject
    pair = Pair(focus=Focus.TENSOR_TOGETHER, first=SUBJECTS[Focus.TENSOR], second=SUBJECTS[second])
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    rows = table(limits, EVERYTHING.schedules[0], pair.subject)

    assert max(replicas for _, _, replicas, _ in rows) == most
