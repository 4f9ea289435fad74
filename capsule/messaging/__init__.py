"""Messages between agents, who may be people or programs: who there is, what they say, and who has
read it.
"""
