"""The commands of `capsule git`."""
