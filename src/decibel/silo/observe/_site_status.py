"""The status of a site in words: for `decibel silo status`, the line of progress, and the last line of a run."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from decibel.core import JSON, atomic_write, plain

from ..protocol._async_site import AsyncSite
from ..protocol._health import WORTH_TELLING, who_was_missing
from ..protocol._site import Site

ENDED = ("finished", "stopped")
STATUS_FILE = "status.json"  # in a site's folder


def state_and_detail(site: Site, now: float) -> tuple[str, str]:
    """The word for the site's state (one of `STATES`), and a detail such as for whom it waits."""
    health = site.health
    if site.finished:
        return "finished", ""
    if site.closing:
        return "stopped", health.reason
    waits = {name: now - since for name, since in health.awaited.items() if now - since >= WORTH_TELLING}
    refusals = [
        f"{edge.name}: {edge.refusal}"
        for edge in site.edges.values()
        if edge.refusal and not edge.is_open and (not site.running or edge.name in waits)
    ]
    if refusals:
        return "refused", "; ".join(refusals)
    if health.compiling:
        return "compiling", ""
    if waits:
        return "waiting", "for " + ", ".join(f"{name} ({seconds:.0f} s)" for name, seconds in waits.items())
    return ("running" if site.running else "starting"), ""


def status_facts(site: Site) -> dict[str, JSON]:
    """The facts that are written to `status.json`."""
    with site.lock:
        now = site.clock.now()
        word, detail = state_and_detail(site, now)
        rest = {"rest_seconds": site.rest.seconds(now)} if isinstance(site, AsyncSite) else {}
        return rest | {
            "site": site.name,
            "federation": site.federation.name,
            "step": site.next_step if site.finished else site.health.step,
            "steps": site.goal,
            "steps_done": site.steps_done,
            "steps_per_second": round(site.health.rate, 3),
            "state": word,
            "detail": detail,
            "had_finished": site.had_finished,
            "missing": {name: round(seconds, 1) for name, seconds in site.health.missing.items()},
            "neighbours": {edge.name: edge.status(now) for edge in site.edges.values()},
            "decibel": site.build.decibel,
            "jax": site.build.jax,
        }


def progress_line(site: Site) -> str:
    """One line of the log, every `progress_every` seconds."""
    facts = status_facts(site)
    connected = sum(edge.stream is not None for edge in site.edges.values())
    line = f"step {facts['step']} of {facts['steps']}, {site.health.rate:.3g} steps/s, {connected} of "
    line += f"{len(site.edges)} neighbours connected"
    return line if facts["state"] == "running" else f"{line}, {facts['state']} {facts['detail']}".rstrip()


def write_status(path: Path, facts: dict[str, JSON]) -> None:
    """Writes the file for `decibel silo status`; errors of the disk are raised."""
    atomic_write(path, json.dumps(facts | {"time": time.time()}), durable=False)


def write_state(path: Path, name: str, word: str, detail: str = "") -> None:
    """Records a state before there is a site, or if there will be none. Errors of the disk are reported when they
    matter.
    """
    with suppress(OSError):
        write_status(
            path, {"site": name, "step": 0, "state": word, "detail": plain(detail), "missing": {}, "neighbours": {}}
        )


def closing_line(site: Site) -> str:
    """The last line of a run: where it ended, why, and who was missing for how long."""
    health = site.health
    first = f"finished {site.steps_done} steps" if site.finished else f"stopped at step {health.step}"
    if site.finished and site.steps_done < site.next_step:
        first = f"finished at step {site.next_step}, with {site.steps_done} steps done here and the rest by others"
    first += f", without {', '.join(health.without)}" if health.without and not site.had_finished else ""
    first += f", since {health.reason}" if health.reason else ""
    late = {edge.name: edge.waited_seconds for edge in site.edges.values()}
    waits = [f"{seconds:.0f} s for {name}" for name, seconds in late.items() if seconds >= WORTH_TELLING]
    absent = who_was_missing(health.missing) or "nobody was missing"
    return "; ".join([first, absent, *([f"waited {', '.join(waits)}"] if waits else [])])
