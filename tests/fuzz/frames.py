"""Targets: a request as it comes from the wire, of Kafka's protocol and of our own.

Held of each: it is understood, or refused by `RemoteProtocolError`; what it makes is bounded by its
own bytes and by the named limits; who understood it can refuse it in its own words, and a request
of ours that came of it can go on to a controller. No test lives here.
"""

from contextlib import suppress

import msgspec

from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME
from hightide.protocol.codecs import at_once
from hightide.protocol.errors import ErrorCode, Refused, RemoteProtocolError
from hightide_broker.core.cluster.image import (
    BrokerState,
    ClusterImage,
    PartitionState,
    TopicState,
)
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.reading import ELEMENTS_MAX
from hightide_broker.kafka.tongue import KafkaTongue
from hightide_broker.runtime.server.native import NativeTongue
from hightide_broker.runtime.server.tongue import Errand, Question, Unanswerable

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def _image():
    broker = BrokerState(
        broker=1,
        epoch=1,
        incarnation="i",
        host="h",
        port=9,
        rack="",
        roles=("broker",),
        fenced=False,
    )
    partition = PartitionState((1,), (1,), leader=1, leader_epoch=0, partition_epoch=0)
    topic = TopicState("t", TOPIC_ID, [partition])
    return ClusterImage(
        brokers={1: broker},
        topics={"t": topic},
        topics_by_id={TOPIC_ID: topic},
        configs={("topic", "t"): {"cleanup.policy": "compact"}},
    )


IMAGE = _image()
KAFKA = KafkaTongue(Facts(lambda: IMAGE, broker=1, now_ms=lambda: 5000))
NATIVE = NativeTongue()
NO = Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")


def kafka_request(data):
    """What comes behind the length of a frame of Kafka's."""
    body = bytearray(data)
    try:
        KAFKA.check_length(len(body), bytes(body[:2]))
        heard = at_once(KAFKA.hearing(body))
    except RemoteProtocolError:
        return
    assert not isinstance(heard, Unanswerable), "Kafka's protocol has no such answer"
    check_refusal(heard.ticket)
    if isinstance(heard, Errand):
        carry_out(heard)
        return
    check_question(heard, len(body))
    buffers = wire.encode_request(heard.request, request_id=1, client=heard.client_id)
    assert len(buffers) == 1


def native_request(data):
    """What comes behind the length of a frame of ours."""
    body = bytearray(data)
    try:
        heard = NATIVE.hear(body)
    except RemoteProtocolError:
        heard = None
    if heard is not None:
        check_refusal(heard.ticket)
    if isinstance(heard, Question):
        check_question(heard, len(body))
        again = wire.encode_request(heard.request, request_id=1, client=heard.client_id)
        assert NATIVE.hear(bytearray(b"".join(again))[wire.LENGTH_BYTES :]).request == heard.request
    native_response(body)


def native_response(body):
    """The same bytes, as the answer that a client waits for; its API is any."""
    with suppress(RemoteProtocolError):
        frame = wire.split_frame(body, message_limit=wire.RESPONSE_MESSAGE_BYTES_MAX)
        envelope = wire.decode_response_envelope(frame)
        api = _APIS[envelope.id % len(_APIS)]
        answer = wire.decode_body(envelope.body, api.response)
        assert elements_in(answer) <= len(body)
        with suppress(OverflowError):
            wire.encode_response(answer, request_id=envelope.id)


_APIS = list(API_BY_NAME.values())


def check_question(heard, size):
    """What was asked is of one kind, and no more than the bytes that it came in."""
    assert isinstance(heard.request, heard.api.request)
    assert elements_in(heard.request) <= min(size, ELEMENTS_MAX)
    assert sum(map(len, heard.attachments)) <= size


def check_refusal(ticket):
    """It can be refused, or the connection is closed."""
    refusing = ticket.refusing(NO)
    frame = None if refusing is None else at_once(refusing)
    if frame is not None:
        whole = b"".join(map(bytes, frame))
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4


def carry_out(errand):
    """Run an errand that is refused everything it asks; it waits for nobody."""

    async def ask(request):
        wire.encode_request(request, request_id=1, client="")
        raise NO

    running = errand.run(ask)
    try:
        running.send(None)
    except StopIteration as done:
        whole = b"".join(map(bytes, done.value))
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    except Refused:
        pass
    else:
        raise AssertionError("an errand waits for something that it did not ask")


def elements_in(value):
    """Elements of lists and maps, however deep."""
    if isinstance(value, msgspec.Struct):
        return sum(elements_in(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return sum(1 + elements_in(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(1 + elements_in(each) for each in value)
    return 0
