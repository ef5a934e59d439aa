"""`--position` and `--track` become publications to `$position`."""

from pathlib import Path

import pytest

from nearcast.cli.connecting import Fix, parse_fix, position_messages, read_track
from nearcast.model.errors import FileFormatError, MisuseError


def test_positions_with_times_are_sorted_by_them():
    assert read_track(["2.36,48.86@1min", "2.35,48.85"], None) == [
        Fix(0, 2.35, 48.85),
        Fix(60, 2.36, 48.86),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2.35", "--position: found '2.35'; expected LON,LAT or LON,LAT@TIME"),
        ("2.35,48.85@", "expected LON,LAT or LON,LAT@TIME"),
        ("2.35,48.85@soon", "--position: found 'soon'; expected a duration such as 250ms"),
        ("37.78,-122.4", "Longitude comes first, then latitude: are the two swapped?"),
        ("east,48.85", "--position: longitude: found 'east'; expected a number"),
    ],
)
def test_a_position_that_is_none_is_told(text: str, told: str):
    with pytest.raises(MisuseError) as raised:
        parse_fix(text)
    assert told in str(raised.value)


def test_a_file_starts_at_its_first_row(tmp_path: Path):
    track = tmp_path / "walk.csv"
    track.write_text(
        "name,t,lon,lat\nann,2026-05-01T10:00:00Z,2.35,48.85\nann,2026-05-01T10:00:05Z,2.36,48.86\n"
    )
    assert read_track(None, track) == [Fix(0, 2.35, 48.85), Fix(5, 2.36, 48.86)]
    track.write_text("t,lon,lat\n7,2.35,48.85\n8.5,2.36,48.86\n")
    after_s, message = position_messages(read_track(None, track))[1]
    assert (after_s, message.topic, message.qos) == (1.5, "$position", 1)
    assert message.payload == b'{"lon":2.36,"lat":48.86}'


def test_a_bad_file_is_told_with_its_line(tmp_path: Path):
    track = tmp_path / "walk.csv"
    track.write_text("time,lon,lat\n0,2.35,48.85\n")
    with pytest.raises(FileFormatError, match="the columns time, lon, lat; expected the columns t"):
        read_track(None, track)
    track.write_text("t,lon,lat\n0,2.35,48.85\n1,48.85,122.35\n")
    with pytest.raises(MisuseError, match=r"walk\.csv:3: found latitude 122\.35"):
        read_track(None, track)
    with pytest.raises(MisuseError, match="--position and --track"):
        read_track(["1,2"], track)
