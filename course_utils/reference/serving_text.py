"""Text from tokens that arrive one by one: what is certain, as soon as it is. For chapter 28's server."""

import codecs
from collections.abc import Iterator, Sequence

from .generation import stop_stream


class _NoMore(Exception):
    """The pieces so far are used up."""


class TextStream:
    """The text of tokens that come one by one, cut at stop strings: what is certain, as soon as it is.

    Attributes: `stopped`, whether a stop string was found. What chapters 21 and 25 do with
    tokens that one asks for, this does with tokens that arrive.
    """

    def __init__(self, vocab: Sequence[bytes], stops: Sequence[str] = ()) -> None:
        """vocab: the bytes of each token. stops: none of them empty."""
        self.vocab, self.stops, self.stopped = vocab, list(stops), False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, token: int) -> str:
        """The text that this token makes certain, perhaps none."""
        return self._cut(self._decoder.decode(self.vocab[token]))

    def end(self) -> str:
        """What was held back, now that no token follows."""
        text = self._cut(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _cut(self, piece: str) -> str:
        """`stop_stream` over what is held and the piece. It gives out what is certain before it asks on."""
        if self.stopped:
            return ""

        def pieces() -> Iterator[str]:
            yield self._held + piece
            raise _NoMore

        certain = ""
        try:
            for text in stop_stream(pieces(), self.stops):
                certain += text
            self.stopped = True
        except _NoMore:
            self._held = (self._held + piece)[len(certain) :]
        return certain
