"""``python -m pipeconform.attach.on_ray``: agents as actors of Ray, in a placement group with a bundle for each.

``pipeconform run --on ray`` starts this process. It takes the token from the environment. Ray finds the nodes and tells
when one is lost; the actor is then started again in its bundle, which Ray moves to another node. Everything is given
back when this process ends, because nothing in it is detached.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

import click

from pipeconform.attach.token import read_token
from pipeconform.showing import shown

__all__ = ["main"]

_WAIT = 60.0  # seconds in which an agent must find the controller, which listens before it starts agents
_PATIENCE = 15.0  # seconds after which a line says that Ray has not found room
_PAUSE = 1.0  # seconds before an agent is started again
_LOOK = 1.0  # seconds between two looks whether the run is still there
_MOST = 20  # times that one agent is started again


class Host:
    """The actor: an agent in a worker of Ray, which ends with it."""

    def serve(self, host: str, port: int, token: bytes, rank: int) -> int:
        """Serve the controller; return the agent's exit code."""
        from pipeconform.attach.agent import serve
        from pipeconform.attach.connect import NoController
        from pipeconform.errors import PipeconformError

        os.environ["RANK"] = str(rank)  # as other launchers number their processes
        try:
            # of the devices that it was given, which are the only ones that it sees, it takes the first
            serve(host, port, token=token, say=_say, device_index=0, wait=_WAIT)
        except NoController as error:
            _say(str(error))
        except PipeconformError as error:
            _say(str(error))
            return error.exit_code
        return 0


@click.command()
@click.option("--controller", metavar="HOST:PORT", required=True)
@click.option("--agents", type=click.IntRange(min=1), required=True)
@click.option("--gpu", is_flag=True, help="A GPU for each agent.")
def main(*, controller: str, agents: int, gpu: bool) -> None:
    """Keep agents running in the cluster of RAY_ADDRESS, or in this machine's, until they are sent home."""
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    token = read_token(None)
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), configure_logging=False)
    except (ConnectionError, RuntimeError) as error:
        _say(f"no cluster of Ray: {error}")
        sys.exit(2)
    each = {"CPU": 1.0} | ({"GPU": 1.0} if gpu else {})
    group = placement_group([each] * agents, strategy="SPREAD")
    if not group.wait(_PATIENCE):
        _say(
            f"Ray has no room yet for {agents} bundles of {each}; it has {_resources(ray)} and was asked for more"
        )
    host, _, port = controller.rpartition(":")
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    actor = ray.remote(Host)

    def started(rank: int) -> Any:
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        made = actor.options(
            num_cpus=1,
            num_gpus=int(gpu),
            max_restarts=0,
            scheduling_strategy=where,
            runtime_env={"env_vars": variables},
        ).remote()
        alive[rank] = made  # without a handle, Ray would end it
        return made.serve.remote(host.strip("[]"), int(port), token, rank)

    alive: dict[int, Any] = {}
    attempts = dict.fromkeys(range(agents), 0)
    running = {started(rank): rank for rank in range(agents)}
    parent = os.getppid()
    while running and os.getppid() == parent:  # with the run, however it ends, all is given back
        finished, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK)
        if not finished:
            continue
        (done,) = finished
        rank = running.pop(done)
        try:
            code, how = ray.get(done), ""
        except RayError as error:
            code, how = 1, str(error).strip().splitlines()[0]
        if code in (0, 2):
            continue
        again = attempts[rank] < _MOST
        _say(
            f"agent {rank} ended{': ' * bool(how)}{how}; {'another is started' if again else 'it is given up'}"
        )
        if again:
            attempts[rank] += 1
            with contextlib.suppress(RayError):
                ray.kill(alive[rank])
            time.sleep(_PAUSE)
            running[started(rank)] = rank


def _resources(ray: Any) -> str:
    total: dict[str, float] = ray.cluster_resources()
    return ", ".join(f"{total.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def _say(text: str) -> None:
    click.echo(shown(f"pipeconform agents on Ray: {text}"), err=True)


if __name__ == "__main__":
    main()
