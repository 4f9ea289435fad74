"""Messages between agents, which may be people or programs: agents, groups, channels, and what each
agent has read.
"""
