"""What strangers say to a port that speaks HTTP, whichever it is. No test lives here."""

STRANGE = {
    "nothing": b"",
    "garbage": bytes(range(256)) * 100,
    "one long line": b"GET /" + b"a" * 100_000,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
}
