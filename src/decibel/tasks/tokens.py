"""Text as numbers: bytes, or pairs of bytes that were merged because they are frequent (BPE), learned from the text."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..core._files import atomic_write
from .data.cache import cache_folder

BYTES = 256
SAMPLE = 2_000_000  # bytes of text that a vocabulary is learned from
WORDS = re.compile(rb"\s?[A-Za-z\x80-\xff]+|\s?[0-9]{1,3}|\s+|\s?[^A-Za-z0-9\s\x80-\xff]+")
Pair = tuple[int, int]


class Bytes:
    """Every byte is a token."""

    size = BYTES

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Iterable[int]) -> bytes:
        return bytes(tokens)


class BPE:
    """Byte-pair encoding: token 256 + k stands for the pair of tokens `merges[k]`, within words."""

    def __init__(self, merges: Sequence[Pair]) -> None:
        self.merges = [(int(a), int(b)) for a, b in merges]
        self._rank = {pair: number for number, pair in enumerate(self.merges)}
        self._word = lru_cache(maxsize=1_000_000)(self._encode_word)

    @property
    def size(self) -> int:
        return BYTES + len(self.merges)

    def encode(self, text: bytes) -> np.ndarray:
        tokens: list[int] = []
        for word in WORDS.findall(text):
            tokens += self._word(word)
        return np.asarray(tokens, np.uint16 if self.size <= 2**16 else np.uint32)

    def decode(self, tokens: Iterable[int]) -> bytes:
        pieces = [bytes([b]) for b in range(BYTES)]
        for a, b in self.merges:
            pieces.append(pieces[a] + pieces[b])
        return b"".join(pieces[token] for token in tokens)

    def _encode_word(self, word: bytes) -> list[int]:
        tokens, last = list(word), len(self.merges)
        while len(tokens) > 1:
            rank, place = min((self._rank.get(pair, last), i) for i, pair in enumerate(pairwise(tokens)))
            if rank == last:
                break
            tokens[place : place + 2] = [BYTES + rank]
        return tokens

    @classmethod
    def learn(cls, text: bytes, size: int) -> BPE:
        """The vocabulary of that size: the most frequent pair of neighbours is merged, again and again."""
        words = Counter(WORDS.findall(text))
        split, counts = [list(word) for word in words], list(words.values())
        total: Counter[Pair] = Counter()
        positions: defaultdict[Pair, set[int]] = defaultdict(set)
        for number, (tokens, count) in enumerate(zip(split, counts, strict=True)):
            for pair in pairwise(tokens):
                total[pair] += count
                positions[pair].add(number)
        heap = [(-count, pair) for pair, count in total.items()]
        heapq.heapify(heap)
        merges: list[Pair] = []
        while heap and len(merges) < size - BYTES:
            count, pair = heapq.heappop(heap)
            if -count != total[pair]:  # counted again since
                continue
            if -count < 2:
                break
            merges.append(pair)
            changed: set[Pair] = set()
            for number in positions.pop(pair):
                before, after = split[number], _merged(split[number], pair, BYTES + len(merges) - 1)
                for tokens, sign in ((before, -counts[number]), (after, counts[number])):
                    for other in pairwise(tokens):
                        total[other] += sign
                        changed.add(other)
                for other in pairwise(after):
                    positions[other].add(number)
                split[number] = after
            total.pop(pair, None)
            for other in changed - {pair}:
                if total[other] > 0:
                    heapq.heappush(heap, (-total[other], other))
        return cls(merges)


def _merged(tokens: list[int], pair: Pair, new: int) -> list[int]:
    out: list[int] = []
    i = 0
    while i < len(tokens):
        if tokens[i] == pair[0] and tokens[i + 1 : i + 2] == [pair[1]]:
            out.append(new)
            i += 2
        else:
            out.append(tokens[i])
            i += 1
    return out


def tokenizer(kind: str, texts: Sequence[bytes], vocabulary: int) -> Bytes | BPE:
    """Of that kind; the pairs of `"bpe"` are learned from the beginning of each text, once, and kept in the cache."""
    if kind == "bytes":
        return Bytes()
    if kind != "bpe":
        raise ValueError(f"tokens={kind!r} is not known: choose 'bytes' or 'bpe'.")
    if not BYTES < vocabulary <= 2**20:
        raise ValueError(f"vocabulary={vocabulary} must lie above {BYTES}: give one such as 2048.")
    sample = b"\n\n".join(text[: SAMPLE // len(texts)] for text in texts)
    path = cache_folder() / "bpe" / f"{hashlib.sha256(sample).hexdigest()[:16]}-{vocabulary}.json"
    if path.exists():
        return BPE(json.loads(path.read_text()))
    learned = BPE.learn(sample, vocabulary)
    atomic_write(path, json.dumps(learned.merges))
    return learned
