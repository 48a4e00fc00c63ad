"""Ten thousand broken messages: none is accepted, each is counted, the worker keeps answering."""

from __future__ import annotations

import random
import struct
import threading
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from cloud_kit.worker.models import open_models
from cloud_kit.worker.validator import Refused, Validator
from cloud_kit.worker.worker import Worker, WorkerSettings
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.tensors import TensorSpec
from edge_kit.wire import Refusal, ResultMessage, Topics, shared_filter
from tests.support.messages import TIMEOUT, bench, delivery, message, reseal, sample_id
from tests.support.tiny import FEATURES, make_bundle

Generator = Callable[[random.Random, bytes], bytes]

BODY_AT = struct.calcsize("<4sBB8sBBBBB3Hfh8sqHf")
FIELDS = {  # name: offset, bytes; only those whose every value but one is wrong
    "magic": (0, 4),
    "version": (4, 1),
    "model": (6, 8),
    "cut": (14, 1),
    "codec": (15, 1),
    "dtype": (16, 1),
    "layout": (17, 1),
    "rank": (18, 1),
    "shape": (19, 6),
    "scale": (25, 4),
    "zero point": (29, 2),
    "sample": (31, 8),
}


def deflate(raw: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(raw) + packer.flush()


def with_body(good: bytes, codec: int, body: bytes) -> bytes:
    head = bytearray(good[:BODY_AT])
    head[15] = codec
    return reseal(bytes(head) + body + bytes(4))


def bit_flips(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for bit in rng.sample(range(8 * len(data)), rng.randint(1, 8)):
        data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def truncation(rng: random.Random, good: bytes) -> bytes:
    return good[: rng.randrange(len(good))]


def sealed_truncation(rng: random.Random, good: bytes) -> bytes:
    return reseal(good[: rng.randrange(4, len(good) - 4)] + bytes(4))


def extension(rng: random.Random, good: bytes) -> bytes:
    return good + rng.randbytes(rng.randint(1, 400))


def sealed_extension(rng: random.Random, good: bytes) -> bytes:
    return reseal(good[:-4] + rng.randbytes(rng.randint(1, 100)) + bytes(4))


def sealed_field(rng: random.Random, good: bytes) -> bytes:
    at, size = FIELDS[rng.choice(sorted(FIELDS))]
    data = bytearray(good)
    while data == good:
        data[at : at + size] = rng.randbytes(size)
    return reseal(bytes(data))


def sealed_length(rng: random.Random, good: bytes) -> bytes:
    """A header length that points into the header, into the body or beyond the message."""
    data = bytearray(good)
    data[5] = rng.choice([n for n in range(256) if n != BODY_AT])
    return reseal(bytes(data))


def bad_entropy(rng: random.Random, good: bytes) -> bytes:
    value = rng.choice([float("nan"), float("inf"), -1.0, 1.5, -0.001])
    return reseal(good[: BODY_AT - 4] + struct.pack("<f", value) + good[BODY_AT:])


def bad_label(rng: random.Random, good: bytes) -> bytes:
    label = struct.pack("<H", rng.randint(3, 65535))
    return reseal(good[: BODY_AT - 6] + label + good[BODY_AT - 4 :])


def bomb(rng: random.Random, good: bytes) -> bytes:
    """From one byte too many to 250 kB out of a few hundred bytes."""
    size = FEATURES.nbytes + rng.choice([1, 2, 100, 10_000, 200_000, rng.randint(3, 250_000)])
    return with_body(good, 1, deflate(bytes(size)))


def huge_bomb(rng: random.Random, good: bytes) -> bytes:
    """40 MB out of 40 kB, refused for its size before anything is unpacked."""
    return with_body(good, 1, HUGE + rng.randbytes(rng.randint(0, 3)))


def short_body(rng: random.Random, good: bytes) -> bytes:
    raw = rng.randbytes(rng.randrange(FEATURES.nbytes))
    return with_body(good, 0, raw) if rng.random() < 0.5 else with_body(good, 1, deflate(raw))


def broken_deflate(rng: random.Random, good: bytes) -> bytes:
    """Block type 3 does not exist (RFC 1951, section 3.2.3)."""
    return with_body(good, 1, bytes([rng.randrange(256) | 0b110]) + rng.randbytes(30))


def wrong_shape(rng: random.Random, good: bytes) -> bytes:
    sides = [0, 1, 2, 3, 4, 5, 48, 255, 65535]
    shape = FEATURES.shape
    while shape == FEATURES.shape:
        shape = tuple(rng.choice(sides) for _ in range(3))
    return reseal(good[:19] + struct.pack("<3H", *shape) + good[25:])


def consistent_wrong_shape(rng: random.Random, _good: bytes) -> bytes:
    """Well-formed in itself, only not what the manifest says."""
    shape = FEATURES.shape
    while shape == FEATURES.shape:
        shape = tuple(rng.randint(1, 6) for _ in range(3))
    dtype = rng.choice(["int8", "uint8", "int32"])
    spec = TensorSpec("features", shape, "NCHW", dtype, FEATURES.scale, FEATURES.zero_point)
    return message(model=MODEL_ID[0], spec=spec, features=np.zeros(shape, dtype))


def wrong_dtype(rng: random.Random, good: bytes) -> bytes:
    return reseal(good[:16] + bytes([rng.randint(1, 255)]) + good[17:])


def other_version(rng: random.Random, good: bytes) -> bytes:
    return reseal(good[:4] + bytes([rng.choice([0, *range(2, 256)])]) + good[5:])


def noise(rng: random.Random, _good: bytes) -> bytes:
    return rng.randbytes(rng.randint(0, 500))


def sealed_noise(rng: random.Random, _good: bytes) -> bytes:
    return reseal(b"EKF1" + rng.randbytes(rng.randint(4, 300)))


def another_message(rng: random.Random, _good: bytes) -> bytes:
    return ResultMessage(MODEL_ID[0], rng.randbytes(8), probabilities=(0.5, 0.5)).encode()


def doubled(_rng: random.Random, good: bytes) -> bytes:
    return good + good


HUGE = deflate(bytes(40_000_000))
MODEL_ID = [b""]
GENERATORS: list[Generator] = [
    bit_flips, truncation, sealed_truncation, extension, sealed_extension, sealed_field,
    sealed_length, bad_entropy, bad_label, bomb, huge_bomb, short_body, broken_deflate,
    wrong_shape, consistent_wrong_shape, wrong_dtype, other_version, noise, sealed_noise,
    another_message, doubled,
]  # fmt: skip


@pytest.fixture(scope="module")
def tails(tmp_path_factory):
    bundle = make_bundle(tmp_path_factory.mktemp("malformed") / "bundle")
    MODEL_ID[0] = bundle.manifest.wire_id
    models = open_models([bundle.root], threads=1)
    yield models
    models.close()


def good_message(rng: random.Random, index: int) -> bytes:
    """Alternately packed (flat features) and raw (noise), so that both codecs get broken."""
    if index % 2:
        values = np.frombuffer(rng.randbytes(FEATURES.size), np.int8).reshape(FEATURES.shape)
        return message(index, model=MODEL_ID[0], features=values)
    return message(index, model=MODEL_ID[0])


def broken(count: int, seed: int) -> list[tuple[int, str, bytes]]:
    """Return (index, kind, bytes), every kind equally often."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        generate = GENERATORS[index % len(GENERATORS)]
        payload = generate(rng, good_message(rng, index))
        made.append((index, generate.__name__, payload))
    return made


def test_valid_messages_are_all_accepted(tails):
    """Else the test below would prove nothing."""
    rng = random.Random(1)
    validator = Validator(tails)
    for index in range(100):
        assert not isinstance(
            validator.validate(delivery(good_message(rng, index), index)), Refused
        )


def test_no_malformed_message_of_20000_is_accepted(tails):
    validator = Validator(tails)
    kinds: Counter[str] = Counter()
    for index, kind, payload in broken(20_000, seed=2):
        verdict = validator.validate(delivery(payload, index))
        assert isinstance(verdict, Refused), f"{kind} {index}: {payload.hex()}"
        assert verdict.refusal is not Refusal.NONE
        kinds[kind] += 1
    assert len(kinds) == len(GENERATORS)
    assert min(kinds.values()) > 900


def test_decompression_bomb_stops_at_the_announced_size(tails):
    rng = random.Random(3)
    payload = with_body(good_message(rng, 0), 1, deflate(bytes(200_000)))
    assert len(payload) <= Validator(tails).max_payload
    tracemalloc.start()
    verdict = Validator(tails).validate(delivery(payload))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(verdict, Refused)
    assert peak < 100_000


def test_worker_counts_each_of_10500_malformed_messages_and_works_on(tails):
    every = 500
    with bench(tails) as b:
        bad = broken(10_500, seed=4)
        for index, _kind, payload in bad:
            b.send(payload, index)
            if index % every == 0:
                b.send(message(index, model=MODEL_ID[0]), index)
                while (result := b.result()).refusal is not Refusal.NONE:
                    pass
                assert result.sample == sample_id(index)
    good = len(range(0, len(bad), every))
    assert b.error is None
    assert b.clean
    counters = b.worker.counters
    assert sum(counters.refused.values()) == len(bad)
    assert counters.admitted == counters.inferred == good
    assert counters.received == len(bad) + good
    assert len(b.link.acked) == len(bad) + good
    assert len(counters.refused) >= 12


@pytest.mark.parametrize(
    "changes",
    [
        {"response_topic": None},
        {"response_topic": "edgekit/1/cam-2/results"},
        {"response_topic": "edgekit/1/cam-1/desired"},
        {"correlation": None},
        {"correlation": b""},
        {"correlation": b"\0" * 9},
        {"qos": 0},
        {"topic": "edgekit/1/+/features"},
        {"topic": "edgekit/1//features"},
        {"topic": "edgekit/1/a b/features"},
        {"topic": ""},
    ],
)
def test_invalid_properties_are_refused(tails, changes):
    payload = good_message(random.Random(5), 0)
    assert isinstance(Validator(tails).validate(delivery(payload, **changes)), Refused)


@pytest.mark.broker
def test_malformed_messages_through_a_real_broker_are_refused(tails, mosquitto):
    workers = MqttLink(
        mosquitto.address, "worker", [Subscription(shared_filter("p"))], receive_maximum=32
    )
    worker = Worker(workers, tails, WorkerSettings(wait_s=0.0, tick_s=0.05))
    thread = threading.Thread(target=worker.run)
    topics = Topics("cam-1")
    device = MqttLink(mosquitto.address, "cam-1", [Subscription(topics.results)])
    thread.start()
    device.start()
    try:
        assert isinstance(device.events.get(timeout=TIMEOUT), Connected)
        while not worker.vitals.connected:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        bad = broken(420, seed=6)
        answers: Counter[Refusal] = Counter()

        def exchange(payload: bytes, index: int) -> ResultMessage:
            device.publish(
                topics.features,
                payload,
                correlation=sample_id(index),
                response_topic=topics.results,
            )
            while True:
                event = device.events.get(timeout=TIMEOUT)
                if isinstance(event, Delivery):
                    device.ack(event)
                    return ResultMessage.decode(event.payload)

        for index, _kind, payload in bad:
            answers[exchange(payload, index).refusal] += 1
        last = exchange(message(1, model=MODEL_ID[0]), 1)
    finally:
        worker.stop()
        thread.join(TIMEOUT)
        device.stop()
    assert answers[Refusal.NONE] == 0
    assert answers.total() == len(bad) == sum(worker.counters.refused.values())
    assert last.refusal is Refusal.NONE
    assert last.sample == sample_id(1)
