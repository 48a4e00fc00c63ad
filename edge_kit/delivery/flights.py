"""Which samples are under way, and when each is sent again. Pure: time comes in as arguments.

A sample that was sent holds a slot of a small window until its *result* comes. Without one after
T it gives its slot back and waits for another turn, so that a sample nobody can answer never
blocks the rest. T follows the observed round trips; when nothing at all comes back, the cloud is
silent and only single probes go out, further and further apart.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Flight", "Flights", "Pace"]


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
class Flight:
    """One sample that was sent.

    Attributes:
        sample: Its id.
        first_sent: When it was first sent in this run.
        sent: When it was last sent.
        due: When it will have waited long enough.
        tries: How often it was sent in this run.
        token: Of the last publish; None once that is acknowledged or void.
    """

    sample: bytes
    first_sent: float
    sent: float
    due: float
    tries: int
    token: int | None


class Flights:
    """The window, and the queue before it.

    Args:
        pace: How eagerly.
        rng: For jitter, which keeps a fleet from resending in step.
    """

    def __init__(self, pace: Pace, rng: random.Random | None = None) -> None:
        self.pace = pace
        self._rng = rng or random.Random()
        # Both give up a sample from their middle at once: a device that is offline for days evicts
        # without ever sending, and must not remember each of those.
        self._fresh: OrderedDict[bytes, None] = OrderedDict()
        self._again: OrderedDict[bytes, None] = OrderedDict()
        self._up: dict[bytes, Flight] = {}
        self._past: dict[bytes, tuple[float, int]] = {}
        self._passed_on: set[bytes] = set()
        self._trips: deque[float] = deque(maxlen=pace.trips)
        self._unanswered = 0
        self._probe_at = 0.0
        self._turn = False

    def __len__(self) -> int:
        return len(self._up)

    @property
    def waiting(self) -> int:
        """Samples that wait for their turn."""
        return len(self._fresh) + len(self._again)

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
        if len(self._up) >= room or (self.silent and now < self._probe_at):
            return None
        # Turns between old and new: neither a backlog nor a stubborn sample starves the other.
        queues = (self._again, self._fresh) if self._turn else (self._fresh, self._again)
        for queue in queues:
            if queue:
                self._turn = not self._turn
                return queue.popitem(last=False)[0]
        return None

    def sent(self, sample: bytes, token: int, now: float) -> Flight:
        """Note that a sample went out."""
        first, tries = self._past.pop(sample, (now, 0))
        wait = min(self.pace.cap_s, self.timeout_s * 2.0 ** min(tries, 16))
        due = now + wait * self._rng.uniform(1.0, 1.25)
        flight = Flight(sample, first, now, due, tries + 1, token)
        self._up[sample] = flight
        return flight

    def put_back(self, sample: bytes) -> None:
        """Return a sample that `next` gave and that could not be sent."""
        self._fresh[sample] = None
        self._fresh.move_to_end(sample, last=False)

    def acknowledged(self, token: int) -> Flight | None:
        """Note a PUBACK; None when the token is none of ours."""
        for flight in self._up.values():
            if flight.token == token:
                flight.token = None
                return flight
        return None

    def unacknowledged(self) -> Iterator[Flight]:
        """Yield what the broker has not acknowledged."""
        return (f for f in self._up.values() if f.token is not None)

    def landed(self, sample: bytes, now: float, *, result: bool) -> float | None:
        """Take out a sample that is done; return its round trip when it was sent in this run.

        Args:
            sample: Its id.
            now: The time.
            result: A worker answered; the cloud is alive, and the round trip counts.
        """
        flight = self._up.pop(sample, None)
        passed_on = sample in self._passed_on
        self._passed_on.discard(sample)
        past = (flight.first_sent, flight.tries) if flight else self._past.pop(sample, None)
        if flight is None:
            self._fresh.pop(sample, None)
            self._again.pop(sample, None)
        if not result:
            return None
        self._unanswered = 0
        if past is None:
            return None
        trip = now - past[0]
        if passed_on and past[1] > 1:
            return trip  # mostly the time between tries
        # After a resend nobody knows which copy was answered, and an outage is no round trip:
        # such a one counts for at most T, which still lets T grow where the cloud is just slow.
        self._trips.append(trip if past[1] == 1 else min(trip, self.timeout_s))
        return trip

    def passed_on(self, sample: bytes, now: float) -> None:
        """Note that whoever got a sample had no answer: the cloud lives, another may have one.

        No backoff, since that is for a silent cloud; jitter, since a broker that takes its workers
        in turn would find the same one again.
        """
        self._unanswered = 0
        flight = self._up.get(sample)
        if flight is not None:
            self._passed_on.add(sample)
            flight.due = min(flight.due, now + self.pace.floor_s * self._rng.uniform(0.5, 1.0))

    def expire(self, now: float) -> int:
        """Move samples that waited long enough back into the queue; return how many."""
        late = [f for f in self._up.values() if f.due <= now]
        for flight in late:
            del self._up[flight.sample]
            self._past[flight.sample] = (flight.first_sent, flight.tries)
            self._again[flight.sample] = None
            self._unanswered += 1
            if self.silent:
                rounds = min(self._unanswered - self.pace.window, 16)
                self._probe_at = now + min(self.pace.cap_s, self.timeout_s * 2.0**rounds)
        return len(late)

    def lost_connection(self) -> list[Flight]:
        """Queue again what the broker never acknowledged; return it, oldest first.

        What it did acknowledge keeps its slot and its time: the answer may be on its way.
        """
        lost = list(self.unacknowledged())
        for flight in reversed(lost):
            del self._up[flight.sample]
            self._past[flight.sample] = (flight.first_sent, flight.tries)
            self.put_back(flight.sample)
        return lost

    def reconnected(self) -> None:
        """A new connection: probe at once, whatever the silence before."""
        self._probe_at = 0.0

    def deadline(self) -> float | None:
        """Return when `expire` or `next` will have something to do; None for never."""
        times = [f.due for f in self._up.values()]
        if self.silent and self.waiting and not self._up:
            times.append(self._probe_at)
        return min(times, default=None)
