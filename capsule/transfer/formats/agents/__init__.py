"""The sessions of coding agents, in terminals and editors."""
