"""URIs of storages: which text is one, how it is shown without secrets, and how names of runs are written in it."""

from __future__ import annotations

import os
import re
from os import PathLike
from urllib.parse import quote, unquote

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)  # one letter is a drive of Windows
_KNOWN = re.compile(
    "abfss?|adl|az|file|ftp|gcs|gs|hdfs|https?|local|memory|mock|oci|oss|s3a?|sftp|smb|ssh|tos|viewfs|wasbs?", re.IGNORECASE
)
_WITH_USERS = re.compile("abfss?|adl|az|hdfs|sftp|smb|ssh|viewfs|wasbs?", re.IGNORECASE)
"""Schemes where the part before "@" is a container or a user, which is no secret."""
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://[^\s'\"<>]*[^\s'\"<>:,.;)]")
_PORT = re.compile(r"[^:@]*:[0-9]+")
_SECRET = re.compile(r"token|secret|passw|pwd|key|credential|authorization|auth_|(^|[_-])(sig|sas)", re.IGNORECASE)
_UNQUOTED = "%/?#&=,+@:;!$'()*~"  # what a URI may have beside letters, digits, "-", "." and "_"


def is_uri(path: str | PathLike[str]) -> bool:
    """Whether this begins with a scheme, as "s3://bucket/runs" does, and is not a path. It may still be written wrongly."""
    found = _SCHEME.fullmatch(os.fspath(path).lstrip())
    return found is not None and (found["rest"].startswith(("/", ":")) or _KNOWN.fullmatch(found["scheme"]) is not None)


def require_no_uri(folder: str | PathLike[str], what: str) -> None:
    """Raise an error if the folder for the files of a run is a URI.

    Args:
        folder: the folder.
        what: where it was given, for the message, such as "RunConfig.exp_name".

    Raises:
        ValueError: it is one.
    """
    if is_uri(folder):
        raise ValueError(
            f"{what} = {shown_uri(os.fspath(folder))!r} is a URI, and a run writes to a folder of this machine: set one, such "
            "as 'runs/mine', and storage_path to the URI under which it is to be copied, such as 's3://bucket/experiments'. A "
            "folder with such a name has ./ before it."
        )


def shown_uri(uri: str) -> str:
    """The URI or path with `***` in place of the user and password, and of all values of the query."""
    begin, rest = _split(uri)
    if not begin:
        return uri
    before, at, after = rest.rpartition("@")
    is_user = ":" not in before and _WITH_USERS.fullmatch(begin.partition(":")[0])
    if at and not is_user and (_has_password(before) or "/" not in before):
        rest = f"***@{after}"
    head, question, query = rest.partition("?")
    values = [f"{name}=***" if equals else "***" for name, equals, _ in (one.partition("=") for one in query.split("&"))]
    return f"{begin}{head}{question}{'&'.join(values) if query else ''}"


def shown_text(text: str) -> str:
    """The text with each URI in it as `shown_uri` shows it."""
    return _IN_TEXT.sub(lambda found: shown_uri(found[0]), text)


def _split(uri: str) -> tuple[str, str]:
    """A URI up to the slashes after its scheme, and the rest; the first part of a path is empty."""
    scheme, mark, rest = uri.partition("://")
    if not mark and is_uri(uri):
        scheme, mark, rest = uri.partition(":")
    return f"{scheme}{mark}" if mark else "", rest if mark else uri


def _has_password(before: str) -> bool:
    """Whether what stands before the last "@" is a user and a password, which may have any characters, and not a path."""
    first = before.lstrip("/").partition("/")[0]
    return ":" in first and not (_PORT.fullmatch(first) and first != before)


def problem_of_uri(uri: str) -> str | None:
    """What is wrong with a URI, with the fix; None if nothing is known to be."""
    scheme, _, rest = uri.lstrip().partition(":")
    if secret := _secret_in(uri):
        return (
            f"it has {secret}, which would be written to config.json. Leave it out: give this program credentials in its "
            "environment, such as AWS_ACCESS_KEY_ID or GOOGLE_APPLICATION_CREDENTIALS, or in the configuration files of the "
            "filesystem."
        )
    if rest.startswith(":"):
        return "chained filesystems are not supported: give the URI of the last one, such as s3://bucket/runs."
    if not rest.startswith("//"):
        wanted = f"file://{os.path.abspath(rest)}" if scheme.lower() in ("file", "local") else f"{scheme}://{rest.lstrip('/')}"
        return f"after the scheme {scheme!r}, a URI has '://'. Write {shown_uri(wanted)}, or ./ before the name of a folder."
    if "#" in rest:
        return "a URI has no '#' in it: write %23 in its place."
    return None


def _secret_in(uri: str) -> str | None:
    """The kind of secret in a URI; None if there is none."""
    rest = _split(uri)[1]
    before, at, _ = rest.rpartition("@")
    if at and _has_password(before):
        return "a user and a password"
    for one in re.split("[?&;]", rest)[1:]:
        name, is_given, _ = one.partition("=")
        if is_given and _SECRET.search(name):
            return f"the value {name!r} in its query"
    return None


def normal_uri(uri: str) -> str:
    """The URI with its scheme in small letters, and with characters quoted that no URI may have, such as spaces."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme.lower()}://{quote(rest, safe=_UNQUOTED)}"


def at_place(uri: str, place: str) -> str:
    """The URI, or the path, of what has this name in a folder."""
    if not is_uri(uri):
        return f"{uri.rstrip('/')}/{place}"
    head, question, query = uri.partition("?")
    return f"{head.rstrip('/')}/{quote(place, safe='/=,+')}{question}{query}"


def without_place(uri: str, place: str) -> str | None:
    """The URI without `place` at its end, such as the storage of a run; None if it does not end with `place`.

    Example:
        >>> without_place("s3://bucket/all/runs/my%20dqn", "runs/my dqn")
        's3://bucket/all'
    """
    head, question, query = uri.partition("?")
    root, _, rest = head.rstrip("/").partition("://")
    parts, wanted = rest.split("/"), place.split("/")
    if not place or len(wanted) >= len(parts) or [unquote(part) for part in parts[-len(wanted) :]] != wanted:
        return None
    return f"{root}://{'/'.join(parts[: -len(wanted)])}{question}{query}"


def last_name(uri: str) -> str:
    """The last name in a URI, such as "dqn" in "s3://bucket/runs/dqn"."""
    return unquote(uri.partition("?")[0].rstrip("/").rpartition("/")[2])
