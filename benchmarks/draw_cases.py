"""How `cases.json` was drawn; prints a new list, for the day when the case format changes.

    python benchmarks/draw_cases.py > benchmarks/cases.json

Schedules and foci in turn: of each pair the first case drawn under seed 0 that takes two or four ranks.
Foci that torch's pipelining violates are left out, for what a violation costs is no overhead, and so is
dropout, whose oracle must wait for the masks that the ranks have drawn.
"""

from __future__ import annotations

import itertools

from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.case import encode_case
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.focus import Focus, Limits

FOCI = (
    Focus.PLAIN,
    Focus.INPUTS,
    Focus.BOUNDARY,
    Focus.KWARGS,
    Focus.TARGETS,
    Focus.OPTIMIZER,
    Focus.NO_GRAD,
    Focus.SUM,
    Focus.DTYPE,
    Focus.STRUCTURED,
    Focus.UNUSED,
)


def first_case(corpus):
    for case in drawn(corpus):
        if {case.world.size, case.num_ranks} <= {2, 4} and case.model.width > 1:
            return case
    return None


def main(count=40):
    capabilities = TorchPipelining().describe().capabilities
    limits = Limits(capabilities=capabilities, min_ranks=2)
    claims, foci = itertools.cycle(capabilities.schedules), itertools.cycle(FOCI)
    found = {}
    while len(found) < count:
        claim, focus = next(claims), next(foci)
        if is_claimed(focus, claim, capabilities):
            case = first_case(Corpus(limits=limits, schedule=claim, focus=focus, seed=0, size=24))
            if case is not None:
                found.setdefault(case.digest, case)
    lines = ",\n".join(encode_case(case).decode() for case in found.values())
    print(f"[\n{lines}\n]")


if __name__ == "__main__":
    main()
