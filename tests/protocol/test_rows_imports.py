"""Reading rows imports nothing heavy by itself: an import would hold an event loop for too long.

Goal: numpy is used where it is, and never sought on the way. Method: a Python process of its own.
"""

import subprocess
import sys


def test_numpy_is_used_where_it_was_imported_and_never_imported_on_the_way() -> None:
    code = (
        "import sys\n"
        "from hightide.protocol.rows import decode_rows, encode_rows, make_ready\n"
        "n = 1000\n"
        "payload = encode_rows([0] * n, range(n), [None] * n, [b'v'] * n, {})\n"
        "plain = decode_rows(payload, n)\n"
        "assert 'numpy' not in sys.modules\n"
        "assert make_ready()\n"
        "assert decode_rows(payload, n) == plain\n"
        "assert 'hightide.protocol.row_spans_numpy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
