"""What a capsule is: codec, models, validation, migrations, layout. Pure, no input or output."""
