"""What others wrote is text on a console, whatever control characters it holds."""

import errno
import logging
import os
import signal
import subprocess
import sys

import pytest

from asyncrl.cli import main
from asyncrl.console import advice_for, escape_logging, say, shown

LONG = "x" * 300


@pytest.mark.parametrize(
    ("text", "on_the_console"),
    [
        ("plain ä 漢 🙂\ttab\nline", "plain ä 漢 🙂\ttab\nline"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;TITLE\x07", "\\x1b]0;TITLE\\x07"),
        ("\x1b[2J\x1b[1000D\x1b[K", "\\x1b[2J\\x1b[1000D\\x1b[K"),
        ("\x1b]52;c;cm0gLXJmIH4=\x07", "\\x1b]52;c;cm0gLXJmIH4=\\x07"),
        ("all is well\rFAILED", "all is well\\x0dFAILED"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202eevil\u202c \u2066a\u2069", "\\u202eevil\\u202c \\u2066a\\u2069"),
        ("a\r\nb", "a\nb"),
        ("\x00\x08\x7f\ud800", "\\x00\\x08\\x7f\\ud800"),
    ],
)
def test_control_characters_are_shown_and_do_nothing(text, on_the_console, capsys):
    assert shown(text) == on_the_console
    say(text)
    assert capsys.readouterr().err == on_the_console + "\n"


def test_warnings_that_no_handler_takes_are_text_too():
    code = (
        "import logging; from asyncrl.console import escape_logging; escape_logging(); "
        "logging.getLogger('x').warning('worker %s', '\\x1b]0;T\\x07')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "worker \\x1b]0;T\\x07\n"
    escape_logging()
    assert logging.lastResort.formatter.format(logging.makeLogRecord({"msg": "\x1b[2J"})) == "\\x1b[2J"


def test_too_many_open_files_come_with_what_to_do():
    told = advice_for(OSError(errno.EMFILE, "Too many open files"))
    assert told.startswith("too many files are open: a process may have ") and "ulimit -n " in told
    assert "fs.file-max" in advice_for(OSError(errno.ENFILE, "Too many open files in system"))
    assert advice_for(OSError(errno.EPERM, "no")) == advice_for(ValueError()) == ""
    assert "255 bytes" in advice_for(OSError(errno.ENAMETOOLONG, "File name too long"))


@pytest.mark.parametrize(
    "command",
    [
        ["config", LONG],
        ["eval", LONG],
        ["logs", LONG],
        ["replay", LONG],
        ["runs", "list", LONG],
        ["train", "--resume", LONG],
        ["try", "gridworld_grpo", f"data.train={LONG}", "env.name=math"],
        ["env", "check", LONG],
        ["trace", LONG],
    ],
)
def test_a_name_that_no_file_can_have_is_a_wrong_command_line(command, capsys):
    assert main(command) == 2
    assert "asyncrl: " in capsys.readouterr().err


HANGS_UP = """
import os, signal, sys, time
from asyncrl.signals import end_like_interrupted
end_like_interrupted()
try:
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(60)
except KeyboardInterrupt:
    # A second one changes nothing.
    os.kill(os.getpid(), signal.SIGHUP)
    print("saved")
else:
    print("ignored")
"""


def test_a_terminal_that_hangs_up_is_like_ctrl_c_and_nohup_is_heeded():
    run = {"capture_output": True, "text": True, "timeout": 300}
    assert subprocess.run([sys.executable, "-c", HANGS_UP], **run).stdout == "saved\n"
    ignored = HANGS_UP.replace("time.sleep(60)", "pass").replace("import os", "import os, signal", 1)
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + ignored
    assert subprocess.run([sys.executable, "-c", ignored], **run).stdout == "ignored\n"


def test_a_console_that_is_gone_ends_nothing(tmp_path):
    code = "from asyncrl.console import say; say('x'); say('y', open('/dev/full', 'w')); print('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "on\n"
    assert os.path.exists("/dev/full") and signal.SIGHUP
