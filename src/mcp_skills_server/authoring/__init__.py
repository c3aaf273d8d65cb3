"""Tools for authors: whether a skill is chosen when it should be, and what a model is shown of
it."""
