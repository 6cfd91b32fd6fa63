"""Where a group stands, in a few words: names that clients chose do no harm in a log."""

from __future__ import annotations

from groupkit import Coordinator

from hightide_broker.core.groups.text import MEMBERS_SHOWN, NAME_SHOWN, show_group


def test_a_name_is_one_short_word_whatever_its_client_chose():
    on = Coordinator()
    on.enter("a")
    on.join(new="x\nCRITICAL forged")
    on.join(new="y" * 1000)
    long = f"({'y' * NAME_SHOWN}…)"
    said = show_group(on.group)
    assert said == f"PreparingRebalance g0: a* ('x\\nCRITICAL forged') {long}"


def test_of_a_large_group_some_are_named():
    on = Coordinator()
    for number in range(MEMBERS_SHOWN + 3):
        on.enter(f"m{number}")
    assert show_group(on.group).endswith(f" m{MEMBERS_SHOWN - 1} and 3 more")
