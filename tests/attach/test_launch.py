"""What launchers say, and what is made of it."""

import pytest

from pipeconform.attach.launch import forget_launcher, host_and_port, identity_of, interface_of
from pipeconform.errors import UsageError

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "2",
    "WORLD_SIZE": "6",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
    "ROLE_RANK": "5",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize("said", [TORCHRUN, SLURM], ids=["torchrun", "slurm"])
def test_launchers_number_their_agents(said):
    one = identity_of(said, address="10.0.0.1")

    assert (one.rank, one.local_rank, one.node) == (5, 1, 2)


def test_torchrun_under_slurm_is_believed():
    assert identity_of({**TORCHRUN, "SLURM_PROCID": "0"}, address="10.0.0.1").rank == 5


def test_an_index_of_a_kubernetes_job_is_a_node_and_a_rank():
    one = identity_of({"JOB_COMPLETION_INDEX": "3"}, address="10.0.0.1")

    assert (one.rank, one.local_rank, one.node) == (3, 0, 3)


def test_nobody_launched_it():
    assert identity_of({}, address="10.0.0.1").rank == 0


def test_a_variable_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="RANK='first'"):
        identity_of({"RANK": "first"}, address="10.0.0.1")


def test_ranks_do_not_hear_of_the_agents_job():
    environment = {**TORCHRUN, **SLURM, "HOME": "/", "OMP_NUM_THREADS": "1"}
    forget_launcher(environment)

    assert environment == {"SLURM_JOB_ID": "7", "HOME": "/", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [("10.0.0.1:29600", ("10.0.0.1", 29600)), ("[::1]:1", ("::1", 1)), ("host.name:0", ("host.name", 0))],
)
def test_addresses_have_two_parts(text, parts):
    assert host_and_port(text, option="--attach") == parts


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused_by_option(text):
    with pytest.raises(UsageError, match=r"--attach .* expected HOST:PORT"):
        host_and_port(text, option="--attach")


def test_an_address_has_an_interface():
    assert interface_of("127.0.0.1") in ("lo", None)
    assert interface_of("192.0.2.1") is None
