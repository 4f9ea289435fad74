"""The pure parts of answering queries, for all kinds of engines. They read no file and no database."""
