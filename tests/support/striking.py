"""Ctrl-C at each point in turn where Python looks for signals: after a call, where a function
begins, and where a loop goes round."""

import dis
import sys


class Interrupted(Exception):
    pass


class Striking:
    """A trace function that raises at one of the points, counted from 1."""

    def __init__(self, number, modules, is_exact):
        self._left = number
        self._files = [module.__file__ for module in modules]
        self._is_exact = is_exact
        self._before = {}

    def __call__(self, frame, event, _):
        if event == "call" and self._is_exact:
            self._before.pop(frame.f_back, None)  # what it calls returns without a look
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        before = self._before.get(frame, "")
        if event == "opcode":
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if event == "call" or (event == "opcode" and before.startswith(("CALL", "JUMP_BACKWARD"))):
            self._left -= 1
            if not self._left:
                raise Interrupted
        return self


def struck(number, work, *modules, is_exact=False):
    """Do something, with an interruption at that point of these modules; False if they have fewer.
    `is_exact`: not where a function of Python's has returned to another one, where it is not looked
    for signals."""
    traced = sys.gettrace()
    sys.settrace(Striking(number, modules, is_exact))
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(traced)
    return False
