from __future__ import annotations

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edge_kit.link.properties import PublishProperties

GIVEN = {
    "expiry_s": ("MessageExpiryInterval", 3600),
    "content_type": ("ContentType", "application/vnd.edgekit.v1"),
    "response_topic": ("ResponseTopic", "edgekit/1/cåm/results"),
    "correlation": ("CorrelationData", bytes(range(8))),
}


@pytest.mark.parametrize(
    "names", [[], ["expiry_s"], ["correlation"], ["response_topic", "correlation"], list(GIVEN)]
)
def test_packed_form_is_that_of_paho(names):
    theirs = Properties(PacketTypes.PUBLISH)
    for name in names:
        setattr(theirs, *GIVEN[name])
    ours = PublishProperties(**{name: GIVEN[name][1] for name in names})
    assert ours.pack() == theirs.pack()


def test_long_topic_takes_a_longer_length():
    theirs = Properties(PacketTypes.PUBLISH)
    theirs.ResponseTopic = "t" * 300
    ours = PublishProperties(response_topic="t" * 300)
    assert ours.pack() == theirs.pack()
    back = Properties(PacketTypes.PUBLISH)
    back.unpack(ours.pack())
    assert back.ResponseTopic == "t" * 300
