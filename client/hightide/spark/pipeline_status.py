"""How far a pipeline is, by its checkpoint and its groups; no Spark runs for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from hightide.protocol.messages import LATEST
from hightide.spark.client import BlockingClient
from hightide.spark.offsets import Position
from hightide.spark.options import way_to
from hightide.spark.pipeline_config import QUERIES, PipelineConfig


class Standing(NamedTuple):
    """One query's place in one partition."""

    query: str
    batch: int
    """The last one that was planned."""
    is_finished: bool
    """Whether it was; if not, it is run again at the next start."""
    topic: str
    partition: int
    offset: int
    """Where the next batch begins, or the one that is run again ends."""
    high_watermark: int
    """-1: the topic is gone, or was made again."""
    lag: int
    group_offset: int
    """What its group says, one batch behind at the most; -1: nothing yet."""


def standings(checkpoint: Path, config: PipelineConfig, *, timeout_s: float) -> list[Standing]:
    """Of every query and partition; raises `ApiError`, `BrokerUnreachable`, `RequestTimedOut`,
    and `DataLoss` for a checkpoint that is damaged."""
    client = BlockingClient(config.bootstrap, way_to(config.client))
    try:
        client.refresh(None, timeout_s=timeout_s)
        return [
            standing
            for query in QUERIES
            for standing in _of_query(client, checkpoint / query, query, config, timeout_s)
        ]
    finally:
        client.close()


def _of_query(
    client: BlockingClient, place: Path, query: str, config: PipelineConfig, timeout_s: float
) -> list[Standing]:
    planned = newest(place / "offsets")
    if planned is None:
        return []
    position = Position.from_json(json.loads(_last_line(place / "offsets" / str(planned))))
    group = config.query_name(query)
    kept = client.retrying(lambda _: client.committed(group), timeout_s=timeout_s)
    told = {(each.topic, each.partition): each.offset for each in kept}
    ids = {topic: known.topic_id for topic, known in client.metadata.topics.items()}
    there = [tp for tp in position.places if ids.get(tp[0]) == position.topic_ids[tp[0]]]
    ends = client.offsets(dict.fromkeys(there, LATEST), timeout_s=timeout_s)
    heads = {tp: end.offset for tp, end in ends.items()}
    is_finished = newest(place / "commits") == planned
    return [
        Standing(
            query=query,
            batch=planned,
            is_finished=is_finished,
            topic=tp[0],
            partition=tp[1],
            offset=done.offset,
            high_watermark=heads.get(tp, -1),
            lag=max(heads.get(tp, -1) - done.offset, 0),
            group_offset=told.get(tp, -1),
        )
        for tp, done in position.places.items()
    ]


def parquet_files(directory: str | Path) -> list[Path]:
    """The files of an output that count, by Spark's own list of them: after a crash there may be
    others, of batches that were written again. What reads the whole directory sees those, too."""
    directory, kept = Path(directory), set[str]()
    for file in (directory / "_spark_metadata").iterdir():
        if not file.name.startswith("."):
            kept |= {json.loads(line)["path"] for line in file.read_text().splitlines()[1:]}
    return sorted(directory / unquote(path.rpartition("/")[2]) for path in kept)


def newest(directory: Path) -> int | None:
    """The number of the last batch that a checkpoint's directory names; None for none."""
    if not directory.is_dir():
        return None
    return max((int(f.name) for f in directory.iterdir() if f.name.isdigit()), default=None)


def _last_line(file: Path) -> str:
    """The source's own line: it is the only one, the last of the file."""
    return file.read_text().splitlines()[-1]
