"""The rule about numbers in sentences, held on every sentence of the three packages and of the
console's pages; each way to break it is planted."""

import re

import pytest
from house_rules import REPOSITORY, modules, parse
from word_rules import ALLOWED, FOLLOWED, plurals

from hightide.protocol.words import counted

SCRIPTS = REPOSITORY / "cli" / "hightide_console" / "static"
IN_SCRIPTS = re.compile(rf"\}}{FOLLOWED.pattern}(?!=)")


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (1, ("record",), "1 record"),
        (0, ("record",), "0 records"),
        (2, ("batch",), "2 batches"),
        (2, ("process",), "2 processes"),
        (-1, ("entry",), "-1 entries"),
        (3, ("day",), "3 days"),
        (1, ("row is", "rows are"), "1 row is"),
        (2, ("row is", "rows are"), "2 rows are"),
    ],
)
def test_one_is_said_otherwise_than_several(count, words, said):
    assert counted(count, *words) == said


def test_no_sentence_counts_one_of_something_as_if_it_were_several():
    violations = [each for module in modules() if module.in_house for each in plurals(module)]
    if violations:
        pytest.fail("\n".join(violations), pytrace=False)


def test_no_page_of_the_console_does():
    scripts = [*SCRIPTS.glob("*.js")]
    assert scripts
    for script in scripts:
        assert not IN_SCRIPTS.findall(script.read_text()), script.name
    assert IN_SCRIPTS.search("`${broker.offline} replicas offline`")


@pytest.mark.parametrize(
    "source",
    [
        "f'{count} records'",
        "f'cut {len(found):,} bytes off'",
        "f'a {b}, ' f'{count} files'",
        "say(f'{self.count} of it, {left} entries left')",
        "log.info('%d partitions', count)",
        "log.info('%s: %s nodes', a, b)",
    ],
)
def test_a_planted_violation_is_found(source):
    (violation,) = plurals(parse("cli/a.py", source))
    assert violation.startswith("cli/a.py:1:")
    assert "counted()" in violation


@pytest.mark.parametrize(
    "source",
    [
        "f'{counted(count, \"record\")} more'",
        "f'expected {BYTES_MAX} bytes or less, as {limits.ROWS_MAX} rows have'",
        "f'{topic}-{partition} offsets {first} to {last}'",
        "f'sequence={sequence} attempts={attempts}'",
        "f'hightide --config {file} topics …'",
        "f'{number} recordings'",
        "'%d is what the records are'",
    ],
)
def test_what_the_rule_allows_is_left_alone(source):
    assert plurals(parse("cli/a.py", source)) == []


def test_every_allowance_is_still_needed():
    for path, reason in ALLOWED.items():
        under = [each for each in modules() if each.path.startswith(path)]
        assert any(plurals(module, allowed=()) for module in under), path
        assert reason
