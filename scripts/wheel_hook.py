"""What goes into the wheel besides the sources: the compiled core, if it was made from them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCoreHook(BuildHookInterface[Any]):
    """Adds the compiled core; the wheel is then for this Python and this kind of machine only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files of the core, if there are any."""
        if version == "editable":
            return
        package = Path(self.root, "src", "nearcast")
        core = runpy.run_path(str(package / "compiled_core.py"))
        made = Path("_compiled", core["key"]())
        files = core["extensions"](package / made)
        if not files:
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in files.values():
            inside = Path("nearcast", path.relative_to(package))
            build_data["force_include"][str(path)] = str(inside)
