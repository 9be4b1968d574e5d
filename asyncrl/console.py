"""Text on a console: what a policy, a worker or another process wrote is shown as text, whatever control characters
it holds. They would set colours and titles, move the cursor over other lines, or write to the clipboard.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import sys
from typing import TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
"""All but tab and newline: ASCII's and Latin-1's, those that change the direction of text, and lone surrogates."""


def shown(text: str) -> str:
    r"""Return text for a console: colours left out, other control characters as escapes such as `\x1b`, and lines that
    end with CRLF as lines."""
    plain = _COLOUR.sub("", text.replace("\r\n", "\n"))
    return _CONTROL.sub(lambda found: _escaped(ord(found[0])), plain)


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines for the user, by default on standard error: standard output is for results. A console that is gone
    ends nothing."""
    with contextlib.suppress(OSError):
        print(shown(text), file=file or sys.stderr, flush=True)


def escape_logging() -> None:
    """Have warnings that no handler takes, which are all of a process that has set up none, shown as text."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Shown())


def advice_for(error: BaseException) -> str:
    """Return what to do about an error of the system that does not say so itself; "" for any other."""
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.ENAMETOOLONG:
        return "a name has at most 255 bytes, a path 4,095"
    if error.errno == errno.EACCES:
        return "this user may not do that"
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    if error.errno == errno.ENFILE:
        return "this machine has too many files open (fs.file-max)"
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many files are open: a process may have {soft}; raise that before starting asyncrl, with "
        f"ulimit -n {hard if hard > soft else 4 * soft}"
        + ("" if hard > soft else ", for which the hard limit must be raised, too")
    )


def forget_terminal() -> None:
    """Discard further output to a terminal that has hung up: to write there fails."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(stream.fileno()):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


class _Shown(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
