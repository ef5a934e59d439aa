"""The distance on the sphere for compiled kernels."""

from __future__ import annotations

from numba import njit

from nearcast.model.sphere import distance_m

# The vocabulary's own formula, compiled: one definition, one answer.
compiled_distance_m = njit(cache=True)(distance_m)
