"""Blocking and async clients under an adversary that interrupts, cancels, forks, drops and misuses.

A round is a small program drawn from a seed, against a cluster of real processes. Many rounds share
a process (`python client_adversary.py ADDRESS FIRST LAST`), which says for each what became
of it as a line of JSON. Who started it (`judged`) waits as long as there is progress, then reads
back what is stored, with a client on plain sockets, and judges by the books of all rounds: what was
acknowledged is there exactly once and in order, anything else at most once, and nothing that nobody
sent. What consumers were handed out is judged in the round itself.
"""

import gc
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field

import client_adversary_async
import client_adversary_blocking
import client_adversary_misuse
import client_adversary_programs
from client_adversary_tools import (
    HANGS_S,
    NUMBERS,
    PARTITIONS,
    Round,
    Struck,
    number_value,
    plain,
    watched,
)
from secure_run import reaching

from hightide.blocking import Admin, Producer
from hightide.blocking.portal import Opened
from hightide.protocol import messages as m
from hightide.protocol.columns import to_records
from hightide.protocol.records import check_crc, iter_batches

KINDS = (
    *client_adversary_blocking.KINDS,
    *client_adversary_programs.KINDS,
    *client_adversary_misuse.KINDS,
    *client_adversary_async.KINDS,
)
"""Those that are there twice are drawn twice as often."""
ODD = {b"odd", b"x", b"", b"1", b"\xff", b"y", None}
"""What calls with arguments of the wrong type may have stored: nobody keeps books of it."""


# --- in the process of the rounds ---------------------------------------------------------------


def play(address, first, last, only):
    """Rounds, one after the other, until one fails: what it leaves behind is not the next one's."""
    named = [kind for kind in KINDS if not only or kind.__name__ in only.split(",")]
    for seed in range(first, last):
        each = Round(seed, named[seed % len(named)], address)
        failure = ""
        with watched():
            try:
                each.kind(each)
                each.let_go()
                gc.collect()
                each.until(lambda: not left_open(), "the end of clients that nobody holds")
            except SystemExit:
                raise  # of a forked child
            except BaseException as error:
                failure = traceback.format_exc()
                failure += "".join(f"\nat work: {vars(life)}" for life in left_open())
                if isinstance(error, KeyboardInterrupt) and not Struck(error).where:
                    failure = ""  # the second one came when the first was already told of
                    each.tally["interrupted between calls"] += 1
        tell(each, failure)
        if failure:
            os._exit(0)


def tell(each, failure):
    """A line about a round, to who started this process."""
    rows = [
        (row.value, row.partition, row.state, row.offset)
        for book in each.books
        for row in book.rows
    ]
    said = {
        "seed": each.seed,
        "kind": each.kind.__name__,
        "failure": failure,
        "tally": each.tally,
        "rows": rows,
        "names": [book.name for book in each.books],
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def left_open():
    """Clients of this process that are at work."""
    return [each for each in gc.get_objects() if isinstance(each, Opened) and each.is_at_work]


# --- who starts it, and judges ------------------------------------------------------------------


@dataclass
class Verdict:
    """What many rounds came to."""

    kinds: Counter = field(default_factory=Counter)
    tally: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)


def prepare(address, replicas):
    """The topics: `numbers` holds what consumers read, `t` takes what producers send."""
    way = reaching(address)
    with Admin(**way) as admin, Producer(**way, batch_size=500) as producer:
        for topic in ("numbers", "t"):
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=replicas)
        for number in range(PARTITIONS):
            values = [number_value(number, offset) for offset in range(NUMBERS)]
            producer.send_many("numbers", values, partition=number).result()


def judged(address, first, last, *, only="", process_rounds=100):
    """Play rounds in processes of their own, and judge them."""
    verdict = Verdict()
    begin = Round(first, None, address).ends()
    while first < last:
        until = min(last, first + process_rounds)
        begun, said = first, []
        first = play_apart(address, first, until, only, said, verdict)
        begin = judge_stored(address, begin, said, verdict)
        assert first > begun
    return verdict


