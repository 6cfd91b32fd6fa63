"""The record classes of two Kafka clients, as judges of what is read and written here."""

import warnings

from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder

with warnings.catch_warnings():
    # kafka-python reads its schemas, when it is imported, in a way that Python no longer likes.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as PythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder

JUDGES = {"aiokafka": AioBatch, "kafka-python": PythonBatch}
BUILDERS = {"aiokafka": AioBuilder, "kafka-python": PythonBuilder}
