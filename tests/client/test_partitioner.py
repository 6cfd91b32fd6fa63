"""Which partition a record goes to: Kafka's choice for a key, a sticky one without.

Goal: anybody who moves a topic from Kafka finds every key where it was; records without a key stay
together for a batch and then move on. Method: Kafka's own vectors, a second murmur2 written from
the rule in Kafka's rules, and seeded randomness.
"""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.produce.murmur2 import TOGETHER_MAX, TOGETHER_MIN, murmur2, murmur2_of_all
from hightide.produce.partitioner import StickyPartitioner, partition_for_key, partitions_for_keys

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2_by_the_rule(data):
    """Kafka's rules, word by word."""

    def wrap(number):
        return number % 2**32

    h = 0x9747B28C ^ len(data)
    words, tail = divmod(len(data), 4)
    for i in range(words):
        k = wrap(sum(data[4 * i + j] << (8 * j) for j in range(4)) * 0x5BD1E995)
        k = wrap((k ^ (k >> 24)) * 0x5BD1E995)
        h = wrap(h * 0x5BD1E995) ^ k
    rest = data[4 * words :]
    if tail == 3:
        h ^= rest[2] << 16
    if tail >= 2:
        h ^= rest[1] << 8
    if tail >= 1:
        h = wrap((h ^ rest[0]) * 0x5BD1E995)
    h = wrap((h ^ (h >> 13)) * 0x5BD1E995)
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


class Loaded(random.Random):
    """Dice that remember how many sides they were asked for, and always show the first one."""

    def __init__(self):
        super().__init__(0)
        self.sides = []

    def randrange(self, stop):
        self.sides.append(stop)
        return 0


@pytest.mark.parametrize(("data", "number"), VECTORS.items())
def test_murmur2_gives_the_numbers_that_kafka_gives(data, number):
    assert murmur2(data) == number


@given(st.binary(max_size=70))
def test_murmur2_follows_the_rule_for_any_bytes(data):
    assert murmur2(data) == murmur2_by_the_rule(data)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 3 * TOGETHER_MIN))
def test_many_keys_are_hashed_as_each_of_them(some, times):
    """Whether so many of a length come together that they are hashed at once, or not."""
    keys = [key[turn % 3 :] + key[: turn % 3] for turn in range(times) for key in some]
    assert murmur2_of_all(keys) == [murmur2_by_the_rule(key) for key in keys]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 11, 36])
def test_more_keys_than_are_hashed_together_are_each_hashed(length):
    dice = random.Random(length)
    keys = [dice.randbytes(length) for _ in range(2 * TOGETHER_MAX + TOGETHER_MIN // 2)]
    assert murmur2_of_all(keys) == [murmur2(key) for key in keys]


@given(st.lists(st.none() | st.binary(max_size=8), max_size=60), st.integers(1, 1000))
def test_many_records_go_where_each_would_go_and_any_may_take_one_without_a_key(keys, count):
    expected = [None if key is None else partition_for_key(key, count) for key in keys]
    assert partitions_for_keys(keys, count) == expected


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_keys_partition_is_its_hash_without_the_sign_bit_modulo_the_count(key, count):
    assert partition_for_key(key, count) == (murmur2_by_the_rule(key) & 0x7FFFFFFF) % count


def test_a_negative_hash_loses_its_sign_bit_and_is_not_negated():
    number = VECTORS[b"21"]
    assert [abs(number) % 7, number % 7, number % 2**32 % 7] == [6, 1, 5]
    assert partition_for_key(b"21", 7) == 3


def test_an_empty_key_is_a_key_and_always_goes_to_the_same_partition():
    assert murmur2(b"") == 275646681
    assert {partition_for_key(b"", 10) for _ in range(5)} == {1}


def test_the_same_key_with_another_partition_count_is_judged_again():
    assert [partition_for_key(b"abc", count) for count in (1, 2, 3, 4, 1000)] == [0, 1, 0, 3, 107]


@pytest.mark.parametrize("count", [2, 3, 17])
def test_a_switch_always_goes_to_another_partition(count):
    sticky = StickyPartitioner(random.Random(2))
    seen = [sticky.switch(range(count)) for _ in range(200)]
    assert all(one != two for one, two in pairwise(seen))
    assert set(seen) == set(range(count))


def test_the_others_are_drawn_from_evenly():
    dice = Loaded()
    sticky = StickyPartitioner(dice)
    sticky.switch(range(5))
    sticky.switch(range(5))
    assert dice.sides == [5, 4]


def test_the_only_partition_is_used_again_after_a_switch():
    sticky = StickyPartitioner(random.Random(3))
    assert [sticky.switch([4]), sticky.switch([4])] == [4, 4]


def test_the_same_seed_takes_the_same_way():
    def way(seed):
        sticky = StickyPartitioner(random.Random(seed))
        return [sticky.switch(range(6)) for _ in range(30)]

    assert way(5) == way(5)
    assert way(5) != way(6)
