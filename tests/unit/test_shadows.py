"""Files that hide modules of the standard library, or of packages that mwpy needs."""

from __future__ import annotations

import pytest

from mwpy._system.shadows import explain


def test_other_errors_stay_as_they_are() -> None:
    """Files of packages may have such names, as `numpy/random/__init__.py` does."""
    with pytest.raises(ValueError, match="no JSON") as caught:
        raise ValueError("no JSON")
    explain(caught.value)
    assert not hasattr(caught.value, "__notes__")
