"""Checks before the first step that all processes run the same problem.

Processes that disagree would wait for each other forever, or compute something wrong. What must agree is exchanged in
slots of fixed size, so one small gather is enough, and every process reads the same sentence.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import jax
import numpy as np
from jax.experimental import multihost_utils

from ...core._json import JSON

# facts, bytes of digest and bytes in all of one slot
SLOTS = 64
DIGEST = 16
WIDTH = 96
FIX = "start every process with the same script, settings and packages."


def validate_processes_agree(fingerprint: Mapping[str, JSON], **more: JSON) -> None:
    """Raises ValueError on every process, naming the processes and settings that differ from those of process 0."""
    if jax.process_count() == 1:
        return
    validate_equal_devices([device.process_index for device in jax.devices()])
    facts_here = facts(fingerprint, **more)
    everyone = multihost_utils.process_allgather(encode(facts_here))
    compare(list(facts_here), np.asarray(everyone))


def facts(fingerprint: Mapping[str, JSON], **more: JSON) -> dict[str, JSON]:
    """What must agree, each part under a readable name."""
    described: dict[str, JSON] = {"decibel": version("decibel-opt"), "python": platform.python_version()}
    described |= {package: version(package) for package in ("jax", "jaxlib")} | {
        "x64": jax.config.read("jax_enable_x64")
    }
    for name, value in {**fingerprint, **more}.items():
        parts = value if isinstance(value, Mapping) else {"": value}
        described |= {f"{name} {part}".strip(): digest for part, digest in parts.items()}
    return described


def validate_equal_devices(owners: Sequence[int]) -> None:
    """`owners` are the processes of all devices, which every process knows without asking."""
    counts = Counter(owners)
    for process in sorted(counts):
        if counts[process] != counts[0]:
            raise ValueError(
                f"process {process} has {counts[process]} devices where process 0 has {counts[0]}: give every process "
                "the same number."
            )


def encode(facts: Mapping[str, JSON]) -> np.ndarray:
    """(slots, bytes): a digest of each fact and the beginning of its text."""
    slots = np.zeros((SLOTS, WIDTH), np.uint8)
    for slot, (name, value) in zip(slots, facts.items(), strict=False):
        text = f"{value}".encode()
        content = hashlib.sha256(f"{name}=".encode() + text).digest()[:DIGEST]
        content += text[: WIDTH - DIGEST]
        slot[: len(content)] = np.frombuffer(content, np.uint8)
    return slots


def compare(names: Sequence[str], everyone: np.ndarray) -> None:
    """`everyone` is (processes, slots, bytes) as each encoded its own."""
    first = everyone[0]
    for process, described in enumerate(everyone):
        different = np.flatnonzero((described[:, :DIGEST] != first[:, :DIGEST]).any(1))
        if different.size:
            named = [
                f"{names[slot] if slot < len(names) else f'fact {slot}'} {_text(described[slot])} where process 0 has "
                f"{_text(first[slot])}"
                for slot in different[:3]
            ]
            raise ValueError(f"process {process} has {', and '.join(named)}: {FIX}")


def _text(slot: np.ndarray) -> str:
    text = bytes(slot[DIGEST:]).rstrip(b"\0").decode(errors="ignore") or "nothing"
    return text if len(text.encode()) < WIDTH - DIGEST - 4 else text + "..."
