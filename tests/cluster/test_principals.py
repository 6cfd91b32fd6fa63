"""Who somebody is by a certificate: Kafka's rules on the name as RFC 2253 writes it (KIP-371).

Method: the pure rules, with the examples of Kafka's own tests and of its documentation.
"""

import pytest

from hightide.protocol.errors import UsageError
from hightide_broker.core.cluster.principals import distinguished_name, name_by, parse_rules

DUKE = [
    ("countryName", "US"),
    ("stateOrProvinceName", "California"),
    ("localityName", "Santa Clara"),
    ("organizationName", "SomeCompany"),
    ("organizationalUnitName", "ServiceUsers"),
    ("commonName", "Duke"),
]
NAME = "CN=Duke,OU=ServiceUsers,O=SomeCompany,L=Santa Clara,ST=California,C=US"
SERVICE = r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/"


def test_a_name_begins_with_its_most_specific_part():
    assert distinguished_name(DUKE) == NAME
    assert distinguished_name([("userId", "7"), ("domainComponent", "org")]) == "DC=org,UID=7"
    assert distinguished_name([("serialNumber", "9")]) == "serialNumber=9", "as it is called"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a, b", r"a\, b"),
        ('a+b"c\\d<e>f;g=h', r"a\+b\"c\\d\<e\>f\;g\=h"),
        ("#a", r"\#a"),
        (" a ", r"\ a\ "),
        ("a ", r"a\ "),
        (" ", r"\ "),
        ("", ""),
    ],
)
def test_what_has_a_meaning_in_a_name_is_escaped(value, written):
    assert distinguished_name([("commonName", value)]) == f"CN={written}"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (SERVICE, "Duke"),
        (SERVICE + "L", "duke"),
        (SERVICE + "U", "DUKE"),
        (f"{SERVICE}L , DEFAULT", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L", "duke@serviceusers"),
        ("RULE:^cn=(.*?),ou=.*$/$1/, DEFAULT", NAME),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "duke"),
        ("DEFAULT", NAME),
        (r"RULE:^CN=(\w+).*$/$1\/x/", r"Duke\/x"),
        ("RULE:^CN=(.*?),.*$/$1 of $7/", "Duke of $7"),
        ("RULE:^CN=(.*?),.*$/$1 of $2/", "Duke of $2"),
        ("RULE:^CN=Duke,.*$/all of $0/", f"all of {NAME}"),
        ("RULE:^CN=(Duke)(Earl)?,.*$/$1,$2./", "Duke,."),
        ("RULE:^CN=Duke$/whole names only/", None),
        ("RULE:^CN=(x*).*$/$1/", None),
        ("RULE:nobody/x/", None),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(rules, name):
    assert name_by(parse_rules(rules), DUKE) == name


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULTS",
        "RULE:a/b",
        "RULE:a",
        "RULE:a/b/X",
        "RULE:(/b/",
        "RULE:a/b/L RULE:c/d/",
        "rule:a/b/",
    ],
)
def test_what_is_no_rule_is_told(rules):
    with pytest.raises(UsageError, match=r"is no rule|is no pattern"):
        parse_rules(rules)


def test_a_pattern_matches_over_slashes_and_lines():
    """A slash of the pattern is escaped; a name may have both."""
    parts = [("commonName", "a/b\nc")]
    assert name_by(parse_rules(r"RULE:^CN=(a\/b).*$/$1/"), parts) == "a/b"
    assert name_by(parse_rules("DEFAULT"), parts) == "CN=a/b\nc"


def test_of_what_is_no_rule_the_beginning_is_shown():
    with pytest.raises(UsageError, match=r"^'x{80}' is no rule, expected DEFAULT"):
        parse_rules("DEFAULT," + 81 * "x")
