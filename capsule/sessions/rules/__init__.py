"""The rules of sessions: pure functions of what stands in the files, without files and clocks."""
