"""The targets of the fuzzers end well, without the fuzzers.

Goal: they stay alive, what they begin with reaches what they are for, and what was found once is
not found again. Method: each target is given its seeds, changes of these that Hypothesis draws, and
every finding that is kept; and each is shown a bug that it must find.
"""

from collections import Counter
from pathlib import Path

import batches
import frames
import kept_files
import logs
import members
import pytest
import scram
from hypothesis import given, settings
from hypothesis import strategies as st
from sealing import BARE, PACKED, PRODUCED, SEALED
from targets import TARGETS
from tries import tries

from hightide.protocol.codecs import CODECS, ROW_CODECS, at_once
from hightide.protocol.errors import CorruptBatch, Refused
from hightide.protocol.records import MAGIC, ROWS_MAGIC
from hightide_broker.kafka.tongue import TRANSLATORS
from hightide_broker.runtime.server.tongue import Errand, Question

FINDINGS = sorted((Path(__file__).parent / "findings").glob("*.hex"))
every_target = pytest.mark.parametrize("name", TARGETS)


def test_the_shares_of_the_targets_are_all_there_is():
    assert sum(target.share for target in TARGETS.values()) == 100


@every_target
def test_a_target_ends_well_with_what_it_begins_with(name):
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


@st.composite
def changed(draw, seeds):
    """A seed with some bytes written over, taken out or put in; or a part of another behind it."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        size = draw(st.integers(0, 4))
        data[at : at + size] = draw(st.binary(max_size=4) | st.just(b"\xff" * size))
    if draw(st.integers(0, 9)) == 0:
        data += draw(st.sampled_from(seeds))
    return bytes(data)


@every_target
def test_a_target_ends_well_whatever_is_changed(name):
    target = TARGETS[name]
    seeds = [seed for seed in target.seeds() if len(seed) <= target.bytes_max]

    @settings(max_examples=tries(60 if name == "logs" else 150))
    @given(data=changed(seeds) | st.binary(max_size=80))
    def feed(data):
        target.run(data)

    feed()


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda path: path.stem)
def test_what_was_found_is_not_found_again(finding):
    name, _, _ = finding.stem.partition(".")
    TARGETS[name].run(bytes.fromhex(finding.read_text(encoding="ascii")))


# --- they reach what they are for -----------------------------------------------------------------


def test_the_seeds_of_kafkas_requests_are_understood_in_every_api():
    heard = {}
    for seed in TARGETS["kafka-requests"].seeds():
        key = int.from_bytes(seed[:2], "big")
        try:
            heard[key] = at_once(frames.KAFKA.hearing(bytearray(seed)))
        except frames.RemoteProtocolError:
            continue
    assert heard.keys() == TRANSLATORS.keys()
    assert {type(each) for each in heard.values()} == {Question, Errand}


def test_the_seeds_of_our_own_requests_are_understood_in_every_api():
    heard = set()
    for seed in TARGETS["frames"].seeds():
        try:
            heard.add(frames.NATIVE.hear(bytearray(seed)).api.name)
        except frames.RemoteProtocolError:
            continue
    assert heard == frames.API_BY_NAME.keys()


@pytest.mark.parametrize(
    ("name", "magic", "codecs"),
    [("rows", ROWS_MAGIC, set(ROW_CODECS)), ("columns", MAGIC, set(CODECS))],
)
def test_batches_of_every_codec_are_accepted_and_bombs_are_not(name, magic, codecs):
    accepted, refused = Counter(), Counter()
    for seed in TARGETS[name].seeds():
        _, batch = batches.batch_in(seed, magic)
        header = batches.sound(batch)
        try:
            batches.validation.check_sent(memoryview(batch))
            batches.validation.look_at_once(
                memoryview(batch), header, inflated_max=batches.INFLATED_MAX
            )
            accepted[header.codec] += 1
        except Refused as refusal:
            refused[header.codec if header else ""] += "inflates" in refusal.message
    assert accepted.keys() == codecs
    assert {codec for codec in refused if refused[codec]} == codecs - {"none"}


def test_what_is_sealed_has_the_form_that_it_was_told():
    (flags, batch), header = batches.batch_in(bytes([SEALED | PRODUCED]) + bytes(90), 2), None
    header = batches.sound(batch)
    assert (flags, header.magic, header.size) == (SEALED | PRODUCED, 2, 90)
    assert (header.record_count, header.last_offset_delta) == (1, 0)
    plain = bytearray(bytes(90))
    plain[22] = ROW_CODECS["snappy"]
    for more in (0, BARE):
        _, packed = batches.batch_in(bytes([SEALED | PACKED | more]) + bytes(plain), 2)
        header = batches.sound(packed)
        payload = batches.at_once(batches.payload_of(packed, header))
        assert bytes(payload) == bytes(29)
        assert packed[61:].startswith(b"\x82SNAPPY") == (not more)


# --- each finds a bug that is planted -------------------------------------------------------------


def found_by(name):
    """Whether a target does not end well with some of what it begins with."""
    try:
        for seed in TARGETS[name].seeds():
            TARGETS[name].run(seed)
    except Exception:
        return True
    return False


def raises(error):
    def fail(*_args, **_kwargs):
        raise error

    return fail


PLANTED = {
    "kafka-requests": (frames.KAFKA, "hearing", raises(KeyError("topics"))),
    "rows": (batches.rows, "_numpy_reader", lambda: lambda *_, **__: ("other", 0)),
    "columns": (batches, "to_rows", raises(CorruptBatch("it can be opened, though"))),
    "frames": (frames.NATIVE, "hear", raises(UnicodeDecodeError("utf-8", b"x", 0, 1, "no"))),
    "members": (members, "pack_assigned", lambda _: b""),
    "logins": (scram, "FAILED", "another sentence"),
    "files": (kept_files, "encode_change", lambda _: b"\x80"),
    "logs": (logs, "check_crc", raises(CorruptBatch("what was read is not whole"))),
}
"""What is put in place of what: (of whom, its name, the bug)."""


@every_target
def test_a_target_finds_a_bug_that_is_planted(name, monkeypatch):
    assert not found_by(name)
    monkeypatch.setattr(*PLANTED[name])
    assert found_by(name)
