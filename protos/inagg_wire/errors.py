"""Every way in which a datagram can be wrong, by name.

A :class:`Reason` is at once the name of a drop counter, the label of a metric and the number in an error
notice, so host, switch and operator speak of the same thing. The order of the members is the order in which
an implementation checks them: a datagram that is wrong in two ways is counted once, under the first. (The generation is
checked once, before the op: 39 and 42 exclude each other.)
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Reason why a datagram was dropped. The value is what an error notice carries; never renumber one. Members stand
    in the order in which they are checked."""

    # What the bytes alone show (header.parse). 1..31.
    TOO_SHORT = 1  # fewer bytes than a header
    BAD_MAGIC = 2  # not an inagg datagram
    BAD_VERSION = 3  # a version of the protocol that this code does not speak
    BAD_KIND = 4  # neither contribution, result, error notice nor acknowledgement
    BAD_OP = 5  # neither SUM nor MAX
    BAD_FORMAT = 6  # no such encoding, or one that this kind and op cannot carry
    BAD_LANES = 7  # zero, or not a multiple of 8 (in a notice or an acknowledgement: not zero)
    BAD_OWNER = 8  # set with MAX, beyond OWNER_MAX, not set in an acknowledgement; in a notice: no reason we know
    BAD_JOB = 9  # 0
    BAD_TOKEN = 10  # 0
    BAD_SLOT = 11  # beyond SLOT_COUNT_MAX
    BAD_GENERATION = 12  # 0, or beyond GENERATION_MAX
    TRUNCATED = 13  # fewer payload bytes than format and lanes say
    TRAILING_BYTES = 14  # more payload bytes than format and lanes say

    # What only the switch can tell, from the binding of the job. 32..63.
    WRONG_KIND = 32  # no contribution was sent to a switch
    UNKNOWN_JOB = 33  # no such job on this switch (it ended, or the switch restarted)
    UNKNOWN_SOURCE = 34  # the source address is no worker of the job
    WRONG_TOKEN = 35  # a token of another epoch
    WRONG_FORMAT = 36  # not the encoding that the job was admitted with
    WRONG_LANES = 37  # not the lane count that the job was admitted with
    SLOT_OUTSIDE_LEASE = 38  # a slot that the job does not lease
    WRONG_OWNER = 43  # the result would go to a rank that the job does not have, or this switch sends none to one alone
    STALE = 39  # a generation that the slot has left behind
    WRONG_OP = 40  # another op than that of the contributions that the slot holds: the ranks disagree
    DUPLICATE = 41  # this worker's contribution is in the sum already, which is not complete yet
    OUTSIDE_WINDOW = 42  # a generation after the one that the slot serves, and not its turn yet: see `slots`

    @property
    def label(self) -> str:
        """The name as counters, metrics and messages spell it, for example ``wrong_token``."""
        return self.name.lower()


NOTICED = frozenset(
    {
        Reason.WRONG_TOKEN,
        Reason.WRONG_FORMAT,
        Reason.WRONG_LANES,
        Reason.SLOT_OUTSIDE_LEASE,
        Reason.WRONG_OP,
        Reason.OUTSIDE_WINDOW,
    }
)
"""Reasons for which a switch tells the sender by an error notice.

Only a bound source of a known job ever gets one (those reasons are checked after the source), so a stranger
cannot make a switch send anything. Stale and duplicate are what loss looks like, and get none; nor does an owner, as a
notice has the reason in its place, so that a worker could not tell whether it was damaged on its way.
"""


class WireError(ValueError):
    """A datagram that must not be used; ``reason`` names why, the text says what was found."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.label}: {detail}")
        self.reason = reason


class AdmissionError(ValueError):
    """A job that cannot be run as asked; the text says what would fit."""
