"""What a peer of ill will says under TLS 1.3, record by record. No test lives here.

Python's ssl has no word for a change of keys; whoever knows the secret of one direction can encrypt
what it likes (RFC 8446, sections 4.6.3, 5.2 and 7).
"""

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_UPDATE_REQUESTED = bytes([24, 0, 0, 1, 1])
_HANDSHAKE = bytes([22])


def secret_of(key_log, label="CLIENT_TRAFFIC_SECRET_0"):
    """From the file of `SSLContext.keylog_filename`."""
    lines = [line.split() for line in key_log.read_text().splitlines()]
    return bytes.fromhex(next(each[2] for each in lines if each[:1] == [label]))


def key_updates(secret, count):
    """So many changes of keys, each asking for one in return, as the first that this side says."""
    for _ in range(count):
        yield _record(secret, KEY_UPDATE_REQUESTED + _HANDSHAKE)
        secret = _derived(secret, b"traffic upd", 48)


def _record(secret, inner):
    """The first one under this secret, so that its number is zero and the nonce the IV itself."""
    key, iv = _derived(secret, b"key", 32), _derived(secret, b"iv", 12)
    head = bytes([23, 3, 3]) + (len(inner) + 16).to_bytes(2)
    return head + AESGCM(key).encrypt(iv, inner, head)


def _derived(secret, label, size):
    label = b"tls13 " + label
    info = size.to_bytes(2) + bytes([len(label)]) + label + bytes([0])
    return HKDFExpand(SHA384(), size, info).derive(secret)
