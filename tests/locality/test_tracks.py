"""Cleaning agrees with a plain reading of its rules, wherever a track is cut."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality.layout.tracks import FixVerdict, TrackCleaner
from nearcast.model import distance_m

SPEED, GAP = 50.0, 100.0

fixes = st.lists(
    st.tuples(
        st.integers(0, 2),  # user
        st.integers(0, 40).map(lambda n: n * 10),  # seconds
        st.sampled_from([0.0, 0.001, 0.002, 0.05, 0.1]),
        st.sampled_from([0.0, 0.001]),
    ),
    max_size=30,
).map(sorted)


def by_the_rules(rows):
    """Say what becomes of each fix, from the rules alone."""
    said = []
    last = None
    trip = streak = 0
    for user, t, lon, lat in rows:
        if last is None or last[0] != user:
            trip, streak, step = 0, 0, (0.0, 0.0)
        elif t == last[1]:
            said.append((FixVerdict.DUPLICATE, 0, 0.0, 0.0))
            continue
        elif t - last[1] > GAP:
            trip, step = trip + 1, (0.0, 0.0)
        else:
            far = distance_m(last[2], last[3], lon, lat)
            step = (float(t - last[1]), far)
            if far > SPEED * step[0]:
                streak += 1
                if streak < 5:
                    said.append((FixVerdict.TOO_FAST, 0, 0.0, 0.0))
                    continue
                trip, step = trip + 1, (0.0, 0.0)
        streak, last = 0, (user, t, lon, lat)
        said.append((FixVerdict.KEPT, trip, *step))
    return said


@given(fixes, st.integers(1, 7))
def test_verdicts_follow_the_rules_in_batches_of_any_size(rows, size):
    cleaner = TrackCleaner(SPEED, GAP)
    said = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        before = rows[start - 1][0] if start else None
        users = [before, *(row[0] for row in part)]
        is_new = np.array([a != b for a, b in pairwise(users)], np.bool_)
        columns = [np.array(column) for column in zip(*part, strict=True)]
        t_us = (columns[1] * 1_000_000).astype(np.int64)
        answer = cleaner.clean(is_new, t_us, columns[2].astype(float), columns[3].astype(float))
        said += list(zip(*answer, strict=True))
    expected = by_the_rules(rows)
    assert [(int(v), int(n)) for v, n, *_ in said] == [(int(v), n) for v, n, *_ in expected]
    assert np.allclose([row[2:] for row in said], [row[2:] for row in expected], rtol=1e-9)


def test_a_wrong_first_fix_does_not_condemn_the_rest():
    places = [50.0, *[0.0] * 9]
    rows = [(0, 10 * i, lon, 0.0) for i, lon in enumerate(places)]
    kept = [v is FixVerdict.KEPT for v, *_ in by_the_rules(rows)]
    assert kept == [True, *[False] * 4, *[True] * 5]
