"""``pipeconform run --attach`` from the command line to the verdict."""

import os
import signal
import socket

import msgspec
import pytest

from pipeconform.attach.session import attach_of, attached_devices, require_same_source
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.case import decode_case
from pipeconform.errors import UsageError
from pipeconform.execute.source import Source
from pipeconform.ranks.pools import Pools
from pipeconform.report.result import read_result
from tests import tenths
from tests.attach.sites import GUARD, TOKEN, free_port, two_free_ports, wait_for

REFERENCE = "reference_impl.adapter:ReferenceAdapter"


def run_command(port, out, *more):
    return [
        "pipeconform",
        "run",
        "--impl",
        REFERENCE,
        "--schedules",
        "1F1B",
        "--requirements",
        "FWD-1,TRN-1",
        "--examples",
        "3",
        "--ranks",
        "1-2",
        "--out",
        str(out),
        *more,
        *(["--attach", f"127.0.0.1:{port}"] if port else []),
    ]


def outcomes(folder):
    cells = read_result(folder / "result.json").cells
    return {(c.requirement, c.schedule): (c.status, c.judgements, c.distinct_cases) for c in cells}


@pytest.mark.slow
def test_a_run_on_attached_ranks_gives_the_same_cells_and_says_where_it_ran(launched, tmp_path):
    port = free_port()
    agents = [
        launched("pipeconform.agent", "--controller", f"127.0.0.1:{port}", RANK=str(rank)) for rank in (0, 1)
    ]
    attached = launched(*run_command(port, tmp_path / "attached"))
    said, _ = attached.communicate(timeout=GUARD)
    local = launched(*run_command(None, tmp_path / "local"))
    local.communicate(timeout=GUARD)

    assert (attached.returncode, local.returncode) == (0, 0), said
    assert [agent.wait(GUARD) for agent in agents] == [0, 0]
    assert outcomes(tmp_path / "attached") == outcomes(tmp_path / "local")
    place = read_result(tmp_path / "attached" / "result.json").environment
    assert place.device_names == (f"attached {socket.gethostname()}",)
    assert f"listens on 127.0.0.1:{port} for agents; needs 2" in said


@tenths.long
def test_ctrl_c_ends_the_run_the_agents_and_the_ranks(launched, tmp_path):
    port = free_port()
    agent = launched("pipeconform.agent", "--controller", f"127.0.0.1:{port}")
    run = launched(*run_command(port, tmp_path / "out", "--min-agents", "1", "--examples", "500"))
    servers = []
    wait_for(lambda: servers.extend(children(agent.pid)) or servers)
    wait_for(lambda: children(servers[0]))
    ranks = children(servers[0])
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=GUARD)

    assert run.returncode == 130, said
    assert agent.wait(GUARD) == 0
    wait_for(lambda: not any(map(alive, [*servers, *ranks])))


@pytest.mark.slow
def test_agents_that_are_killed_come_back_by_torchrun_and_the_verdict_is_that_of_the_implementation(
    launched, tmp_path
):
    port = free_port()
    launcher = launched(
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=10",
        f"--master-port={free_port()}",
        "-m",
        "pipeconform.agent",
        "--controller",
        f"127.0.0.1:{port}",
    )
    run = launched(*run_command(port, tmp_path / "out", "--examples", "150"))
    for _ in range(2):
        agents = []
        wait_for(
            lambda found=agents: (found.clear(), found.extend(busy_agents(launcher.pid)), len(found) == 2)[-1]
        )
        os.kill(agents[1], signal.SIGKILL)
        wait_for(lambda pid=agents[1]: not alive(pid))
    said, _ = run.communicate(timeout=2 * GUARD)

    assert run.returncode == 0, said
    assert said.count("lost agent 1 on host") >= 2
    assert "re-join" in said
    assert {status for status, _, _ in outcomes(tmp_path / "out").values()} == {"passed"}
    assert launcher.wait(GUARD) == 0


def busy_agents(launcher):
    """The agents of a launcher whose ranks run; none while one of them has no rank."""
    found = [agent for agent in children(launcher) if any(map(children, children(agent)))]
    return sorted(found)


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def alive(pid):
    return os.path.exists(f"/proc/{pid}")


def test_a_run_without_agents_ends_with_3_and_says_what_is_missing(monkeypatch, typed, tmp_path):
    monkeypatch.setenv("PIPECONFORM_TOKEN", TOKEN)
    code, _, said = typed(*run_command(free_port(), tmp_path / "out", "--agent-wait", "0.1")[1:])

    assert code == 3
    assert "0 agent(s) attached at 127.0.0.1:" in said
    assert "the run needs 2: start more, or lower --min-agents" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--attach", "nonsense"], "--attach 'nonsense': expected HOST:PORT"),
        (["--attach", "127.0.0.1:0", "-n", "2"], "agents must know the number; give the first port"),
        (["--attach", "127.0.0.1:65535", "-n", "2"], "and 65536 is none; the last is 65535"),
        (["--on", "nonsense"], "--on nonsense: expected local, slurm, ray, torchrun"),
        (["--on", "local", "--attach", "127.0.0.1:0"], "give one of them"),
        (["--on", "torchrun", "--token-file", "x"], "leave --token-file out"),
        (["--min-agents", "2"], "--min-agents needs --attach or --on, which was not given"),
        (
            ["--agent-wait", "2", "--token-file", "x"],
            "--agent-wait, --token-file need --attach or --on",
        ),
        (["--attach", "127.0.0.1:0", "--device", "auto"], "name the type that the agents have"),
        (["--attach", "127.0.0.1:0", "--token-file", "nowhere"], "cannot read the token in nowhere"),
    ],
)
def test_what_cannot_be_attached_is_a_usage_error(monkeypatch, typed, tmp_path, more, said):
    monkeypatch.setenv("PIPECONFORM_TOKEN", TOKEN)
    code, _, told = typed(*run_command(None, tmp_path / "out", *more)[1:])

    assert said in told
    assert code == 2


