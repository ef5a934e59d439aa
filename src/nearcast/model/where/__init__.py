"""The `where` language: text to tokens, to an expression, to a union of boxes, and back to text."""
