"""Messages about records and offsets of partitions, in the form of `fields.py`."""

from __future__ import annotations

from hightide_broker.kafka.fields import kafka_api

PRODUCE = kafka_api(
    0,
    "produce",
    0,
    10,
    flexible=9,
    request="""
transactional_id string 3+ ? =null
acks int16
timeout_ms int32
topic_data []
  name string
  partition_data []
    index int32
    records records ?
""",
    response="""
responses []
  name string
  partition_responses []
    index int32
    error_code int16
    base_offset int64
    log_append_time_ms int64 2+ =-1
    log_start_offset int64 5+ =-1
    record_errors [] 8+
      batch_index int32
      batch_index_error_message string ? =null
    error_message string 8+ ? =null
    current_leader {} 10+ #0 ={}
      leader_id int32 =-1
      leader_epoch int32 =-1
throttle_time_ms int32 1+ =0
node_endpoints [] 10+ #0 =[]
  node_id int32
  host string
  port int32
  rack string ? =null
""",
)
FETCH = kafka_api(
    1,
    "fetch",
    4,
    16,
    flexible=12,
    request="""
cluster_id string 12+ ? #0 =null
replica_id int32 4-14 =-1
replica_state {} 15+ #1 ={}
  replica_id int32 =-1
  replica_epoch int64 =-1
max_wait_ms int32
min_bytes int32
max_bytes int32 =2147483647
isolation_level int8 =0
session_id int32 7+ =0
session_epoch int32 7+ =-1
topics []
  topic string 4-12
  topic_id uuid 13+
  partitions []
    partition int32
    current_leader_epoch int32 9+ =-1
    fetch_offset int64
    last_fetched_epoch int32 12+ =-1
    log_start_offset int64 5+ =-1
    partition_max_bytes int32
forgotten_topics_data [] 7+
  topic string 7-12
  topic_id uuid 13+
  partitions []int32
rack_id string 11+ =""
""",
    response="""
throttle_time_ms int32 =0
error_code int16 7+
session_id int32 7+ =0
responses []
  topic string 4-12
  topic_id uuid 13+
  partitions []
    partition_index int32
    error_code int16
    high_watermark int64
    last_stable_offset int64 =-1
    log_start_offset int64 5+ =-1
    diverging_epoch {} 12+ #0 ={}
      epoch int32 =-1
      end_offset int64 =-1
    current_leader {} 12+ #1 ={}
      leader_id int32 =-1
      leader_epoch int32 =-1
    snapshot_id {} 12+ #2 ={}
      end_offset int64 =-1
      epoch int32 =-1
    aborted_transactions [] ?
      producer_id int64
      first_offset int64
    preferred_read_replica int32 11+ =-1
    records records ?
node_endpoints [] 16+ #0 =[]
  node_id int32
  host string
  port int32
  rack string ? =null
""",
)
LIST_OFFSETS = kafka_api(
    2,
    "list_offsets",
    1,
    7,
    flexible=6,
    request="""
replica_id int32
isolation_level int8 2+
topics []
  name string
  partitions []
    partition_index int32
    current_leader_epoch int32 4+ =-1
    timestamp int64
""",
    response="""
throttle_time_ms int32 2+ =0
topics []
  name string
  partitions []
    partition_index int32
    error_code int16
    timestamp int64 =-1
    offset int64 =-1
    leader_epoch int32 4+ =-1
""",
)
INIT_PRODUCER_ID = kafka_api(
    22,
    "init_producer_id",
    0,
    4,
    flexible=2,
    request="""
transactional_id string ?
transaction_timeout_ms int32
producer_id int64 3+ =-1
producer_epoch int16 3+ =-1
""",
    response="""
throttle_time_ms int32 =0
error_code int16
producer_id int64 =-1
producer_epoch int16
""",
)
OFFSET_FOR_LEADER_EPOCH = kafka_api(
    23,
    "offset_for_leader_epoch",
    2,
    4,
    flexible=4,
    request="""
replica_id int32 3+ =-2
topics []
  topic string
  partitions []
    partition int32
    current_leader_epoch int32 =-1
    leader_epoch int32
""",
    response="""
throttle_time_ms int32 =0
topics []
  topic string
  partitions []
    error_code int16
    partition int32
    leader_epoch int32 =-1
    end_offset int64 =-1
""",
)
DELETE_RECORDS = kafka_api(
    21,
    "delete_records",
    0,
    2,
    flexible=2,
    request="""
topics []
  name string
  partitions []
    partition_index int32
    offset int64
timeout_ms int32
""",
    response="""
throttle_time_ms int32 =0
topics []
  name string
  partitions []
    partition_index int32
    low_watermark int64
    error_code int16
""",
)
DESCRIBE_PRODUCERS = kafka_api(
    61,
    "describe_producers",
    0,
    0,
    flexible=0,
    request="""
topics []
  name string
  partition_indexes []int32
""",
    response="""
throttle_time_ms int32 =0
topics []
  name string
  partitions []
    partition_index int32
    error_code int16
    error_message string ? =null
    active_producers []
      producer_id int64
      producer_epoch int32
      last_sequence int32
      last_timestamp int64
      coordinator_epoch int32
      current_txn_start_offset int64 =-1
""",
)

APIS = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    INIT_PRODUCER_ID,
    OFFSET_FOR_LEADER_EPOCH,
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
)
