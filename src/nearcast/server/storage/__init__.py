"""The journal on disk: its format, file, restore and report."""
