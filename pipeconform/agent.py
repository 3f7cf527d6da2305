"""``python -m pipeconform.agent``: an agent, which runs ranks on its host for ``pipeconform run --attach``.

torchrun, srun or a Kubernetes job starts one per rank or device; see docs/attach.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pipeconform.commands.say import say
from pipeconform.errors import PipeconformError

__all__ = ["main"]


@click.command()
@click.option(
    "--controller", metavar="HOST:PORT", required=True, help="Where `pipeconform run --attach` listens."
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with the controller's token.  [default: the variable PIPECONFORM_TOKEN]",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Address at which ranks on other hosts reach those here.  [default: the one used to reach the controller]",
)
@click.option(
    "--device-index",
    metavar="N",
    type=click.IntRange(min=0),
    help="[default: the launcher's local rank, and --first-device more]",
)
@click.option(
    "--first-device",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The device of local rank 0: the devices before it are those of other agents.",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="How long to wait for the controller to listen.",
)
@click.option(
    "--guest",
    is_flag=True,
    help="Where no controller listens, end with code 0, so that nothing restarts it: as `run --on` starts agents.",
)
def main(
    *,
    controller: str,
    token_file: Path | None,
    address: str | None,
    device_index: int | None,
    first_device: int,
    wait: float,
    guest: bool,
) -> None:
    """Run ranks on this host for the controller at HOST:PORT until its run is over.

    Exit codes: 0 the run is over, 1 the controller went away or was never reached, 2 it refused this agent.
    """
    try:
        from pipeconform.attach.agent import serve
        from pipeconform.attach.connect import NoController
        from pipeconform.attach.launch import host_and_port
        from pipeconform.attach.token import read_token

        token = read_token(token_file)
        host, port = host_and_port(controller, option="--controller")
        try:
            serve(
                host,
                port,
                token=token,
                say=_say,
                address=address,
                device_index=device_index,
                first_device=first_device,
                wait=wait,
            )
        except NoController as error:
            if not guest:
                raise
            _say(f"{error}; the run that started this agent is over")
    except PipeconformError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _say(text: str) -> None:
    say(f"pipeconform agent: {text}", err=True)


if __name__ == "__main__":
    main()
