"""A drafter as another package brings it."""
