"""Arguments of middleware: refused where the script hands them over, not in the first iteration.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations


def require(middleware: str, given: object, attribute: str, described: str) -> None:
    """Refuse an argument that cannot do what it is for; anything that has the attribute may stand in for our own.

    Args:
        middleware: who wants it.
        attribute: what the middleware will use.
        described: what it wants, in the words of a script.

    Raises:
        TypeError: naming all of them.
    """
    if not hasattr(given, attribute):
        raise TypeError(
            f"{middleware} wants {described}, got {given!r:.80} of type {type(given).__name__}, which has no {attribute!r}."
        )
