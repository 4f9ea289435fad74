"""The commands with which people and agents talk to each other."""
