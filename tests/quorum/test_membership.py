"""Who votes in the metadata quorum, as a node knows it.

Goal: the last record of the voters in the log counts; while there is none, the configuration does,
and a disk that was made to join counts for nothing; voters come and go one at a time. Method:
`Membership` on a log in memory. `test_voter_records.py` has the log on disk.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from quorum_node import Entry, FakeLog, voter, voters

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.membership import VOTERS_MAX, Membership
from hightide_broker.core.quorum.progress import majority_of
from hightide_broker.core.quorum.roles import QuorumConfig


def record(names: str) -> Entry:
    return Entry(1, "voters", voters(names))


def member(directory: str, log: FakeLog, *, joining: bool = False) -> Membership:
    """What a node knows, which has nodes 1 to 3 in its configuration."""
    config = QuorumConfig(
        node=int(directory[:-1]),
        voters=(1, 2, 3),
        addresses={node: (f"n{node}", 9000 + node) for node in (1, 2, 3)},
        directory=directory,
        joining=joining,
    )
    return Membership(config, log)


# --- who votes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "joining", "known", "votes"),
    [
        ("1a", False, None, True),
        ("4a", False, None, False),
        ("1b", True, None, False),
        ("1a", False, "1a 2a 3a", True),
        ("1b", False, "1a 2a 3a", False),
        ("1b", True, "1a 2a 3a", False),
        ("1b", True, "1b 2a 3a", True),
        ("4a", True, "1a 2a 3a 4a", True),
        ("1a", False, "2a 3a", False),
    ],
)
def test_a_node_votes_with_the_directory_of_the_record_or_else_by_configuration(
    directory: str, joining: bool, known: str | None, votes: bool
) -> None:
    log = FakeLog([record(known)] if known else [])
    assert member(directory, log, joining=joining).is_voter == votes


def test_a_record_takes_the_place_of_the_configuration() -> None:
    log = FakeLog([Entry(1, "a")])
    mine = member("1a", log)
    assert (mine.voters, mine.others, mine.is_recorded, mine.addresses) == (
        (1, 2, 3),
        (2, 3),
        False,
        {},
    )
    assert not mine.refresh()
    log.append([record("4a 1a 2b")])
    assert mine.voters == (1, 2, 3), "it is looked for by `refresh`"
    assert mine.refresh()
    assert (mine.voters, mine.others, mine.is_recorded) == ((4, 1, 2), (4, 2), True)
    assert mine.addresses == {4: ("n4", 9004), 1: ("n1", 9001), 2: ("n2", 9002)}
    assert [mine.directory_of(node) for node in (1, 2, 3, 4)] == ["1a", "2b", "", "4a"]
    assert mine.sources == (4, 2, 3), "the configuration knows who may know"
    assert not mine.refresh()


def test_a_record_that_is_cut_off_never_was() -> None:
    log = FakeLog([record("1a 2a 3a"), Entry(1, "a"), record("1b 2a 3a"), record("2a 3a")])
    mine = member("1b", log, joining=True)
    seen = []
    for end in (4, 3, 2, 1, 0):
        log.truncate_to(end)
        seen.append((mine.refresh(), mine.voters, mine.is_voter, mine.directory))
    assert seen == [
        (False, (2, 3), False, "1b"),
        (True, (1, 2, 3), True, "1b"),
        (True, (1, 2, 3), False, "1b"),
        (False, (1, 2, 3), False, "1b"),
        (True, (1, 2, 3), False, ""),
    ]


def test_a_record_that_says_the_same_is_no_news() -> None:
    log = FakeLog([record("1a 2a 3a")])
    mine = member("1a", log)
    log.append([record("1a 2a 3a")])
    assert not mine.refresh()
    log.append([record("1a 2a 3b")])
    assert mine.refresh()


def test_only_the_last_record_removes_and_only_the_disk_that_was_a_voter() -> None:
    log = FakeLog([record("1a 2a 3a"), record("2a 3a")])
    gone, swapped, stays = member("1a", log), member("1b", log, joining=True), member("2a", log)
    assert (gone.was_voter, swapped.was_voter, stays.was_voter) == (True, False, False)
    log.append([record("2a 3a 4a")])
    assert gone.refresh()
    assert not gone.was_voter, "a later change is only written once the removal is committed"
    log.append([record("1a 2a 3a 4a")])
    assert gone.refresh()
    assert (gone.is_voter, gone.was_voter) == (True, False)


def test_a_disk_that_was_made_to_join_hides_until_it_knows_a_record() -> None:
    log = FakeLog()
    joiner, founder = member("2b", log, joining=True), member("2a", log)
    assert (joiner.directory, founder.directory) == ("", "2a")
    log.append([record("1a 2a 3a")])
    assert joiner.refresh()
    assert (joiner.directory, joiner.is_voter) == ("2b", False), "it may be admitted by its name"


@pytest.mark.parametrize(
    ("known", "node", "directory", "counts"),
    [
        (None, 2, "2a", True),
        (None, 2, "", False),
        (None, 4, "4a", False),
        ("1a 2a", 2, "2a", True),
        ("1a 2a", 2, "2b", False),
        ("1a 2a", 2, "", False),
        ("1a 2a", 3, "3a", False),
    ],
)
def test_what_a_node_holds_counts_if_its_directory_is_a_voters(
    known: str | None, node: int, directory: str, counts: bool
) -> None:
    mine = member("1a", FakeLog([record(known)] if known else []))
    assert mine.counts(node, directory) == counts


def test_where_nobody_has_a_directory_the_node_is_enough() -> None:
    mine = Membership(QuorumConfig(node=1, voters=(1, 2, 3)), FakeLog())
    assert [mine.counts(node, "") for node in (1, 2, 3, 4)] == [True, True, True, False]
    assert mine.first_record({2: "", 3: ""}) == ()


# --- the first record ---------------------------------------------------------------------------


def test_the_voters_are_recorded_once_all_their_directories_are_known() -> None:
    log = FakeLog()
    mine = member("1a", log)
    for known in ({}, {2: "2a"}, {3: "3a"}, {2: "2a", 3: ""}, {2: "2a", 4: "4a"}):
        assert mine.first_record(known) == ()
    assert mine.first_record({2: "2a", 3: "3a"}) == voters("1a 2a 3a")
    assert mine.first_record({1: "1b", 2: "2b", 3: "3a", 4: "4a"}) == voters("1a 2b 3a")
    log.append([record("1a 2a 3a")])
    mine.refresh()
    assert mine.first_record({2: "2b", 3: "3b"}) == (), "once"


# --- changes ------------------------------------------------------------------------------------


def refusal(function: object, *args: object) -> str:
    assert callable(function)
    with pytest.raises(Refused) as caught:
        function(*args)
    return caught.value.code


def test_one_voter_comes_or_goes() -> None:
    mine = member("1a", FakeLog([record("1a 2a 3a")]))
    assert mine.with_voter(voter("4a")) == voters("1a 2a 3a 4a")
    assert mine.without(2, "2a") == mine.without(2, "") == voters("1a 3a")
    assert mine.without(1, "1a") == voters("2a 3a"), "itself, too"
    assert mine.voters == (1, 2, 3), "that is for the log to say"


def test_a_change_that_makes_no_sense_is_refused() -> None:
    mine = member("1a", FakeLog([record("1a 2a 3a")]))
    assert refusal(mine.with_voter, voter("2a")) == ErrorCode.DUPLICATE_VOTER
    assert refusal(mine.with_voter, voter("2b")) == ErrorCode.DUPLICATE_VOTER, "first the old one"
    assert refusal(mine.without, 2, "2b") == ErrorCode.VOTER_NOT_FOUND
    assert refusal(mine.without, 4, "") == ErrorCode.VOTER_NOT_FOUND
    alone = member("1a", FakeLog([record("1a")]))
    assert refusal(alone.without, 1, "") == ErrorCode.INVALID_REQUEST
    unrecorded = member("1a", FakeLog())
    assert refusal(unrecorded.with_voter, voter("4a")) == ErrorCode.INVALID_REQUEST
    assert refusal(unrecorded.without, 2, "") == ErrorCode.INVALID_REQUEST


def test_there_are_only_so_many_voters() -> None:
    all_but_one = " ".join(f"{node}a" for node in range(1, VOTERS_MAX))
    log = FakeLog([record(all_but_one)])
    mine = member("1a", log)
    log.append([Entry(1, "voters", mine.with_voter(voter("500a")))])
    mine.refresh()
    assert len(mine.voters) == VOTERS_MAX
    assert refusal(mine.with_voter, voter("501a")) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("size", range(1, 7))
def test_a_majority_before_a_change_and_one_after_it_have_a_voter_in_common(size: int) -> None:
    before = " ".join(f"{node}a" for node in range(1, size + 1))
    mine = member("1a", FakeLog([record(before)]))
    changed = [mine.with_voter(voter("9a"))]
    changed += [mine.without(node, "") for node in mine.voters if size > 1]
    for after in changed:
        for one in combinations(voters(before), majority_of(size)):
            for other in combinations(after, majority_of(len(after))):
                assert {*one} & {*other}
