"""A second opinion: the rules of a table checked the slow and obvious way, sharing no code with ours."""

import collections

import pytest

OPPOSITE = {
    "SEND_F": ("RECV_F", 1),
    "SEND_B": ("RECV_B", -1),
    "RECV_F": ("SEND_F", -1),
    "RECV_B": ("SEND_B", 1),
}


WAIT = "WAIT_"


def _flat(table):
    return [[leaf for action in actions for leaf in action.leaves] for actions in table]


def _waited_for(table):
    """The sends that a table has waits for, on any rank."""
    waits = [one for actions in _flat(table) for one in actions if one.kind.name.startswith(WAIT)]
    return {(one.stage, one.kind.name.removeprefix(WAIT), one.microbatch) for one in waits}


def _complete(table):
    """Right multiset, ranges, placement."""
    length, m = table.chain_length, table.num_microbatches
    seen = collections.Counter()
    for rank, actions in enumerate(_flat(table)):
        for action in actions:
            if not (action.stage < table.num_stages and action.microbatch < m):
                return False
            if table.placement[action.stage] != rank:
                return False
            seen[action.stage, action.kind.name, action.microbatch] += 1
    wanted = collections.Counter()
    waits = bool(_waited_for(table))
    for stage in range(table.num_stages):
        up = stage % length and table.placement[stage] != table.placement[stage - 1]
        down = (stage + 1) % length and table.placement[stage] != table.placement[stage + 1]
        for k in range(m):
            split = seen[stage, "I", k] > 0
            wanted.update((stage, kind, k) for kind in (("F", "I", "W") if split else ("F", "B")))
            if table.has_communication and down:
                wanted.update(
                    [(stage, "SEND_F", k), (stage, "RECV_B", k), *[(stage, "WAIT_SEND_F", k)] * waits]
                )
            if table.has_communication and up:
                wanted.update(
                    [(stage, "SEND_B", k), (stage, "RECV_F", k), *[(stage, "WAIT_SEND_B", k)] * waits]
                )
    return seen == wanted


def _step(table, rank, action, done, posted, sent, queues, order, synchronous):
    """Whether a rank can get past an action now; posts and sends as a side effect."""
    stage, kind, k = action.stage, action.kind.name, action.microbatch
    if kind.startswith(WAIT):
        own = (stage, kind.removeprefix(WAIT), k)
        return own in sent and (own in done or not synchronous)
    length = table.chain_length
    if kind in OPPOSITE:
        other_kind, step = OPPOSITE[kind]
        peer = _queue_of(table.placement[stage + step], order)
        made = {"SEND_F": ["F"], "SEND_B": ["B", "I"]}.get(kind)
        if made and not any((stage, x, k) in done for x in made):
            return False
        me, _mate = (stage, kind, k), (stage + step, other_kind, k)
        if kind.startswith("RECV"):
            if me not in posted:
                posted.add(me)
                queues[rank, peer].append(me)
            return True
        if me not in sent:
            sent.add(me)
            queues[rank, peer].append(me)
        return not synchronous or me in done or me in _waited_for(table)
    needs = []
    remote = table.has_communication
    if kind == "F" and stage % length:
        same = table.placement[stage - 1] == rank
        needs.append([(stage, "RECV_F!", k)] if remote and not same else [(stage - 1, "F", k)])
    if kind in "BI":
        needs.append([(stage, "F", k)])
        if (stage + 1) % length:
            same = table.placement[stage + 1] == rank
            needs.append(
                [(stage, "RECV_B!", k)] if remote and not same else [(stage + 1, "B", k), (stage + 1, "I", k)]
            )
    if kind == "W":
        needs.append([(stage, "I", k)])
    return all(any(option in done for option in options) for options in needs)


def _queue_of(peer, order):
    """With whom a rank shares a queue: everybody if a communicator is served in order, else each rank."""
    return None if order == "communicator" else peer


def _serve(table, done, queues, order):
    """Serve every transfer that can be; whether any was."""
    served = False
    for (a, _), queue in list(queues.items()):
        for me in list(queue[:1] if order else queue):
            if not me[1].startswith("SEND"):
                continue
            other_kind, step = OPPOSITE[me[1]]
            mate = (me[0] + step, other_kind, me[2])
            theirs = queues[table.placement[mate[0]], _queue_of(a, order)]
            if mate in (theirs[:1] if order else theirs):
                queue.remove(me)
                theirs.remove(mate)
                done.add(me)
                done.add((mate[0], mate[1] + "!", mate[2]))
                served = True
    return served


def _runs(table, *, synchronous, order):
    done, posted, sent, queues = set(), set(), set(), collections.defaultdict(list)
    programs = _flat(table)
    position = [0] * table.num_ranks
    moved = True
    while moved:
        moved = _serve(table, done, queues, order)
        for rank, program in enumerate(programs):
            while position[rank] < len(program):
                action = program[position[rank]]
                if not _step(table, rank, action, done, posted, sent, queues, order, synchronous):
                    break
                if action.kind.name not in OPPOSITE:
                    done.add((action.stage, action.kind.name, action.microbatch))
                position[rank] += 1
                moved = True
                moved |= _serve(table, done, queues, order)
    return all(position[rank] == len(program) for rank, program in enumerate(programs))


def naive_verdicts(table):
    """(complete, runs buffered, synchronous, in order per pair, per communicator), for training tables."""
    if not _complete(table):
        return (False,) * 5
    modes = ((False, None), (True, None), (True, "pair"), (True, "communicator"))
    return (True, *(_runs(table, synchronous=s, order=o) for s, o in modes))


@pytest.fixture(scope="session")
def second_opinion():
    """The naive judgement of a training table without batches and sharding actions."""
    return naive_verdicts
