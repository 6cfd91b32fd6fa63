"""What the script `hightide` calls: the command line, and a Ctrl-C while that is still being
imported, which takes a tenth of a second."""

import signal


def main() -> None:
    """Run a command; see `hightide_cli.main.main`."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:  # as an exception it could come to nothing, in some callback of the imports
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hightide_cli.main import main as run

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
