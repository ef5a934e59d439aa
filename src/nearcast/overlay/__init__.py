"""The content overlay."""
