"""The functions `worker` and `main` of a program: its processes, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeconform.export.plain.aspects import WAIT, Aspect

__all__ = ["ends_text"]

_ATTEMPTS = 20


def ends_text(aspect: Aspect, settings: Mapping[str, str], *, alone: bool) -> list[str]:
    """The function that each process runs, and the one that starts them, with `settings`, and tells the verdict.

    A process that is `alone` waits for no other.
    """
    return ["\n".join(_worker(aspect, alone=alone)), "\n".join(_main(aspect, settings))]


def _worker(aspect: Aspect, *, alone: bool) -> Iterator[str]:
    compares = bool(aspect.found)
    yield "def worker(rank, folder):"
    yield "    torch.set_num_threads(1)"
    yield '    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")'
    limit = f", timeout=timedelta(seconds={WAIT})" if aspect.kind == "waited" else ""
    yield '    store, answer = dist.FileStore(f"{folder}/store", WORLD), Path(folder, str(rank))'
    yield f'    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD{limit})'
    both = "expected, on_pipeline(rank)" in aspect.found
    yield "    expected = on_full_model()" if both else "    on_full_model()"
    if not alone:
        yield "    dist.barrier()"
    yield "    try:"
    if compares:
        yield f'        found = next(iter({aspect.found}), "")'
        yield '        answer.write_text(f"REPRODUCED: {found}" if found else "as expected")'
    else:
        if aspect.chance:
            yield f"        for _ in range({_ATTEMPTS}):  # the order of a set of addresses decides whether it shows"
        yield f"{'            ' if aspect.chance else '        '}on_pipeline(rank)"
        yield '        answer.write_text("as expected")'
    if not alone:
        yield "        dist.barrier()  # a rank that left early would be an error for those that still run"
    yield "    except Exception as error:"
    if aspect.kind == "raised":
        yield "        same = re.search(ERROR, format_exc(), re.M)"
    indent = "        " if alone else "            "
    if not alone:
        yield "        if not answer.exists():"
    told = {
        "raised": 'f"REPRODUCED: {error!r}" if same else repr(error)',
        "waited": 'f"REPRODUCED: {error!r}" if "imed out" in str(error) else repr(error)',
    }.get(aspect.kind, "repr(error)")
    yield f"{indent}answer.write_text({told})"
    if aspect.lives_on:
        yield '            if "imed out" not in str(error):'
        yield f"                time.sleep({2 * WAIT})  # it lives on, and its connections stay open"
    yield "    os._exit(0)"


def _main(aspect: Aspect, settings: Mapping[str, str]) -> Iterator[str]:
    yield "def main():"
    for name, value in settings.items():
        yield f'    os.environ["{name}"] = "{value}"'
    yield "    with tempfile.TemporaryDirectory() as folder:"
    yield '        make, told = mp.get_context("spawn").Process, []'
    yield "        ranks = [make(target=worker, args=(rank, folder)) for rank in range(WORLD)]"
    yield "        for process in ranks:"
    yield "            process.start()"
    yield "        for rank, process in enumerate(ranks):"
    yield "            process.join(timeout=120)"
    ended = 'f"exit code {process.exitcode}"'
    if aspect.kind == "died":
        yield f"            died = process.exitcode == -signal.{aspect.ended}"
        ended = f'"REPRODUCED: died of {aspect.ended}" if died else {ended}'
        yield f"            ended = {ended}"
        ended = "ended"
    yield "            answer = Path(folder, str(rank))"
    yield f"            told.append(answer.read_text() if answer.exists() else {ended})"
    yield "            process.kill()"
    yield '            print(f"rank {rank}: {told[-1]}")'
    yield '    seen, met = any("REPRODUCED" in text for text in told), set(told) == {"as expected"}'
    yield '    print("REPRODUCED" if seen else "NOT REPRODUCED" if met else "INCONCLUSIVE: it ended otherwise")'
    yield "    sys.exit(1 if seen else 0 if met else 3)"
