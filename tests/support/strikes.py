"""Programs that Ctrl-C strikes at one place after the other, as a signal ends what runs in them.

No test lives here. `STRIKES` is the beginning of such a program.
"""

STRIKES = """
import signal, sys, trio
from functools import partial


class Strike:
    def __init__(self, events, names):
        self.events, self.names = events, names

    def aim(self, number):
        self.left = number
        sys.settrace(self.trace)

    def trace(self, frame, event, argument):
        if frame.f_code.co_name not in self.names:
            return None
        frame.f_trace_opcodes = "opcode" in self.events
        if event in self.events:
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self.trace

    def at_every_place(self, run, *args, least):
        number = 1
        while True:
            try:
                run(number, *args)
            except KeyboardInterrupt:
                number += 1
            else:
                break  # there is no such place
        assert self.left > 0, "it came to nothing"
        sys.exit(number < least)
"""
"""`run` aims at the place of a number: a line, a call or an instruction of these functions."""
