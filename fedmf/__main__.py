"""Entry point of `python -m fedmf`, the same command as `fedmf`."""

from fedmf.cli import main

if __name__ == "__main__":
    main()
