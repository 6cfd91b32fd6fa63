"""Passwords as clients tell them to a cluster. No test lives here."""

import base64
import hashlib

from hightide.protocol import login_messages as u

PASSWORD = "pencil"


def wish(user="user", password=PASSWORD, mechanism="SCRAM-SHA-256", salt=None, iterations=4096):
    salt = salt or base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kind = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, iterations)
    return u.ScramUpsertion(
        user=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )
