"""Members with valid certificates that lie, alone or together: honest sites' code, whose frames are changed when they
are sent. What one of them hears all of them know, and each signs whatever the others ask for."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np

from decibel.network._coded_wave import ASYNC_HEADER_BYTES, HEADER_BYTES
from decibel.silo.protocol._frames import (
    Beat,
    Bye,
    Data,
    Frame,
    Hello,
    Join,
    Malformed,
    Model,
    Position,
    Receipt,
    Roll,
    Skip,
    Stand,
    Statement,
    Want,
    nonces_of,
    parse,
    write,
)

from .node import ENTRIES
from .papers import Signer

MANNERS = (
    "noise",  # any frame may be missing, repeated, old, changed or invented
    "ahead",  # they say that they are at a later step, and go there
    "replay",  # they pass on what others said in an earlier run, earlier in this one, or to others
    "saved",  # they say that they have saved nothing, or everything
)
KEPT = 40  # frames, and statements of a site, that are remembered
REPLAYS = 30  # frames with old statements from each member to each neighbour; more would end its stream


class Conspiracy:
    """All hostile members of a federation. `about` is what statements are about, `message` one of zeros."""

    def __init__(
        self, seed: int, members: Sequence[int], manner: str, sites: int, steps: int, about: bytes, message: np.ndarray
    ) -> None:
        self._chance = random.Random(f"conspiracy {seed}")
        self._members, self._manner = members, manner
        self._sites, self._steps, self._about, self._message = sites, steps, about, message
        self._often = self._chance.choice([0.02, 0.1, 0.4, 1.0])
        self._target = self._chance.choice([steps, steps - 1, self._chance.randrange(1, steps + 1)])
        self._saved = self._chance.choice([(), tuple(range(max(1, steps - 15), steps + 1))])
        self._early = self._chance.random() < 0.5  # whether they say so from the start
        self._sent: list[bytes] = []
        self._heard: dict[int, list[Statement]] = {site: [] for site in range(sites)}
        self._epochs: dict[tuple[int, int], list[int]] = {}  # in which a member has sent to a neighbour
        self._answers: dict[tuple[int, int], list[int]] = {}  # the epochs of JOINED
        self._replayed: dict[tuple[int, int], int] = {}
        self._jumped: set[tuple[int, int, int]] = set()  # who has gone ahead, to whom and in which epoch
        self._earlier = [self._earlier_statement(site) for site in range(sites)]

    def hear(self, frame: Frame) -> None:
        """What a member has received."""
        if isinstance(frame, Roll | Stand):
            for one in frame.statements:
                self._remember(one)

    def _remember(self, one: Statement) -> None:
        known = self._heard.get(one.site)
        if known is not None and all(one.order != other.order for other in known):
            self._heard[one.site] = [*known[-KEPT:], one._replace(certificate=certificate_of(one.site))]

    def lie(self, member: int, neighbour: int, frame: bytes, *, under_way: bool) -> list[bytes]:
        """What a member sends to a neighbour instead of a frame. A run waits at its start for every member, so that one
        which is not heard keeps it from beginning: before it is under way, they say only what is well-formed."""
        found = _parsed(frame)
        if isinstance(found, Hello):
            return [frame]
        if isinstance(found, Model):
            return [write(found._replace(row=found.row + 1.0))]
        if isinstance(found, Data):
            epochs = self._epochs.setdefault((member, neighbour), [])
            epochs += [found.epoch] if found.epoch not in epochs else []
        match self._manner:
            case "ahead":
                return self._ahead(member, neighbour, frame, found, under_way=under_way)
            case "replay":
                return self._replay(member, neighbour, frame, found)
            case "saved" if isinstance(found, Roll | Stand):
                return [write(found._replace(statements=self._with_saved(found.statements)))]
            case "noise" if under_way:
                return self._noise(frame, found)
        return [frame]

    # Statements

    def signed(self, one: Statement) -> Statement:
        """As it is now; a member's only, since nobody else signs it."""
        signature, certificate = Signer(one.site).sign("statement", self._about + one.signed_bytes())
        return one._replace(signature=signature, certificate=certificate)

    def _earlier_statement(self, site: int) -> Statement:
        """What a site said at the end of an earlier run, to those who ran then."""
        nonces = [Statement(other, 1, self._chance.getrandbits(64)) for other in range(self._sites)]
        heard = nonces_of(nonces, self._sites)
        saved = (self._steps,)
        last = Statement(site, 1, nonces[site].nonce, 10**6, self._steps, saved, True, True, heard)
        return self.signed(last)

    def _with_saved(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """The same lie in all of them."""
        return tuple(
            self.signed(one._replace(saved=self._saved)) if one.site in self._members else one for one in statements
        )

    # They are ahead

    def _ahead(self, member: int, neighbour: int, frame: bytes, found: Frame | None, *, under_way: bool) -> list[bytes]:
        """What all members say of themselves is the same lie. One that has jumped sends one more message."""
        if isinstance(found, Roll | Stand) and (under_way or self._early):
            return [write(found._replace(statements=tuple(self._far(one) for one in found.statements)))]
        if not isinstance(found, Data) or not under_way or found.at.step >= self._target:
            return [frame]
        if not found.epoch:
            return [write(found._replace(at=found.at._replace(step=min(self._target + found.at.step, self._steps))))]
        key = member, neighbour, found.epoch
        if key in self._jumped:
            return []
        self._jumped.add(key)
        step = min(self._target, self._steps - 1)
        ahead = Data(found.epoch, Position(step, 0), found.tensor)
        return [write(Skip(step)), write(ahead)]

    def _far(self, one: Statement) -> Statement:
        if one.site not in self._members:
            return one
        return self.signed(one._replace(step=max(one.step, self._target), running=True, done=True))

    # They repeat

    def _replay(self, member: int, neighbour: int, frame: bytes, found: Frame | None) -> list[bytes]:
        """Beside what an honest member says. A message is sent in an earlier conversation."""
        if isinstance(found, Join) and found.answer:
            earlier = self._answers.setdefault((member, neighbour), [found.new_epoch ^ 1])
            earlier.append(found.new_epoch)
            return [write(found._replace(new_epoch=self._chance.choice(earlier))), frame]
        if isinstance(found, Data):
            epochs = self._epochs[member, neighbour]
            if found.epoch and self._chance.random() < self._often:
                other = self._chance.choice([*epochs, found.epoch ^ 1])
                return [write(found._replace(epoch=other))]
            return [frame]
        count = self._replayed.get((member, neighbour), 0)
        if count >= REPLAYS or self._chance.random() < 0.5:
            return [frame]
        self._replayed[member, neighbour] = count + 1
        old = [self._chance.choice([*self._heard[one.site], one]) for one in self._earlier]
        others = tuple(one for one in old if one.site not in (member, neighbour))
        last = tuple(one for one in self._earlier if one.site not in (member, neighbour))
        said = self._chance.choice([Stand(others), Stand(last), Roll(True, last), Roll(True, others)])
        return [frame, write(said)]

    # Anything

    def _noise(self, frame: bytes, found: Frame | None) -> list[bytes]:
        self._sent = [*self._sent[-KEPT:], frame]
        if self._chance.random() >= self._often:
            return [frame]
        lies = [
            self._drop,
            self._twice,
            self._old,
            self._bytes,
            self._flip,
            self._forge,
            self._forge,
            self._flood,
            self._shout,
        ]
        return self._chance.choice(lies)(frame, found)

    def _drop(self, frame: bytes, found: Frame | None) -> list[bytes]:
        return []

    def _twice(self, frame: bytes, found: Frame | None) -> list[bytes]:
        return [frame, frame]

    def _old(self, frame: bytes, found: Frame | None) -> list[bytes]:
        return [self._chance.choice(self._sent), frame]

    def _bytes(self, frame: bytes, found: Frame | None) -> list[bytes]:
        return [frame, self._chance.randbytes(self._chance.randrange(60))]

    def _flip(self, frame: bytes, found: Frame | None) -> list[bytes]:
        changed = bytearray(frame)
        changed[self._chance.randrange(len(changed))] ^= 1 << self._chance.randrange(8)
        return [bytes(changed)]

    def _flood(self, frame: bytes, found: Frame | None) -> list[bytes]:
        return [write(Beat())] * self._chance.choice([3, 300])

    def _shout(self, frame: bytes, found: Frame | None) -> list[bytes]:
        """A message with large numbers; a code begins with a float."""
        if not isinstance(found, Data):
            return [frame]
        tensor = found.tensor.copy()
        if tensor.dtype == np.uint8:
            tensor[HEADER_BYTES + ASYNC_HEADER_BYTES : HEADER_BYTES + ASYNC_HEADER_BYTES + 4] = np.array(
                [1e6], np.float32
            ).view(np.uint8)
        else:
            tensor[:ENTRIES] = 1e6
        return [write(found._replace(tensor=tensor))]

    def _forge(self, frame: bytes, found: Frame | None) -> list[bytes]:
        """A frame with fields that nobody should believe."""
        try:
            return [frame, write(self._forged(found))]
        except (struct.error, OverflowError, ValueError):
            return [frame]  # no such frame can be written

    def _number(self) -> int:
        chance = self._chance
        return chance.choice([0, 1, chance.randrange(self._steps + 1), self._steps, self._steps + 1, 2**30, 2**31 - 1])

    def _forged(self, found: Frame | None) -> Frame:
        chance = self._chance
        at = Position(self._number(), chance.choice([-1, 0, 0, 1]))
        first = at._replace(exchange=max(0, at.exchange))
        epochs = [0, 1, 2**64 - 1]
        epochs += [found.epoch] * 3 if isinstance(found, Data | Join) else []
        statements = found.statements if isinstance(found, Roll | Stand) else ()
        statements = tuple(self._changed(one) for one in statements)
        epoch = chance.choice(epochs)
        rows = self._message.copy()
        rows[: chance.randrange(len(rows) + 1)] = chance.choice([0, 100, np.nan if rows.dtype.kind == "f" else 255])
        rows = rows[: chance.choice([len(rows)] * 3 + [2])]
        return chance.choice(
            [
                Join(epoch, chance.choice(epochs), self._coin(), self._coin(), at.step, at, self._coin()),
                Data(epoch, first, rows),
                Receipt(first),
                Skip(at.step),
                Bye(chance.choice(["finished", "left", "aside"])),
                Roll(self._coin(), statements),
                Stand(statements),
                Want(),
                Model(at.step, rows),
            ]
        )

    def _coin(self) -> bool:
        return self._chance.random() < 0.5

    def _changed(self, one: Statement) -> Statement:
        """Anybody's with another step or other checkpoints; a member signs it."""
        newer = one.incarnation + self._chance.randrange(2)
        changed = one._replace(step=self._number(), saved=(self._number(),), incarnation=newer, serial=one.serial + 1)
        return self.signed(changed) if one.site in self._members and self._coin() else changed


class Accomplice:
    """Watches a hostile member: nothing need hold of it, and what it hears all of them know."""

    def __init__(self, conspiracy: Conspiracy) -> None:
        self._conspiracy = conspiracy

    def heard(self, host: object, edge: object, frame: Frame, end: object) -> None:
        self._conspiracy.hear(frame)

    def __getattr__(self, name: str):
        return lambda *arguments: None


def certificate_of(site: int) -> bytes:
    return Signer(site).sign("statement", b"")[1]


def _parsed(frame: bytes) -> Frame | None:
    try:
        return parse(frame)
    except Malformed:
        return None
