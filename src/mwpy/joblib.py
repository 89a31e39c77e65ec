"""joblib's door to mwpy: `register()` adds the backend `mwpy` to `joblib.parallel_config`.

joblib is not among the packages that mwpy needs, so it is imported when it is used. `mwpy._roles.joblib_backend` has
the backend.
"""

from __future__ import annotations

from mwpy._values.errors import UsageError

__all__ = ["register"]


def register(make_default: bool = False) -> None:
    """Make `joblib.parallel_config(backend="mwpy")` known to joblib. A second call changes nothing.

    The keywords of `parallel_config` choose where the tasks run:

    - `executor=` is an executor of mwpy. It stays open when the block ends.
    - All others are keywords of `mwpy.Executor`, such as `slaves=4`. The executor is made at the first call, and ends
      with the block.
    - Without keywords, one executor with slaves on this machine is made at the first call. It is kept for all later
      calls of this process.

    Args:
        make_default: whether joblib uses this backend where no other is named.

    Raises:
        UsageError: joblib is not installed, or older than 1.4; the message says what to do.

    Examples:
        >>> import joblib, mwpy.joblib                         # doctest: +SKIP
        >>> mwpy.joblib.register()                             # doctest: +SKIP
        >>> with joblib.parallel_config(backend="mwpy"):       # doctest: +SKIP
        ...     search.fit(X, y)
    """
    try:
        from mwpy._roles import joblib_backend
    except ImportError as error:
        raise UsageError(
            f"mwpy.joblib needs joblib 1.4 or later ({error}): pip install 'mwpy-cluster[joblib]'"
        ) from error
    joblib_backend.register(make_default)
