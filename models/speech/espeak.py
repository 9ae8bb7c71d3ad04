"""eSpeak NG through ctypes, as a program: a request on standard input, sound on standard output.

It is a process of its own because eSpeak NG carries state from one utterance into the next (the
place in its table of pitch flutter, which nothing resets), sets the locale of its process, and may
end it. What a fresh process says depends on the request alone. Nothing is imported but the standard
library: it is run by its path, without packages, from the folder that ``espeak-ng-data`` is in.

The request is JSON: ``[library, [[text, voice, speed, pitch], ...]]``. The answer is one line of
JSON, ``{"version": ..., "rate": ..., "counts": [...]}``, and after it the samples of all
utterances, 16 bits each in the byte order of the machine. Speeds are words a minute, pitches 0 to
99. What goes wrong is said on standard error, and the exit status is 1.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence

# From speak_lib.h, the interface of eSpeak NG.
SYNCHRONOUS = 2
"""Output mode: the callback gets the samples, on this thread and before the call returns."""
DONT_EXIT = 0x8000
"""Report missing data instead of ending the process."""
UTF8 = 1
CHARACTERS = 1
"""What the position is counted in at which speaking begins."""
RATE, PITCH = 1, 3
FOLDER = b"."
Utterance = tuple[str, str, int, int]
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


def speak(library: str, utterances: Sequence[Utterance]) -> tuple[str, int, list[bytes]]:
    """The version, samples a second, and the sound of each utterance, 16 bits a sample.

    The working directory must hold ``espeak-ng-data``. Ends the process, saying why, where the
    library does not load or cannot read that, or refuses a voice, a value or a text.
    """
    try:
        espeak = ctypes.CDLL(library)
    except OSError as error:
        sys.exit(f"{library}: cannot be loaded ({error})")
    espeak.espeak_Info.restype = ctypes.c_char_p
    espeak.espeak_Synth.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint,
        ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    rate = espeak.espeak_Initialize(SYNCHRONOUS, 0, FOLDER, DONT_EXIT)
    if rate <= 0:
        sys.exit(f"{library}: cannot read its data, espeak-ng-data")
    version = espeak.espeak_Info(None)
    parts: list[bytes] = []

    def hear(samples: ctypes._Pointer[ctypes.c_short], count: int, events: int | None) -> int:
        if samples:
            parts.append(ctypes.string_at(samples, 2 * count))
        return 0

    # Noise of breath, as some voices have it, otherwise begins where the time of day says.
    espeak.espeak_ng_SetRandSeed(ctypes.c_long(1))
    callback = CALLBACK(hear)  # must live as long as eSpeak may call it
    espeak.espeak_SetSynthCallback(callback)
    sounds = []
    for text, voice, speed, pitch in utterances:
        data = text.encode() + b"\0"
        if (
            espeak.espeak_SetVoiceByName(voice.encode())
            or espeak.espeak_SetParameter(RATE, speed, 0)
            or espeak.espeak_SetParameter(PITCH, pitch, 0)
            or espeak.espeak_Synth(data, len(data), 0, CHARACTERS, 0, UTF8, None, None)
        ):
            sys.exit(f"{library}: refuses to say {text!r} as {voice}, {speed}, {pitch}")
        sounds.append(b"".join(parts))
        parts.clear()
    return version.decode(), rate, sounds


def main() -> None:
    """Answer the one request on standard input."""
    library, utterances = json.load(sys.stdin)
    version, rate, sounds = speak(library, utterances)
    head = {"version": version, "rate": rate, "counts": [len(sound) // 2 for sound in sounds]}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + b"".join(sounds))


if __name__ == "__main__":
    main()
