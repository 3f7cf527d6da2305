"""Random numbers are those of a seed, on the CPU or on every device."""

from types import SimpleNamespace

import torch

from pipeconform.case.seeds import seed_process


def test_devices_are_seeded_for_who_computes_on_one_and_left_alone_on_the_cpu(monkeypatch) -> None:
    seeds: list[int] = []
    # a kind of device as an extension of torch adds it
    kind = SimpleNamespace(_is_in_bad_fork=lambda: False, manual_seed_all=seeds.append)
    name = torch._C._get_privateuse1_backend_name()
    monkeypatch.setattr(torch, name, kind, raising=False)

    with torch.random.fork_rng(devices=[]):
        seed_process(5)
        assert seeds == []
        seed_process(6, device=name)
        assert seeds == [6]
