"""Queries that an adversary kills, moves and starts again write every row once, or say why not.

Goal: promises 2 and 5 under what operators, schedulers and machines do between two attempts at a
batch. Method: `spark_adversary`. HIGHTIDE_ROUNDS says how many rounds, HIGHTIDE_SEED where they
begin; a failure tells the story of its round.
"""

import os
from collections import Counter
from contextlib import closing

import pytest
from tries import LONG

pytest.importorskip("pyspark")

from secure_run import own_cluster
from spark_adversary import Driver, Round

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

ROUNDS = int(os.environ.get("HIGHTIDE_ROUNDS", "1"))
SEED = int(os.environ.get("HIGHTIDE_SEED", "1"))


@LONG
def test_whatever_happens_between_attempts_every_row_is_stored_once(tmp_path):
    kinds, struck, errors = Counter(), Counter(), Counter()
    with (
        own_cluster(brokers=3, directory=tmp_path) as cluster,
        closing(Driver(cluster.address, tmp_path)) as driver,
    ):
        for seed in range(SEED, SEED + ROUNDS):
            each = Round(seed, cluster, driver)
            each.run()
            kinds[each.kind] += 1
            struck += each.struck
            errors += each.errors
    print(f"rounds {dict(kinds)}, killed {dict(struck)}, attempts ended {dict(errors)}")
    assert struck.total() >= ROUNDS / 2, "hardly anybody was killed"
