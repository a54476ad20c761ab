"""Who is not invited, and knocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decibel.silo.protocol._frames import Beat, Hello, write

from .host import PROBLEM
from .papers import papers
from .streams import NONCE

if TYPE_CHECKING:
    from .world import World

OUTSIDE = 1000  # machines from here on are of nobody


def visit(world: World, site: int, who: str) -> None:
    """One visit: shows a certificate, says HELLO, and goes on as if it had been let in."""
    host, made = world.hosts[site], papers()
    if host.listener is None:
        return
    end, there = world.network.connect(OUTSIDE, site)
    others = [other for other in range(world.schedule.sites) if other != site]
    outside = [other for other in others if other not in world.neighbours[site]] or others
    shown = {
        "another authority": made.forged[others[0]],
        "no neighbour": made.certificates[outside[0] if outside is not others else site],
    }.get(who, made.certificates[others[-1]])
    federation = bytes(32) if who == "another federation" else world.federation.hash
    problem = bytes([1] * 32) if who == "another problem" else PROBLEM
    host.listener.answer(there, shown)
    if who != "no hello":
        end.send(write(Hello(federation, problem, 2**40, NONCE)))
    end.send(write(Beat()))
