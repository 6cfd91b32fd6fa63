"""Messages about rules, users and quotas, in the form of `fields.py`."""

from __future__ import annotations

from hightide_broker.kafka.fields import kafka_api

DESCRIBE_ACLS = kafka_api(
    29,
    "describe_acls",
    1,
    3,
    flexible=2,
    request="""
resource_type_filter int8
resource_name_filter string ?
pattern_type_filter int8
principal_filter string ?
host_filter string ?
operation int8
permission_type int8
""",
    response="""
throttle_time_ms int32 =0
error_code int16
error_message string ? =null
resources []
  resource_type int8
  resource_name string
  pattern_type int8
  acls []
    principal string
    host string
    operation int8
    permission_type int8
""",
)
CREATE_ACLS = kafka_api(
    30,
    "create_acls",
    1,
    3,
    flexible=2,
    request="""
creations []
  resource_type int8
  resource_name string
  resource_pattern_type int8
  principal string
  host string
  operation int8
  permission_type int8
""",
    response="""
throttle_time_ms int32 =0
results []
  error_code int16
  error_message string ?
""",
)
DELETE_ACLS = kafka_api(
    31,
    "delete_acls",
    1,
    3,
    flexible=2,
    request="""
filters []
  resource_type_filter int8
  resource_name_filter string ?
  pattern_type_filter int8
  principal_filter string ?
  host_filter string ?
  operation int8
  permission_type int8
""",
    response="""
throttle_time_ms int32 =0
filter_results []
  error_code int16
  error_message string ?
  matching_acls []
    error_code int16 =0
    error_message string ? =null
    resource_type int8
    resource_name string
    pattern_type int8
    principal string
    host string
    operation int8
    permission_type int8
""",
)
DESCRIBE_CLIENT_QUOTAS = kafka_api(
    48,
    "describe_client_quotas",
    0,
    1,
    flexible=1,
    request="""
components []
  entity_type string
  match_type int8
  match string ?
strict bool
""",
    response="""
throttle_time_ms int32 =0
error_code int16
error_message string ? =null
entries [] ?
  entity []
    entity_type string
    entity_name string ?
  values []
    key string
    value float64
""",
)
ALTER_CLIENT_QUOTAS = kafka_api(
    49,
    "alter_client_quotas",
    0,
    1,
    flexible=1,
    request="""
entries []
  entity []
    entity_type string
    entity_name string ?
  ops []
    key string
    value float64
    remove bool
validate_only bool
""",
    response="""
throttle_time_ms int32 =0
entries []
  error_code int16
  error_message string ?
  entity []
    entity_type string
    entity_name string ?
""",
)
DESCRIBE_USERS = kafka_api(
    50,
    "describe_user_scram_credentials",
    0,
    0,
    flexible=0,
    request="""
users [] ?
  name string
""",
    response="""
throttle_time_ms int32 =0
error_code int16
error_message string ? =null
results []
  user string
  error_code int16
  error_message string ?
  credential_infos []
    mechanism int8
    iterations int32
""",
)
ALTER_USERS = kafka_api(
    51,
    "alter_user_scram_credentials",
    0,
    0,
    flexible=0,
    request="""
deletions []
  name string
  mechanism int8
upsertions []
  name string
  mechanism int8
  iterations int32
  salt bytes
  salted_password bytes
""",
    response="""
throttle_time_ms int32 =0
results []
  user string
  error_code int16
  error_message string ?
""",
)

APIS = (
    DESCRIBE_ACLS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_USERS,
    ALTER_USERS,
)
