"""Writing and reading a message of a silo: our frames of fixed layout against protocol buffers with the same fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from decibel.core._optional import optional
from decibel.silo.protocol._frames import Position, parse, write_data

from .records import record
from .timing import Program, against, in_turns, medians

SIZES = (10_000, 100_000, 1_000_000)
ROUNDS = 300


def measure(turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for size in SIZES:
        note(f"{size} bytes")
        rows.append(compare(size, turns))
    return record("frames", rows, {f"ours ÷ protobuf, {row['bytes']} bytes": row["against"] for row in rows})


def compare(size: int, turns: int) -> dict[str, Any]:
    """Microseconds to write a tensor and read it back, as numbers that can be used in place."""
    message, tensor = _message(), np.random.default_rng(0).normal(size=size // 8)

    def ours() -> np.ndarray:
        return parse(write_data(3, Position(5, 0), tensor)).tensor  # pyright: ignore[reportAttributeAccessIssue]

    def protobuf() -> np.ndarray:
        raw = message(epoch=3, step=5, exchange=0, dtype=2, raw=tensor.tobytes(), shape=tensor.shape)
        found = message.FromString(raw.SerializeToString())
        return np.frombuffer(found.raw).reshape(tuple(found.shape))

    assert np.array_equal(ours(), tensor) and np.array_equal(protobuf(), tensor)
    seconds = in_turns({"ours": often(ours), "protobuf": often(protobuf)}, turns, warm_up=0)
    return {"bytes": size, **medians(seconds, 1e-6 * ROUNDS), "against": against(seconds, "ours", "protobuf")}


def often(once: Program) -> Program:
    def rounds() -> None:
        for _ in range(ROUNDS):
            once()

    return rounds


def _message() -> Any:
    with optional("protobuf", caller="benchmarks/frames.py", extra="bench"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="data.proto", package="benchmark", syntax="proto3")
    made, kinds = file.message_type.add(name="Data"), descriptor_pb2.FieldDescriptorProto
    fields = [("epoch", kinds.TYPE_UINT64), *((name, kinds.TYPE_UINT32) for name in ("step", "exchange", "dtype"))]
    for number, (name, kind) in enumerate([*fields, ("raw", kinds.TYPE_BYTES)], 1):
        made.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    made.field.add(name="shape", number=9, type=kinds.TYPE_UINT32, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("benchmark.Data"))