def play_apart(address, first, last, only, said, verdict):
    """Rounds in a process; what they said. Returns which round is next."""
    command = [sys.executable, __file__, address, str(first), str(last), only]
    errors = []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = queue.SimpleQueue()
    threads = [
        threading.Thread(target=pump, args=(process.stdout, lines.put)),
        threading.Thread(target=pump, args=(process.stderr, errors.append)),
    ]
    for thread in threads:
        thread.start()
    try:
        while (line := lines.get(timeout=HANGS_S + 60)) is not None:
            each = json.loads(line)
            said.append(each)
            first = each["seed"] + 1
            verdict.kinds[each["kind"]] += 1
            verdict.tally += Counter(each["tally"])
            if each["failure"]:
                verdict.failures.append(f"seed {each['seed']} {each['kind']}: {each['failure']}")
        code = process.wait(HANGS_S)
        why = f"ended with {code}" if code or first < last else ""
    except (queue.Empty, subprocess.TimeoutExpired):
        why, code = "says nothing any more", -1
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            thread.join()
        process.stdout.close()
        process.stderr.close()
    if said and said[-1]["seed"] == first - 1 and said[-1]["failure"] and not code:
        return first
    if why:
        tail = "".join(line for line in errors if line)[-6000:]
        verdict.failures.append(f"seed {first}: the process {why}:\n{tail}")
        return first + 1
    return last


def pump(stream, put):
    """Every line of a stream, then None."""
    for line in stream:
        put(line)
    put(None)


def judge_stored(address, begin, said, verdict):
    """Compare the books with the logs from `begin` on; where they end now."""
    stored, ends = [], {}
    with plain(address) as client:
        for number, start in begin.items():
            found, ends[number] = read(client, number, start)
            stored += found
    places = {}
    for value, *place in stored:
        places.setdefault(value, []).append(tuple(place))
    for each in said:
        mine = [what for row in each["rows"] for what in judge_row(*row, places)]
        mine += [what for name in each["names"] for what in judge_order(name, stored)]
        if mine:
            verdict.failures.append(f"seed {each['seed']} {each['kind']}: {mine[:5]}")
    known = {row[0] for each in said for row in each["rows"]}
    strange = [
        value for value in places if value not in known and value.encode("latin-1") not in ODD
    ]
    if strange:
        verdict.failures.append(f"nobody sent {strange[:5]}")
    return ends


def read(client, number, start):
    """What a partition of `t` holds from an offset on: (value, partition, offset); and its end."""
    end = client.offset("t", number, m.LATEST, timeout_s=HANGS_S).offset
    found, position = [], start
    while position < end:
        part = m.FetchPartition(
            topic="t", partition=number, fetch_offset=position, max_bytes=8 << 20
        )
        request = m.FetchRequest(max_wait_ms=100, partitions=[part])
        answer, received = client.call_leader("t", number, request, timeout_s=HANGS_S)
        if answer.partitions[0].records < 0:
            continue
        for header, batch in iter_batches(received[answer.partitions[0].records]):
            check_crc(batch, header)
            for record in to_records(batch, header, "t", number):
                if position <= record.offset < end and record.value is not None:
                    text = record.value.decode("latin-1")
                    found.append((text, number, record.offset))
            position = header.next_offset
    return found, end


def judge_row(value, partition, state, offset, places):
    """What is wrong with a record."""
    found = places.get(value, [])
    if len(found) > 1:
        yield f"{value} is stored {len(found)} times: {found}"
    if state == "stored" and not found:
        yield f"{value} was acknowledged at {offset} and is lost"
    if state == "absent" and found:
        yield f"{value} was not sent and is stored: {found}"
    if found and found[0][0] != partition:
        yield f"{value} was sent to {partition} and is stored in {found}"
    if offset >= 0 and found and found[0][1] != offset:
        yield f"{value} was told to be at {offset} and is stored at {found}"


def judge_order(name, stored):
    """Whether a sender's records are in its order, in each partition."""
    last = {}
    for value, partition, offset in sorted(stored, key=lambda each: each[1:]):
        sender, _, number = value.rpartition("/")
        if sender == name:
            if int(number) <= last.get(partition, -1):
                yield f"{value} at {offset} comes after {last[partition]}"
            last[partition] = int(number)


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
