"""Exported programs and replay say the same: ``python -m benchmarks.programs [RESULT…]``.

Writes docs/program-verdicts.md. For every requirement, a fault of the reference is exported and executed; for each
result that is named, the first violation of every requirement; and for adapters whose engines violate nothing, one that
uses the engine wrongly (`USED_WRONGLY`). Outcomes are kept in docs/program-verdicts.json and not
made again, so a stopped run can go on; ``--again`` forgets those that are not as they should be, ``--fresh`` all.
``--alone`` runs in processes of their own, as a user does, what shared a process (``--shared``) before; with ``--seed``
the kinds of violations take turns, so that ``--most`` takes some of each kind.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from benchmarks.lines import keep, kept
from benchmarks.programs.asked import USED_WRONGLY, of_fault, of_result
from benchmarks.programs.order import Waiting, taking_turns
from benchmarks.programs.outcomes import Outcome
from benchmarks.programs.page import page
from benchmarks.programs.running import Place, Shared, tried
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.trial import Fault, faults, wrapper_faults
from pipeconform.ranks.pools import Pools

PAGE = Path("docs/program-verdicts.md")
KEPT = Path("docs/program-verdicts.json")


def chosen() -> dict[str, Fault]:
    """A fault for each requirement, by the requirement: the first by name."""
    several = (*faults().values(), *wrapper_faults().values())
    return {fault.requirement: fault for fault in reversed(several)}


def waiting(results: Iterable[Path], pools: Pools) -> Iterator[Waiting]:
    """Every violation: of the results, then of the faults."""
    for file in results:
        for name, asked in of_result(file):
            sought = asked.question.sought
            assert sought is not None
            yield Waiting(
                name=f"{file.parent.name} {name}",
                requirement=sought.requirement,
                status=sought.status,
                look=lambda asked=asked: asked,
            )
    used_wrongly = (use for use in USED_WRONGLY if use.is_installed)
    for fault in (*used_wrongly, *chosen().values()):
        yield Waiting(
            name=fault.name,
            requirement=fault.requirement,
            status=fault.expected_status,
            look=lambda fault=fault: of_fault(fault, pools),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "results", nargs="*", type=Path, metavar="RESULT", help="result files of other engines"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where outcomes are kept")
    parser.add_argument("--again", action="store_true", help="try again what was not as it should be")
    parser.add_argument("--fresh", action="store_true", help="forget all outcomes")
    parser.add_argument(
        "--shared", action="store_true", help="one process for all programs, which is much faster"
    )
    parser.add_argument("--alone", action="store_true", help="try again what shared a process")
    parser.add_argument("--seed", type=int, help="kinds of violations take turns, in an order drawn with it")
    parser.add_argument("--most", type=int, metavar="N", help="stop after N programs")
    parser.add_argument(
        "--needs", metavar="NAME", nargs="+", default=[], help="packages that the engine imports"
    )
    parser.add_argument("--only", default="", metavar="ID", help="only violations of one requirement")
    given = parser.parse_args()
    known = {} if given.fresh else kept(given.kept, Outcome)
    if given.again:
        known = {
            name: one
            for name, one in known.items()
            if one.as_it_should or given.only not in ("", one.requirement)
        }
    with Pools(preload=PRELOAD) as pools, tempfile.TemporaryDirectory(prefix="programs-") as folder:
        place = Place(Path(folder), needs=given.needs)
        shared = Shared(place) if given.shared else None
        several: Iterable[Waiting] = waiting(given.results, pools)
        if given.seed is not None:
            several = taking_turns(several, seed=given.seed)
        due = (
            one
            for one in several
            if (one.name not in known or (given.alone and not known[one.name].alone))
            and given.only in ("", one.requirement)
        )
        for each in islice(due, given.most):
            begun = time.monotonic()
            asked = each.look()
            if asked is None:
                print(f"{each.name}: never seen", file=sys.stderr)
                continue
            try:
                one = tried(asked, pools, place, shared=shared)
            except subprocess.TimeoutExpired as error:
                print(f"{each.name}: {error}", file=sys.stderr, flush=True)
                continue
            took = f"{time.monotonic() - begun:.0f} s"
            print(f"{one.requirement} {each.name}, {took}: {', '.join(one.verdicts)}", file=sys.stderr)
            print(one.said, file=sys.stderr, end="\n" if one.said else "", flush=True)
            if "inconclusive" not in one.verdicts:  # a machine that was too busy says nothing
                known[each.name] = one
                keep(known, given.kept)
        if shared is not None:
            shared.close()
    given.page.write_text(page(known, sorted(chosen())))


if __name__ == "__main__":
    main()
