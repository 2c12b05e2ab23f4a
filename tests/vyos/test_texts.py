"""Both text forms of a configuration, read and written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.vyos.paths import commands
from infra.vyos.statements import Unreadable, command, deletion, read, release_line
from tests.vyos import SITES, VARIANTS, rendered, saved, version_of
from tests.vyos.foreign import FOREIGN

ALL = [(name, site) for name in VARIANTS for site in SITES]


@pytest.mark.parametrize(("name", "site"), ALL)
def test_commands_and_the_saved_form_mean_the_same(name: str, site: str) -> None:
    found, version = rendered(name, site), version_of(name, site)
    lines = "\n".join(commands(found, version))
    assert read(lines) == list(found)
    text = saved(found, version)
    assert set(read(text)) == set(found)
    assert release_line(text) == version
    assert sorted(commands(read(text), version)) == sorted(lines.splitlines())


WORDS = st.text(st.characters(blacklist_categories=["C", "Z"], blacklist_characters="'\"\\{}"), min_size=1, max_size=9)
VALUES = st.text(st.characters(blacklist_categories=["C"], blacklist_characters="'\"\\"), min_size=1, max_size=20)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), VALUES)
def test_odd_words_and_values_survive_both_forms(words: list[str], value: str) -> None:
    if any(mark in word for word in words for mark in ("//", "/*")) or set(value) <= set("*x"):
        return  # a comment, or a masked secret
    statement = ("system", *words, value)
    assert read(command(statement, has_value=True)) == [statement]
    blocks = " {\n".join(["system", *words[:-1]]) + f' {{\n{words[-1]} "{value}"\n' + "}\n" * len(words)
    assert read(blocks) == [statement]


@pytest.mark.parametrize("word", ["it's", 'say "no"', "a\nb", "back\\slash", "", "\x1b[0m"])
def test_a_value_that_the_router_refuses_is_not_written(word: str) -> None:
    with pytest.raises(ValueError, match="VyOS takes no"):
        command(("system", "host-name", word), has_value=True)


def test_the_foreign_file_is_read_with_its_escapes_flags_and_empty_nodes() -> None:
    found = read(FOREIGN)
    assert ("interfaces", "ethernet", "eth0", "description", 'it\'s "outside"') in found
    assert ("firewall", "zone", "LOCAL", "local-zone") in found
    assert ("protocols", "static", "route", "0.0.0.0/0", "next-hop", "198.51.100.254") in found
    assert release_line(FOREIGN) == "1.4"


@pytest.mark.parametrize("start", ["// by hand\n", "/* two\nlines */", "\n\n", "# by hand\n"])
def test_comments_before_the_first_line_do_not_matter(start: str) -> None:
    body = "set system host-name 'edge'" if start[0] in "#\n" else 'system {\n host-name "edge"\n}'
    assert read(f"{start}{body}\n") == [("system", "host-name", "edge")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no configuration"),
        ("# nothing", "holds no configuration"),
        ("hello", "no configuration of VyOS"),
        ('{"system": {}}', "expected a name"),
        ("system {", "ends inside a block"),
        ("system {\n}\n}", "brace too many"),
        ('system {\n host-name "edge', "a quote without end"),
        ("system {\n /* never", "a comment without end"),
        ("system {\n a b c\n}", "expected a line end"),
        ("set system host-name 'edge", "line 1"),
        ("set system host-name 'edge'\nshow version", "line 2"),
        ("interfaces {\n wireguard wg0 {\n private-key ****************\n}\n}", "is masked"),
        ("set interfaces wireguard wg0 private-key 'xxxxxx'", "is masked"),
        ("set system name-server 'xxx.xxx.1.1'", "is masked"),
    ],
)
def test_what_is_no_configuration_is_named(text: str, told: str) -> None:
    with pytest.raises(Unreadable, match=told):
        read(text)


def test_a_deep_file_is_an_answer_and_no_crash() -> None:
    with pytest.raises(Unreadable):
        read("system {\n" * 5000)


@pytest.mark.parametrize(("number", "line"), [(5, "1.3 or older"), (15, "1.4"), (16, "1.5"), (20, "1.5")])
def test_the_trailer_tells_the_release_line(number: int, line: str) -> None:
    assert release_line(f'// vyos-config-version: "bgp@6:firewall@{number}:nat@8"') == line


def test_a_deletion_quotes_what_a_shell_would_take_apart() -> None:
    assert deletion(("a", "b c", "10.0.0.0/8")) == "delete a 'b c' 10.0.0.0/8"
