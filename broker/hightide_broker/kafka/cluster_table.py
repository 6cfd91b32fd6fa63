"""Messages about the cluster, and logins, in the form of `fields.py`."""

from __future__ import annotations

from hightide_broker.kafka.fields import kafka_api

API_VERSIONS = kafka_api(
    18,
    "api_versions",
    0,
    4,
    flexible=3,
    request="""
client_software_name string 3+
client_software_version string 3+
""",
    response="""
error_code int16
api_keys []
  api_key int16
  min_version int16
  max_version int16
throttle_time_ms int32 1+ =0
supported_features [] 3+ #0 =[]
  name string
  min_version int16
  max_version int16
finalized_features_epoch int64 3+ #1 =-1
finalized_features [] 3+ #2 =[]
  name string
  max_version_level int16
  min_version_level int16
zk_migration_ready bool 3+ #3 =false
""",
)
METADATA = kafka_api(
    3,
    "metadata",
    0,
    13,
    flexible=9,
    request="""
topics [] ?1+
  topic_id uuid 10+
  name string ?10+
allow_auto_topic_creation bool 4+ =true
include_cluster_authorized_operations bool 8-10
include_topic_authorized_operations bool 8+
""",
    response="""
throttle_time_ms int32 3+ =0
brokers []
  node_id int32
  host string
  port int32
  rack string 1+ ? =null
cluster_id string 2+ ? =null
controller_id int32 1+ =-1
topics []
  error_code int16
  name string ?12+
  topic_id uuid 10+
  is_internal bool 1+ =false
  partitions []
    error_code int16
    partition_index int32
    leader_id int32
    leader_epoch int32 7+ =-1
    replica_nodes []int32
    isr_nodes []int32
    offline_replicas []int32 5+
  topic_authorized_operations int32 8+ =-2147483648
cluster_authorized_operations int32 8-10 =-2147483648
error_code int16 13+
""",
)
DESCRIBE_CLUSTER = kafka_api(
    60,
    "describe_cluster",
    0,
    2,
    flexible=0,
    request="""
include_cluster_authorized_operations bool
endpoint_type int8 1+ =1
include_fenced_brokers bool 2+
""",
    response="""
throttle_time_ms int32 =0
error_code int16
error_message string ? =null
endpoint_type int8 1+ =1
cluster_id string
controller_id int32 =-1
brokers []
  broker_id int32
  host string
  port int32
  rack string ? =null
  is_fenced bool 2+
cluster_authorized_operations int32 =-2147483648
""",
)
DESCRIBE_QUORUM = kafka_api(
    55,
    "describe_quorum",
    0,
    2,
    flexible=0,
    request="""
topics []
  topic_name string
  partitions []
    partition_index int32
""",
    response="""
error_code int16
error_message string 2+ ? =null
topics []
  topic_name string
  partitions []
    partition_index int32
    error_code int16
    error_message string 2+ ? =null
    leader_id int32
    leader_epoch int32
    high_watermark int64
    current_voters []
      replica_id int32
      replica_directory_id uuid 2+
      log_end_offset int64
      last_fetch_timestamp int64 1+ =-1
      last_caught_up_timestamp int64 1+ =-1
    observers []
      replica_id int32
      replica_directory_id uuid 2+
      log_end_offset int64
      last_fetch_timestamp int64 1+ =-1
      last_caught_up_timestamp int64 1+ =-1
nodes [] 2+
  node_id int32
  listeners []
    name string
    host string
    port uint16
""",
)
DESCRIBE_TOPIC_PARTITIONS = kafka_api(
    75,
    "describe_topic_partitions",
    0,
    0,
    flexible=0,
    request="""
topics []
  name string
response_partition_limit int32
cursor {} ?
  topic_name string
  partition_index int32
""",
    response="""
throttle_time_ms int32 =0
topics []
  error_code int16
  name string ?
  topic_id uuid
  is_internal bool
  partitions []
    error_code int16
    partition_index int32
    leader_id int32
    leader_epoch int32
    replica_nodes []int32
    isr_nodes []int32
    eligible_leader_replicas []int32 ?
    last_known_elr []int32 ?
    offline_replicas []int32
  topic_authorized_operations int32 =-2147483648
next_cursor {} ?
  topic_name string
  partition_index int32
""",
)
LIST_PARTITION_REASSIGNMENTS = kafka_api(
    46,
    "list_partition_reassignments",
    0,
    0,
    flexible=0,
    request="""
timeout_ms int32
topics [] ?
  name string
  partition_indexes []int32
""",
    response="""
throttle_time_ms int32 =0
error_code int16
error_message string ? =null
topics []
  name string
  partitions []
    partition_index int32
    replicas []int32
    adding_replicas []int32
    removing_replicas []int32
""",
)
SASL_HANDSHAKE = kafka_api(
    17,
    "sasl_handshake",
    1,
    1,
    flexible=None,
    request="""
mechanism string
""",
    response="""
error_code int16
mechanisms []string
""",
)
SASL_AUTHENTICATE = kafka_api(
    36,
    "sasl_authenticate",
    0,
    2,
    flexible=2,
    request="""
auth_bytes bytes
""",
    response="""
error_code int16
error_message string ?
auth_bytes bytes
session_lifetime_ms int64 1+ =0
""",
)

APIS = (
    API_VERSIONS,
    METADATA,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    LIST_PARTITION_REASSIGNMENTS,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)
