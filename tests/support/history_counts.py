"""How many random histories the tests of causal order go through."""

import os

SOAK = os.environ.get("NEARCAST_HYPOTHESIS") == "soak"
HISTORIES = 10_000 if SOAK else 200
