"""A Spark source that does nothing: Arrow batches from memory, in turns.

It is the floor of `hightide bench spark`: what Spark itself needs to take such rows in and to run a
micro-batch, without a broker, a socket or a log. Its columns are those of hightide's source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from hightide.spark.schema import schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS_PER_BATCH = 40_000
DISTINCT = 16


@dataclass
class Rows(InputPartition):
    """One task: so many rows with values of `size` bytes."""

    count: int
    size: int


class MemorySource(DataSource):
    """Options: `rows` in all (of a stream: of a micro-batch), `partitions`, `size` of a value in
    bytes, `batches` of a stream."""

    @classmethod
    def name(cls) -> str:
        return "hightide-bench-memory"

    def schema(self) -> StructType:
        return schema_of()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._plan())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self._plan(), int(self.options["batches"]))

    def _plan(self) -> list[InputPartition]:
        rows, tasks = int(self.options["rows"]), int(self.options["partitions"])
        size = int(self.options["size"])
        return [Rows(share, size) for share in shares(rows, tasks)]


class _Planned:
    """Both readers have the same tasks, of a batch query and of each micro-batch."""

    def __init__(self, plan: list[InputPartition]) -> None:
        self._plan = plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return batches(partition.count, partition.size)


class _Reader(_Planned, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return self._plan


class _StreamReader(_Planned, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A position is the number of micro-batches that were made."""

    def __init__(self, plan: list[InputPartition], total: int) -> None:
        super().__init__(plan)
        self._total = total

    def initialOffset(self) -> dict[str, int]:
        return {"made": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is known anyway."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"made": min(start["made"] + 1, self._total)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._plan


def shares(rows: int, parts: int) -> list[int]:
    """So many rows in nearly equal parts."""
    edges = [rows * number // parts for number in range(parts + 1)]
    return [end - start for start, end in pairwise(edges)]


def batches(count: int, size: int) -> Iterator[pa.RecordBatch]:
    """`count` rows with values of `size` bytes."""
    length = min(count, ROWS_PER_BATCH)
    if not length:
        return
    several = cycle(_batches(length, size))
    for start in range(0, count, length):
        batch = next(several)
        yield batch if count - start >= length else batch.slice(0, count - start)


@lru_cache(maxsize=2)
def _batches(length: int, size: int) -> list[pa.RecordBatch]:
    """Enough different ones that a processor's cache does not hold them: a log's are never the same
    either."""
    import os

    import numpy as np
    import pyarrow as pa

    from hightide.arrow.to_arrow import schema

    starts = pa.py_buffer(np.arange(length + 1, dtype=np.int32) * np.int32(size))

    def one() -> pa.RecordBatch:
        values = [None, starts, pa.py_buffer(os.urandom(length * size))]
        columns = [
            pa.nulls(length, pa.binary()),
            pa.Array.from_buffers(pa.binary(), length, values),
            pa.array(["memory"] * length),
            pa.array(np.zeros(length, np.int32)),
            pa.array(np.arange(length, dtype=np.int64)),
            pa.array(np.zeros(length, np.int64)).cast(pa.timestamp("us", tz="UTC")),
            pa.array(np.zeros(length, np.int32)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema())

    return [one() for _ in range(DISTINCT)]
