"""The rules of sessions: pure functions of the state of a session, without files and clocks."""
