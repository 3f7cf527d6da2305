"""Converting pytest's options into those of a run."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pipeconform.attach.session import Attach, attach_of
from pipeconform.campaign.options import Options
from pipeconform.errors import UsageError
from pipeconform.gate.expectations import read_expectations, require_sane_clock
from pipeconform.spec import profile
from pipeconform.spec.selection import parse_ranks, require_requirement

__all__ = ["distributes", "is_worker", "options_of"]


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a worker of a distributed run (xdist)."""
    return hasattr(config, "workerinput")


def distributes(config: pytest.Config) -> bool:
    """Whether this is the controller of a distributed run, which judges nothing itself."""
    return not is_worker(config) and config.getoption("dist", "no") != "no"


def options_of(config: pytest.Config) -> Options:
    """The options of the run.

    Raises:
        UsageError: an impossible value, or an unknown requirement.
    """
    get = config.getoption

    def listed(name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in get(name).split(",") if part.strip())

    profile(get("pipeconform_profile"))
    examples = get("pipeconform_examples")
    if examples is not None and examples < 1:
        raise UsageError(f"--examples {examples}: at least 1 case must be drawn")
    limit = get("pipeconform_time_limit")
    if not limit > 0:
        raise UsageError(f"--time-limit {limit:g}: expected more than 0 seconds")
    file = get("pipeconform_expectations")
    if file is not None:
        require_sane_clock(datetime.datetime.now(datetime.UTC).date())
    kept = get("pipeconform_keep_cases")
    requirements = listed("pipeconform_requirements")
    for name in requirements:
        require_requirement(name)
    return Options(
        implementation=get("pipeconform_impl"),
        profile=get("pipeconform_profile"),
        schedules=listed("pipeconform_schedules"),
        requirements=requirements,
        ranks=parse_ranks(get("pipeconform_ranks")),
        seed=get("pipeconform_seed"),
        examples=examples,
        device=get("pipeconform_device"),
        backend=get("pipeconform_backend"),
        ranks_per_device=get("pipeconform_ranks_per_device"),
        time_limit=limit,
        attach=_attach(config),
        expectations=None if file is None else read_expectations(Path(file)),
        keep_cases=None if kept is None else Path(kept),
        show_output=get("pipeconform_show_output"),
    )


def _attach(config: pytest.Config) -> Attach | None:
    get = config.getoption
    file = get("pipeconform_token_file")
    chosen = attach_of(
        get("pipeconform_attach"),
        least=get("pipeconform_min_agents"),
        patience=get("pipeconform_agent_wait"),
        token_file=None if file is None else Path(file),
        on=get("pipeconform_on"),
    )
    if chosen is not None and not chosen.engine and (is_worker(config) or distributes(config)):
        if chosen.port == 0:
            raise UsageError(
                f"--attach {chosen.host}:0 and -n do not go together: each process listens on a port of its own, of "
                f"which agents must know the number; give the first port"
            )
        chosen.of_part(len(get("tx") or ()) - 1)  # there must be ports for all
    return chosen
