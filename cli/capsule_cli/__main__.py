"""`python -m capsule_cli` is `capsule`."""

from capsule_cli.app import main

if __name__ == "__main__":
    main()
