"""The controller of the tests with several hosts: runs in a network namespace, tells what happens line by line.

Arguments: address, port, number of agents, folder. Says ``running`` when a task computes on all ranks; the test
then does its worst.
"""

import json
import sys
import time
from pathlib import Path

from pipeconform.attach.hub import Hub
from pipeconform.attach.pools import Controller
from pipeconform.ranks.devices import resolve
from tests.attach.sites import PRELOAD, TOKEN


def say(**what):
    print(json.dumps(what), flush=True)


def main(host, port, number, folder):
    hub = Hub(host, int(port), token=TOKEN.encode(), say=lambda text: say(line=text), silence=4.0)
    controller = Controller(
        hub, least=1, patience=0.5, devices=resolve("cpu"), say=lambda text: say(line=text)
    )
    try:
        while len(hub.agents) < int(number):
            hub.step(0.1)
        with controller.pools(preload=PRELOAD) as pools:
            pool = pools.bare(4)
            total = pool.run("attach_tasks:total", time_limit=60.0)
            say(step="together", verdicts=total.describe(), values=[v.decode() for v in total.values])
            pending = pool.start("attach_tasks:child_and_sleep", folder.encode(), time_limit=120.0)
            while len(list(Path(folder).iterdir())) < 4:
                hub.step(0.05)
            say(step="running", addresses=[agent.identity.address for agent in hub.agents])
            begun = time.monotonic()
            vector = pending.wait()
            say(step="cut", lost=vector.lost, first=vector.first_failure, seconds=time.monotonic() - begun)
            after = pool.run("attach_tasks:total", time_limit=60.0)
            say(step="after", values=[v.decode() for v in after.values], agents=len(hub.agents))
            while len(hub.agents) < int(number):
                hub.step(0.1)
            pool.restart()
            again = pool.run("attach_tasks:total", time_limit=60.0)
            say(step="back", values=[v.decode() for v in again.values], agents=len(hub.agents))
            pool.close()
    finally:
        hub.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
