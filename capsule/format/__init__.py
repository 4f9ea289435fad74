"""The format of documents: fields, checks, migrations, bytes. Pure, without input and output."""