def test_each_process_of_a_run_listens_on_a_port_of_its_own():
    attach = attach_of("127.0.0.1:29600", least=2)

    assert [attach.of_part(part).port for part in (0, 1, 2)] == [29600, 29601, 29602]
    assert attach.of_part(1).least == 2
    assert attach_of(None, on="torchrun").of_part(1).port == 0  # any that is free
    with pytest.raises(UsageError, match="65536 is none"):
        attach_of("h:65535").of_part(1)


@pytest.mark.slow
def test_a_run_whose_process_loses_its_agents_ends_with_the_reason(launched, tmp_path):
    ports = two_free_ports()
    agents = [launched("pipeconform.agent", "--controller", f"127.0.0.1:{port}") for port in ports]
    asked = ("--min-agents", "1", "--agent-wait", "2", "--schedules", "GPipe,1F1B", "-n", "2")
    run = launched(*run_command(ports[0], tmp_path / "out", *asked, "--examples", "300"))
    for agent in agents:
        wait_for(lambda agent=agent: ranks_of(agent.pid))
    agents[1].kill()
    said, _ = run.communicate(timeout=GUARD)

    assert run.returncode == 3, said
    assert f"0 agent(s) attached at 127.0.0.1:{ports[1]} after waiting 2 s" in said
    assert said.count("the run needs 1: start more, or lower --min-agents") == 1
    assert agents[0].wait(GUARD) == 0  # the other process has sent its agents home


def ranks_of(agent):
    """The processes of an agent's fork servers."""
    return [rank for server in children(agent) for rank in children(server)]


def test_devices_of_agents_need_not_be_here():
    assert attached_devices("cuda", backend="auto", ranks_per_device=2).backend == "nccl"
    with pytest.raises(UsageError, match="no default backend"):
        attached_devices("abacus", backend="auto", ranks_per_device=1)


# ---------------------------------------------------------------- executions

CASES = [
    # p = 2, the pipeline is the world
    '{"model":{"width":4,"stages":[{"blocks":[{"block":"linear"},{"block":"mlp"}]},{"blocks":[{"block":"norm"},'
    '{"block":"linear"}]}],"sequence":3,"dtype":"float32"},"schedule":"1F1B","world":{"size":2,"pipeline_ranks":'
    '[0,1]},"program":[{"step":"train","batch_size":8,"num_microbatches":4}],"loss":{},"optimizer":null,'
    '"stages_per_rank":1,"seed":62,"format":1}',
    # a sub-group in an order of its own, with a bystander
    '{"model":{"width":4,"stages":[{"blocks":[{"block":"linear"}]},{"blocks":[{"block":"linear"}]}]},"schedule":'
    '"GPipe","world":{"size":3,"pipeline_ranks":[0,2]},"program":[{"step":"train","batch_size":4,'
    '"num_microbatches":2}],"loss":{},"optimizer":null,"stages_per_rank":1,"seed":7,"format":1}',
]


@pytest.fixture(scope="module")
def executors(two_agents, warm_servers):
    with (
        warm_servers.used(),
        two_agents[1].pools(preload=PRELOAD) as remote,
        Pools(preload=PRELOAD) as local,
    ):
        description = describe(local, REFERENCE)
        yield tuple(
            Executor(implementation=REFERENCE, description=description, pools=pools)
            for pools in (local, remote)
        )


@pytest.mark.parametrize("case", CASES, ids=["world", "sub-group"])
def test_what_attached_ranks_show_is_what_local_ranks_show_bit_for_bit(executors, case):
    case = decode_case(case.encode(), source="here")
    local, remote = (executor.execute(case) for executor in executors)

    assert local.verdicts.ok
    assert remote.verdicts.ok
    assert msgspec.msgpack.encode(remote.shown) == msgspec.msgpack.encode(local.shown)
    assert any(step.gradients for one in local.shown for step in one.steps)


def test_agents_with_another_copy_of_the_adapter_are_refused(executors):
    pools = executors[1].pools
    vector, identities = pools.everywhere(
        "pipeconform.execute.source:answer", REFERENCE.encode(), time_limit=GUARD
    )
    here = msgspec.msgpack.decode(vector.values[0], type=Source)
    require_same_source(pools, REFERENCE, here)
    with pytest.raises(
        UsageError, match=r"agent [01] on host .* has another adapter\.py than this machine's"
    ):
        require_same_source(pools, REFERENCE, msgspec.structs.replace(here, text=b"edited"))

    assert sorted(one.rank for one in identities) == [0, 1]  # in the order in which they were given work
