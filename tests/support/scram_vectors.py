"""One SCRAM exchange for each mechanism, worked out by the formulas of RFC 5802, section 3, with
nothing but HMAC and a hash. No test lives here.

Of RFC 7677 are the inputs, and what comes out for SHA-256; no RFC prints an exchange for SHA-512.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass

from logins import PASSWORD

USER = "user"
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
ITERATIONS = 4096


@dataclass(frozen=True)
class Exchange:
    """What is kept of the password, and what is said in turns: `first` by the client."""

    mechanism: str
    salted_password: bytes
    stored_key: bytes
    server_key: bytes
    first: str
    answer: str
    final: str
    end: str


def hashed_often(kind, password, salt, iterations):
    """Hi() of the RFC: all of HMAC's results, one of the one before, laid over each other."""
    each = hmac.digest(password, salt + bytes([0, 0, 0, 1]), kind)
    whole = int.from_bytes(each)
    for _ in range(iterations - 1):
        each = hmac.digest(password, each, kind)
        whole ^= int.from_bytes(each)
    return whole.to_bytes(len(each))


def worked_out(mechanism, kind):
    salted = hashed_often(kind, PASSWORD.encode(), SALT, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", kind)
    stored_key = hashlib.new(kind, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", kind)
    bare = f"n={USER},r={CLIENT_NONCE}"
    both = CLIENT_NONCE + SERVER_NONCE
    answer = f"r={both},s={base64.b64encode(SALT).decode()},i={ITERATIONS}"
    without_proof = f"c={base64.b64encode(b'n,,').decode()},r={both}"
    message = f"{bare},{answer},{without_proof}".encode()
    signature = hmac.digest(stored_key, message, kind)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return Exchange(
        mechanism,
        salted,
        stored_key,
        server_key,
        first=f"n,,{bare}",
        answer=answer,
        final=f"{without_proof},p={base64.b64encode(proof).decode()}",
        end=f"v={base64.b64encode(hmac.digest(server_key, message, kind)).decode()}",
    )


EXCHANGES = {
    mechanism: worked_out(mechanism, kind)
    for mechanism, kind in (("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512"))
}
