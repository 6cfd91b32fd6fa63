"""Authorities and certificates for tests. No test lives here."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from hightide.net.tls import TlsFiles

LONG_AGO = datetime.now(UTC) - timedelta(days=3)


class Authority:
    """Makes certificates, as files in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self.file = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)
        self._count = 0

    def issue(self, name="", *hosts, expired=False, at=None):
        """A certificate of this common name, for hosts: as `TlsFiles` that believe this authority,
        at the same paths as another one if `at` is its files."""
        self._count += 1
        limits = {"not_before": LONG_AGO, "not_after": LONG_AGO + timedelta(days=1)}
        leaf = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=name or None,
            **(limits if expired else {}),
        )
        files = at or TlsFiles(
            authorities=self.file,
            certificate=str(self._directory / f"{self._count}.pem"),
            key=str(self._directory / f"{self._count}-key.pem"),
        )
        replace(files.key, leaf.private_key_pem.bytes())
        replace(files.certificate, b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        return files

    @property
    def believed(self):
        """Files of somebody who believes this authority and shows nothing."""
        return TlsFiles(authorities=self.file)


def replace(path, data):
    """A file is exchanged whole, as those who rotate certificates do it."""
    new = Path(f"{path}.new")
    new.write_bytes(data)
    new.rename(path)
