"""The distance on the sphere for compiled kernels."""

from __future__ import annotations

from nearcast.kernels import copy_of, kernel
from nearcast.model.sphere import distance_m

# The model's own formula, compiled: one definition, one answer.
compiled_distance_m = kernel(copy_of(distance_m))
