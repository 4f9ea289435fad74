"""Former names whose option has become a command."""

import pytest

from capsule_cli.names import current


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("show plan --tree", "branch list plan"),
        ("mute news --undo --as bob", "channel unmute news --as bob"),
        ("channels archive --undo news", "channel set --no-archive news"),
    ],
)
def test_an_option_that_has_become_a_command_is_left_out(former: str, now: str) -> None:
    words, notes = current(former.split())
    assert words == now.split() and notes
