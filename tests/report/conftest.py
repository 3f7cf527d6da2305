"""Results made by hand: cases, violations and cells with only what a test is about."""

import msgspec
import pytest

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.report.result import Cell, Environment, Implementation, Result, Run, Totals, Violation


class Make:
    def case(self, *, p: int = 2, m: int = 2, seed: int = 0) -> Case:
        train = Train(batch_size=2 * m, num_microbatches=m)
        return Case(
            model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * p),
            schedule="GPipe",
            world=World(size=p, pipeline_ranks=tuple(range(p))),
            program=(train, Zero(), train),
            seed=seed,
        )

    def violation(
        self, requirement: str, schedule: str, case: Case | None = None, **others: object
    ) -> Violation:
        case = case or self.case()
        fields = {
            "id": f"{requirement}:{schedule}:default:1f3a",
            "status": "failed",
            "signature": "output value",
            "message": "the output of microbatch 0 is not the reference's",
            "where": "step 0, rank 1, microbatch 0",
            "minimal": True,
            "confirmed": True,
            "shrink_executions": 5,
            "occurrences": 2,
            "verdicts": "",
            "replay": f"pipeconform replay {requirement}:{schedule}:default:1f3a --impl torch",
        }
        return Violation(case=case, digest=case.digest, **(fields | others))

    def cell(self, requirement: str, schedule: str, *violations: Violation, **others: object) -> Cell:
        status = violations[0].status if violations else "passed"
        fields = {"status": status, "judgements": 4, "seconds": 0.5, "violations": violations}
        fields["compared"] = 10 if status == "passed" and others.get("status", "passed") == "passed" else 0
        return Cell(requirement=requirement, schedule=schedule, **(fields | others))

    def result(self, *cells: Cell, complete: bool = True) -> Result:
        return Result(
            product_version="0.1.0",
            standard_version="0.1",
            created="2026-01-02T03:04:05+00:00",
            environment=Environment(
                python="3.11",
                torch="2.13.0",
                os="Linux",
                machine="x86_64",
                cpus=2,
                device="cpu",
                backend="gloo",
            ),
            implementation=Implementation(reference="torch", name="toy GPipe", version="1.0"),
            run=Run(
                profile="smoke",
                seed=0,
                corpus=4,
                search=0,
                schedules=tuple(dict.fromkeys(cell.schedule for cell in cells)),
                max_ranks=4,
                complete=complete,
                seconds=12.3,
            ),
            totals=Totals(
                judgements=sum(cell.judgements for cell in cells),
                executions=1234,
                distinct_cases=20,
                distinct_cases_several_ranks=15,
            ),
            cells=cells,
        )

    def changed(self, value: msgspec.Struct, **fields: object) -> msgspec.Struct:
        return msgspec.structs.replace(value, **fields)


@pytest.fixture
def make() -> Make:
    return Make()
