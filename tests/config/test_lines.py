"""The scan for lines agrees with where keys stand."""

from nearcast.config.lines import key_lines, line_of

TEXT = """\
a = 1
[limits]
connections = 5   # comment
"quoted key" = 2

[[listener]]
port = 1
[[listener]]
port = 2
[listener.tls]
key = 3
[space]
text = '''
port = 99
[nothing]
'''
attributes.price.low = 0
"""


def test_keys_are_found_in_tables_lists_and_dotted_forms():
    lines = key_lines(TEXT)
    assert lines["a",] == 1
    assert lines["limits", "connections"] == 3
    assert lines["limits", "quoted key"] == 4
    assert lines["listener", 0, "port"] == 7
    assert lines["listener", 1, "port"] == 9
    assert lines["listener", 1, "tls", "key"] == 11
    assert lines["space", "attributes", "price", "low"] == 17


def test_what_stands_inside_a_multi_line_string_is_no_key():
    lines = key_lines(TEXT)
    assert ("nothing",) not in lines
    assert ("space", "port") not in lines


def test_a_key_without_a_line_is_found_at_what_contains_it():
    lines = key_lines("[a]\nb = { c = { d = 1 } }\n")
    assert line_of(("a", "b", "c", "d"), lines) == 2
    assert line_of(("nowhere",), lines) is None
