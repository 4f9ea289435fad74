"""Waking an idle agent: a bell for each kind of program, when it is rung, and what it says."""
