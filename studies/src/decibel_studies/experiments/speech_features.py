"""Log-mel features of speech, in NumPy: framing, a Hann window, the power spectrum and a bank of mel filters."""

from __future__ import annotations

import functools

import numpy as np

WINDOW = 0.025  # seconds
HOP = 0.010
QUIETEST = 1e-10  # power that digital silence is raised to


def cut_frames(waveform: np.ndarray, size: int, hop: int) -> np.ndarray:
    """(frames, size), a frame every `hop` samples; a waveform shorter than a frame is padded with silence."""
    if len(waveform) < size:
        waveform = np.pad(waveform, (0, size - len(waveform)))
    return np.lib.stride_tricks.sliding_window_view(waveform, size)[::hop]


def power_spectrum(frames: np.ndarray, size: int) -> np.ndarray:
    """(frames, size // 2 + 1) |DFT|² of the frames under a Hann window, padded to `size`, halves folded together: by
    Parseval's theorem a row sums to `size` times the energy of its windowed frame."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frames.shape[1]) / frames.shape[1])
    power = np.abs(np.fft.rfft(frames * hann, size)) ** 2
    power[:, 1 : (size + 1) // 2] *= 2  # all but the constant and, for even sizes, the fastest
    return power


def to_mel(hertz: np.ndarray) -> np.ndarray:
    return 2595 * np.log10(1 + np.asarray(hertz) / 700)


def from_mel(mel: np.ndarray) -> np.ndarray:
    return 700 * (10 ** (np.asarray(mel) / 2595) - 1)


def mel_centres(bands: int, rate: int) -> np.ndarray:
    """(bands + 2,) hertz, evenly spaced in mel from zero to half the rate: band b is a triangle from b to b + 2."""
    return from_mel(np.linspace(0.0, to_mel(np.array(rate / 2)), bands + 2))


@functools.cache
def mel_filters(bands: int, size: int, rate: int) -> np.ndarray:
    """(bands, size // 2 + 1) triangles with height one; between the first and the last centre they sum to one."""
    frequency = np.arange(size // 2 + 1) * rate / size
    corner = mel_centres(bands, rate)
    width = np.diff(corner)[:, None]
    rise = (frequency - corner[:-2, None]) / width[:-1]
    fall = (corner[2:, None] - frequency) / width[1:]
    filters = np.maximum(np.minimum(rise, fall), 0)
    filters.flags.writeable = False  # it is kept for the next recording
    return filters


def log_mel(
    waveform: np.ndarray, rate: int, *, bands: int = 40, window: float = WINDOW, hop: float = HOP
) -> np.ndarray:
    """(frames, bands) float32 logarithms of the power in each mel band, `window` and `hop` in seconds."""
    length = round(window * rate)
    size = 2 ** (2 * length - 1).bit_length()  # at least two windows long, for bands narrower than 1 / window
    power = power_spectrum(cut_frames(waveform.astype(np.float64), length, round(hop * rate)), size)
    return np.log(np.maximum(power @ mel_filters(bands, size, rate).T, QUIETEST)).astype(np.float32)


def standardise(features: np.ndarray) -> np.ndarray:
    """Mean zero and variance one of every band over the frames of a recording; a band that never moves is zero."""
    spread = features.std(0)
    return (features - features.mean(0)) / np.where(spread > 1e-6, spread, 1)


def pad(features: list[np.ndarray], frames: int) -> tuple[np.ndarray, np.ndarray]:
    """(recordings, frames, bands) with zeros behind the short ones, and how many frames are real; long ones are cut."""
    lengths = np.array([min(len(each), frames) for each in features], np.int32)
    padded = np.zeros((len(features), frames, features[0].shape[1]), np.float32)
    for row, each, length in zip(padded, features, lengths, strict=True):
        row[:length] = each[:length]
    return padded, lengths
