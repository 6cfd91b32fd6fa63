"""Messages about groups, their members and their offsets, in the form of `fields.py`."""

from __future__ import annotations

from hightide_broker.kafka.fields import kafka_api

OFFSET_COMMIT = kafka_api(
    8,
    "offset_commit",
    2,
    9,
    flexible=8,
    request="""
group_id string
generation_id_or_member_epoch int32 =-1
member_id string
group_instance_id string 7+ ? =null
retention_time_ms int64 2-4 =-1
topics []
  name string
  partitions []
    partition_index int32
    committed_offset int64
    committed_leader_epoch int32 6+ =-1
    committed_metadata string ?
""",
    response="""
throttle_time_ms int32 3+ =0
topics []
  name string
  partitions []
    partition_index int32
    error_code int16
""",
)
OFFSET_FETCH = kafka_api(
    9,
    "offset_fetch",
    1,
    9,
    flexible=6,
    request="""
group_id string 1-7
topics [] 1-7 ?2-7
  name string
  partition_indexes []int32
groups [] 8+
  group_id string
  member_id string 9+ ? =null
  member_epoch int32 9+ =-1
  topics [] ?
    name string
    partition_indexes []int32
require_stable bool 7+ =false
""",
    response="""
throttle_time_ms int32 3+ =0
topics [] 1-7
  name string
  partitions []
    partition_index int32
    committed_offset int64
    committed_leader_epoch int32 5+ =-1
    metadata string ?
    error_code int16
error_code int16 2-7 =0
groups [] 8+
  group_id string
  topics []
    name string
    partitions []
      partition_index int32
      committed_offset int64
      committed_leader_epoch int32 =-1
      metadata string ?
      error_code int16
  error_code int16 =0
""",
)
FIND_COORDINATOR = kafka_api(
    10,
    "find_coordinator",
    0,
    4,
    flexible=3,
    request="""
key string 0-3
key_type int8 1+ =0
coordinator_keys []string 4+
""",
    response="""
throttle_time_ms int32 1+ =0
error_code int16 0-3
error_message string 1-3 ? =""
node_id int32 0-3
host string 0-3
port int32 0-3
coordinators [] 4+
  key string
  node_id int32
  host string
  port int32
  error_code int16
  error_message string ? =""
""",
)
JOIN_GROUP = kafka_api(
    11,
    "join_group",
    0,
    9,
    flexible=6,
    request="""
group_id string
session_timeout_ms int32
rebalance_timeout_ms int32 1+ =-1
member_id string
group_instance_id string 5+ ? =null
protocol_type string
protocols []
  name string
  metadata bytes
reason string 8+ ? =null
""",
    response="""
throttle_time_ms int32 2+ =0
error_code int16
generation_id int32 =-1
protocol_type string 7+ ? =null
protocol_name string ?7+
leader string
skip_assignment bool 9+ =false
member_id string
members []
  member_id string
  group_instance_id string 5+ ? =null
  metadata bytes
""",
)
HEARTBEAT = kafka_api(
    12,
    "heartbeat",
    0,
    4,
    flexible=4,
    request="""
group_id string
generation_id int32
member_id string
group_instance_id string 3+ ? =null
""",
    response="""
throttle_time_ms int32 1+ =0
error_code int16
""",
)
LEAVE_GROUP = kafka_api(
    13,
    "leave_group",
    0,
    5,
    flexible=4,
    request="""
group_id string
member_id string 0-2
members [] 3+
  member_id string
  group_instance_id string ? =null
  reason string 5+ ? =null
""",
    response="""
throttle_time_ms int32 1+ =0
error_code int16
members [] 3+
  member_id string
  group_instance_id string ?
  error_code int16
""",
)
SYNC_GROUP = kafka_api(
    14,
    "sync_group",
    0,
    5,
    flexible=4,
    request="""
group_id string
generation_id int32
member_id string
group_instance_id string 3+ ? =null
protocol_type string 5+ ? =null
protocol_name string 5+ ? =null
assignments []
  member_id string
  assignment bytes
""",
    response="""
throttle_time_ms int32 1+ =0
error_code int16
protocol_type string 5+ ? =null
protocol_name string 5+ ? =null
assignment bytes
""",
)
DESCRIBE_GROUPS = kafka_api(
    15,
    "describe_groups",
    0,
    6,
    flexible=5,
    request="""
groups []string
include_authorized_operations bool 3+
""",
    response="""
throttle_time_ms int32 1+ =0
groups []
  error_code int16
  error_message string 6+ ? =null
  group_id string
  group_state string
  protocol_type string
  protocol_data string
  members []
    member_id string
    group_instance_id string 4+ ? =null
    client_id string
    client_host string
    member_metadata bytes
    member_assignment bytes
  authorized_operations int32 3+ =-2147483648
""",
)
LIST_GROUPS = kafka_api(
    16,
    "list_groups",
    0,
    5,
    flexible=3,
    request="""
states_filter []string 4+
types_filter []string 5+
""",
    response="""
throttle_time_ms int32 1+ =0
error_code int16
groups []
  group_id string
  protocol_type string
  group_state string 4+
  group_type string 5+
""",
)
DELETE_GROUPS = kafka_api(
    42,
    "delete_groups",
    0,
    2,
    flexible=2,
    request="""
groups_names []string
""",
    response="""
throttle_time_ms int32 =0
results []
  group_id string
  error_code int16
""",
)
OFFSET_DELETE = kafka_api(
    47,
    "offset_delete",
    0,
    0,
    flexible=None,
    request="""
group_id string
topics []
  name string
  partitions []
    partition_index int32
""",
    response="""
error_code int16
throttle_time_ms int32 =0
topics []
  name string
  partitions []
    partition_index int32
    error_code int16
""",
)

APIS = (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    DELETE_GROUPS,
    OFFSET_DELETE,
)
