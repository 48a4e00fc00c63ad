"""Which samples are in flight, and when each is sent again. Pure: time comes in as arguments.

A sample that was sent holds a slot of a small window until its *result* comes. Without one after
T it gives its slot back and waits for another turn, so that a sample nobody can answer never
blocks the rest. T follows the observed round trips; when nothing at all comes back, the cloud is
silent and only single probes go out, further and further apart.

A connection that ends may end because of one message: some brokers drop a client over a message
that they do not accept. What was not acknowledged then is *suspect* and is sent alone until it is
acknowledged; a sample that ends three connections, alone and at once, is the culprit.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["InFlight", "Pace", "Window"]

STRIKES = 3
STRIKE_S = 5.0


@dataclass(frozen=True)
class Pace:
    """How eagerly samples are sent.

    Attributes:
        window: Samples that may await a result at once.
        floor_s: Least wait for a result before sending again.
        cap_s: Longest such wait.
        trips: Round trips that T is taken from.
    """

    window: int = 16
    floor_s: float = 2.0
    cap_s: float = 30.0
    trips: int = 128


@dataclass
class InFlight:
    """All that is known of a sample from its first publish in this run to its outcome.

    Attributes:
        sample: Its id.
        first_sent: When it was first sent in this run.
        sent: When it was last sent.
        due: When it will have waited long enough.
        tries: How often it was sent in this run.
        token: Of the last publish; None once that is acknowledged or void.
        deferred: Somebody received it and had no answer.
        refusals: How often a worker did not know its model.
        suspect: A connection ended before the broker acknowledged it.
        strikes: Connections that ended over it alone.
    """

    sample: bytes
    first_sent: float
    sent: float = 0.0
    due: float = 0.0
    tries: int = 0
    token: int | None = None
    deferred: bool = False
    refusals: int = 0
    suspect: bool = False
    strikes: int = 0


class Window:
    """The samples in flight, and the queues before them.

    Args:
        pace: How eagerly.
        rng: For jitter, which keeps a fleet from resending in step.
    """

    def __init__(self, pace: Pace, rng: random.Random | None = None) -> None:
        self.pace = pace
        self._rng = rng or random.Random()
        self._trips: deque[float] = deque(maxlen=pace.trips)
        self._unanswered = 0
        self._probe_at = 0.0
        self._turn = False
        self.clear()

    def __len__(self) -> int:
        return len(self._in_flight)

    def clear(self) -> None:
        """Forget all samples."""
        # Both queues give up a sample from their middle at once: a device that is offline for days
        # evicts without ever sending, and must not remember each of those.
        self._fresh: OrderedDict[bytes, None] = OrderedDict()
        self._retry: OrderedDict[bytes, None] = OrderedDict()
        self._records: dict[bytes, InFlight] = {}
        self._in_flight: dict[bytes, InFlight] = {}
        self._suspects = 0

    @property
    def waiting(self) -> int:
        """Samples that wait for their turn."""
        return len(self._fresh) + len(self._retry)

    def queue(self, samples: Iterable[bytes]) -> None:
        """Let samples that were never sent wait for their turn."""
        self._fresh.update(dict.fromkeys(samples))

    @property
    def silent(self) -> bool:
        """True when a whole window passed without any result."""
        return self._unanswered >= self.pace.window

    @property
    def timeout_s(self) -> float:
        """T: 3 x p99 of the last round trips, within the pace's bounds."""
        if not self._trips:
            return self.pace.floor_s
        ordered = sorted(self._trips)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        return min(self.pace.cap_s, max(self.pace.floor_s, 3 * p99))

    def next(self, now: float) -> bytes | None:
        """Return the sample to send now, taken from the queue; None when none may go."""
        room = 1 if self.silent else self.pace.window
        if len(self._in_flight) >= room or (self.silent and now < self._probe_at):
            return None
        if self._suspects and self.unacknowledged():
            return None
        # Turns between old and new: neither a backlog nor a stubborn sample starves the other.
        queues = (self._retry, self._fresh) if self._turn else (self._fresh, self._retry)
        for queue in queues:
            if queue:
                self._turn = not self._turn
                return queue.popitem(last=False)[0]
        return None

    def sent(self, sample: bytes, token: int, now: float) -> InFlight:
        """Note that a sample went out."""
        record = self._records.get(sample) or InFlight(sample, now)
        wait = min(self.pace.cap_s, self.timeout_s * 2.0 ** min(record.tries, 16))
        record.sent, record.token = now, token
        record.due = now + wait * self._rng.uniform(1.0, 1.25)
        record.tries += 1
        self._records[sample] = self._in_flight[sample] = record
        return record

    def put_back(self, sample: bytes) -> None:
        """Return a sample that `next` gave and that could not be sent."""
        self._fresh[sample] = None
        self._fresh.move_to_end(sample, last=False)

    def record(self, sample: bytes) -> InFlight | None:
        """Return what is known of a sample; None when it was not sent in this run."""
        return self._records.get(sample)

    def acknowledged(self, token: int) -> InFlight | None:
        """Note a PUBACK; None when the token is not of a sample in flight."""
        for record in self._in_flight.values():
            if record.token == token:
                record.token = None
                self._acquit(record)
                return record
        return None

    def unacknowledged(self) -> list[InFlight]:
        """Return what the broker has not acknowledged, oldest first."""
        return [r for r in self._in_flight.values() if r.token is not None]

    def completed(self, sample: bytes, now: float, *, result: bool) -> float | None:
        """Take out a sample that is done; return its round trip when it was sent in this run.

        Args:
            sample: Its id.
            now: The time.
            result: A worker answered; the cloud is alive, and the round trip counts.
        """
        record = self._records.pop(sample, None)
        if self._in_flight.pop(sample, None) is None:
            self._fresh.pop(sample, None)
            self._retry.pop(sample, None)
        if record is not None:
            self._acquit(record)
        if not result:
            return None
        self._unanswered = 0
        if record is None:
            return None
        trip = now - record.first_sent
        if record.deferred and record.tries > 1:
            return trip  # mostly the time between tries
        # After a resend nobody knows which copy was answered, and an outage is not a round trip:
        # such a one counts for at most T, which lets T grow where the cloud is just slow.
        self._trips.append(trip if record.tries == 1 else min(trip, self.timeout_s))
        return trip

    def deferred(self, sample: bytes, now: float) -> None:
        """Note that whoever got a sample had no answer: the cloud lives, another may have one.

        No backoff, since that is for a silent cloud; jitter, since a broker that takes its workers
        in turn would find the same one again.
        """
        self._unanswered = 0
        record = self._in_flight.get(sample)
        if record is not None:
            record.deferred = True
            record.due = min(record.due, now + self.pace.floor_s * self._rng.uniform(0.5, 1.0))

    def expire(self, now: float) -> int:
        """Move samples that waited long enough back into the queue; return how many."""
        late = [r for r in self._in_flight.values() if r.due <= now]
        for record in late:
            del self._in_flight[record.sample]
            record.token = None
            self._retry[record.sample] = None
            self._unanswered += 1
            if self.silent:
                rounds = min(self._unanswered - self.pace.window, 16)
                self._probe_at = now + min(self.pace.cap_s, self.timeout_s * 2.0**rounds)
        return len(late)

    def lost_connection(self, now: float) -> InFlight | None:
        """Queue again, as suspects, what the broker never acknowledged; return the culprit if any.

        What it did acknowledge keeps its slot and its time: the answer may be on its way.
        """
        lost = self.unacknowledged()
        for record in reversed(lost):
            del self._in_flight[record.sample]
            record.token = None
            self.put_back(record.sample)
            self._suspects += not record.suspect
            record.suspect = True
        if len(lost) == 1 and now - lost[0].sent < STRIKE_S:
            lost[0].strikes += 1
            return lost[0] if lost[0].strikes >= STRIKES else None
        for record in self._records.values():
            record.strikes = 0
        return None

    def reconnected(self) -> None:
        """A new connection: probe at once, whatever the silence before."""
        self._probe_at = 0.0

    def deadline(self) -> float | None:
        """Return when `expire` or `next` will have something to do; None for never."""
        times = [r.due for r in self._in_flight.values()]
        if self.silent and self.waiting and not self._in_flight:
            times.append(self._probe_at)
        return min(times, default=None)

    def _acquit(self, record: InFlight) -> None:
        self._suspects -= record.suspect
        record.suspect, record.strikes = False, 0
