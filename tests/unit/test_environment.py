"""The settings that an agent gives to a slave through the environment."""

from __future__ import annotations

import pytest

from mwpy._values.environment import SlaveSettings
from mwpy._values.errors import UsageError


def test_slave_settings_survive_the_environment() -> None:
    settings = SlaveSettings(3, 4, slave=1, agent_pid=99, result_group=10, max_result_bytes=1000)
    assert SlaveSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize("text", ["", "1", "{", '{"stream": 3}', '{"shoe": 1}'])
def test_settings_that_no_agent_wrote_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MWPY_SLAVE is set, but not by an agent"):
        SlaveSettings.from_json(text)
